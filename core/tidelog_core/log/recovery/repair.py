"""Repairs a damaged log so that it opens again. For the last copy of a log.

Every batch of every segment file is read and its CRC checked. Whole batches stay at their
offsets. Damaged ones leave a gap, which readers skip like gaps left by compaction. Offsets
are never reused: if the end is lost, the log continues at the recovery point, up to which it
was flushed.

    file        problem                           result
    ----------  --------------------------------  ----------------------------------------------
    whole       none                              is not changed
    damaged     batches that fail their CRC, or   is replaced by its whole batches; the damaged
                bytes that are no batch           file goes to the quarantine
    missing     the next file begins after the    an empty segment is added
                end of this one
    at the end  fewer batches than were flushed   an empty segment up to the recovery point, and
                                                  a new active one from there

The batch after a damaged one is found by the damaged header, or by the offset index. Damage
above the recovery point is not repaired: opening the log truncates it, as after any crash.

``plan_repair`` changes nothing. After a crash during ``carry_out`` the log is planned and
repaired again: each file is the old or the new one, the old one is copied to the quarantine
before it is replaced, and the gaps in new files are no damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import (
    sync_directory,
    write_checkpoint,
    write_fully,
)
from tidelog_core.log.paths import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    RECOVERY_POINT_FILE,
    SEGMENT_FILE,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_name,
    segment_path,
)
from tidelog_core.log.recovery.log_checkpoints import Checkpoints, read_checkpoints
from tidelog_core.log.recovery.quarantine import keep_file
from tidelog_core.log.recovery.whole_batches import (
    FileContent,
    OffsetRange,
    Stretch,
    read_whole_batches,
)
from tidelog_core.log.segments.segment_indexes import SealRecord
from tidelog_core.model import NO_TIMESTAMP

_NO_LIMIT = 2**63 - 1  # of offsets


@dataclass(frozen=True, slots=True)
class RepairStep:
    """The repair of one file."""

    path: Path
    problem: str
    lost: tuple[OffsetRange, ...]
    stretches: tuple[Stretch, ...] | None  # the file's whole batches; None: it is made, empty


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The readable rest of a log, and the changes that make it open again."""

    directory: Path
    intact: tuple[OffsetRange, ...]
    steps: tuple[RepairStep, ...]  # empty: nothing is wrong
    holes: tuple[SealRecord, ...]  # the empty segments'
    recovery_point: int
    active_base_offset: int | None  # of a new active segment; None: the last one stays active

    @property
    def lost(self) -> tuple[OffsetRange, ...]:
        """The offsets of the lost records, ascending."""
        return tuple(sorted((one for s in self.steps for one in s.lost), key=lambda one: one.start))


def plan_repair(directory: Path) -> RepairPlan:
    """Read the whole log. Raises ``StorageError`` if it must not be repaired, ``OSError``."""
    names = sorted(os.listdir(directory))  # noqa: PTH208
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        raise StorageError("a compaction is under way: start the node once, and stop it again")
    checkpoints = read_checkpoints(directory)
    parsed = filter(None, map(parse_segment_name, names))
    bases = [offset for offset, suffix in parsed if suffix == LOG_SUFFIX]
    local_start = checkpoints.local_start_offset
    while len(bases) > 1 and bases[1] <= (local_start or 0):
        bases.pop(0)  # The next opening removes it.
    planning = _Planning(directory, checkpoints)
    if local_start is not None:
        first = max(local_start, checkpoints.log_start_offset)
        planning.fill(first, bases[0] if bases else planning.recovery_point)
    # There may be no file at all.
    for base_offset, following in zip(bases, [*bases[1:], None], strict=False):
        planning.check(base_offset, following)
    return planning.end()


class _Planning:
    """Walks over the files of one log."""

    def __init__(self, directory: Path, checkpoints: Checkpoints) -> None:
        self._directory = directory
        self._checkpoints = checkpoints
        self._was_compacted = (directory / CLEANER_OFFSET_FILE).exists()
        self._intact: list[OffsetRange] = []
        self._steps: list[RepairStep] = []
        self._holes: list[SealRecord] = []
        self._active_base_offset: int | None = None
        self._end_offset = 0
        self._is_end_changed = False
        self.recovery_point = checkpoints.recovery_point or 0

    def fill(self, start: int, end: int, problem: str = "is missing") -> None:
        """Fill a gap in the log with an empty segment, if there is a gap."""
        self._end_offset = max(self._end_offset, end)
        if start >= end:
            return
        path = segment_path(self._directory, start, LOG_SUFFIX)
        self._steps.append(RepairStep(path, problem, (OffsetRange(start, end),), None))
        self._holes.append(SealRecord(start, end, 0, NO_TIMESTAMP, start, 0, 0, 0, 0, 0, 0))

    def check(self, base_offset: int, following: int | None) -> None:
        """Check one file; ``following`` is the next one's base offset, ``None`` for the last."""
        known = self._checkpoints.seals_at(base_offset)
        found = self._read(base_offset, following)
        end_offset = found.end_offset
        is_vouched = any(
            (seal.end_offset, seal.size_bytes) == (following, found.size_bytes) for seal in known
        )
        if following is None:
            self._check_last(found)
            return
        self._intact += found.intact
        if found.problem is None and is_vouched:
            self._end_offset = following  # A gap is from compaction or an earlier repair.
            return
        ends = [seal.end_offset for seal in known if seal.end_offset <= following]
        if found.problem is None and ends and found.size_bytes == _size_of(known, max(ends)):
            self.fill(max(ends), following)
            return
        if not found.size_bytes:
            # A roll leaves no empty file, but a repair that a crash has cut short does.
            found.problem = "is empty"
            self._replace(found, following)
            return
        if found.problem is None and not known and (end_offset == following or self._was_compacted):
            self._end_offset = following
            return
        if known and found.problem is None:
            found.problem = f"has {found.size_bytes} bytes instead of {known[-1].size_bytes}"
        if found.problem is None:
            self.fill(end_offset, following)
            return
        self._replace(found, following)

    def _read(self, base_offset: int, following: int | None) -> FileContent:
        path = segment_path(self._directory, base_offset, LOG_SUFFIX)
        if following is not None:
            return read_whole_batches(path, base_offset, limit=following, last_gap_max=following)
        point = self.recovery_point
        return read_whole_batches(path, base_offset, limit=_NO_LIMIT, last_gap_max=point)

    def _check_last(self, found: FileContent) -> None:
        """Take the last file. Damage above the recovery point is left to recovery."""
        self._end_offset = found.end_offset
        is_damaged = found.problem is not None and found.problem_offset < self.recovery_point
        if is_damaged:
            self._is_end_changed = True
            self._replace(found, max(found.end_offset, self.recovery_point))
        elif found.problem is not None:
            found.intact = [one for one in found.intact if one.end <= found.problem_offset]
        elif found.end_offset < self.recovery_point:
            self._is_end_changed = True
            self.fill(found.end_offset, self.recovery_point, "is missing, or the end before it")
        self._intact += found.intact

    def _replace(self, found: FileContent, end: int) -> None:
        """Have a file replaced by its whole batches."""
        path = segment_path(self._directory, found.base_offset, LOG_SUFFIX)
        problem, tail = found.problem or "", OffsetRange(found.end_offset, end)
        if not found.stretches:
            self._steps.append(RepairStep(path, problem, (tail,), None))
            row = (found.base_offset, end, 0, NO_TIMESTAMP, found.base_offset, 0, 0, 0, 0, 0, 0)
            self._holes.append(SealRecord(*row))
            self._end_offset = end
            return
        self._steps.append(RepairStep(path, problem, tuple(found.lost), tuple(found.stretches)))
        self._end_offset = found.end_offset
        self.fill(found.end_offset, end, f"replaces the lost end of {path.name}")

    def end(self) -> RepairPlan:
        """Return the plan."""
        point = self.recovery_point
        if self._is_end_changed:
            point = self._end_offset
        if self._holes and self._holes[-1].end_offset == self._end_offset:
            self._active_base_offset = self._end_offset
        return RepairPlan(
            self._directory,
            tuple(_joined(self._intact)),
            tuple(self._steps),
            tuple(self._holes),
            point,
            self._active_base_offset,
        )


def carry_out(plan: RepairPlan, quarantine: Path) -> None:
    """Carry out the plan; damaged files are kept in ``quarantine``. Durable on return.

    The log must not be in use. Raises ``OSError``.
    """
    directory = plan.directory
    changed = {step.path for step in plan.steps}
    for name in (SEGMENT_FILE, RECOVERY_POINT_FILE, *(step.path.name for step in plan.steps)):
        keep_file(directory / name, quarantine)
    (directory / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    if not (directory / CLEANER_OFFSET_FILE).exists():
        # Its content says that nothing is compacted; its existence, that offsets may be missing.
        # Written first: after a crash the files replaced until then have gaps.
        write_checkpoint(directory / CLEANER_OFFSET_FILE, [[0]])
    for step in plan.steps:
        _write(step)
    if plan.active_base_offset is not None:
        segment_path(directory, plan.active_base_offset, LOG_SUFFIX).touch()
    # Durable before the indexes go, by which whole batches are found in the damaged files.
    sync_directory(directory)
    for step in plan.steps:
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            step.path.with_suffix(suffix).unlink(missing_ok=True)
    kept = [
        seal
        for seal in read_checkpoints(directory).seals
        if (path := segment_path(directory, seal.base_offset, LOG_SUFFIX)) not in changed
        # A repair that a crash has cut short may have replaced the file.
        and path.exists()
        and path.stat().st_size == seal.size_bytes
    ]
    write_checkpoint(directory / SEGMENT_FILE, [*kept, *plan.holes])
    write_checkpoint(directory / RECOVERY_POINT_FILE, [[plan.recovery_point]])


def _write(step: RepairStep) -> None:
    """Replace the file by its whole batches."""
    temporary = step.path.with_name(step.path.name + TEMPORARY_SUFFIX)
    target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if step.stretches:
            source = os.open(step.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                position = 0
                for stretch in step.stretches:
                    content = os.pread(source, stretch.size_bytes, stretch.position)
                    write_fully(target, content, position)
                    position += len(content)
            finally:
                os.close(source)
        os.fsync(target)
    finally:
        os.close(target)
    temporary.rename(step.path)


def _size_of(known: Sequence[SealRecord], end_offset: int) -> int:
    return next(seal.size_bytes for seal in known if seal.end_offset == end_offset)


def _joined(ranges: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the ranges with those put together that follow one another."""
    before: OffsetRange | None = None
    for one in ranges:
        if before is not None and before.end == one.start:
            before = OffsetRange(before.start, one.end)
            continue
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before
