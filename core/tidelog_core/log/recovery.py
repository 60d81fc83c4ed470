"""Opens a log: reads its files, and recovers them after a crash.

A flush makes the batches durable first, then the index files, snapshots and checkpoints of
sealed segments, then the names in the directory, and last the ``recovery-point``. So
everything below the recovery point is durable, and everything above it must be checked:

- The segment that holds the recovery point and all later ones are read. Every batch above the
  recovery point must have the right CRC, continue the offsets and not go back in leader
  epochs. At the first batch that fails, the file is truncated and later segments are removed;
  durably, so that truncated bytes cannot reappear behind newer batches.
- The scan rebuilds their indexes, the leader epochs and the producers' state.
- Segments wholly below the recovery point are not read, if their size and extent match
  their seal records. Their indexes are loaded on first use, and rebuilt if no seal record
  has their size and CRC.

If the recovery would have to truncate below the recovery point, flushed bytes are
damaged: ``CorruptLog`` is raised and nothing is changed.

A ``clean-shutdown`` file holds the log end offset and the active segment's size at close. If
it matches the active segment's size, nothing is read. It is removed on open. A crash
may bring the removed file back, but it then matches only a log without new appends;
truncating a log first makes the removal durable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tidelog_core.config import TopicConfig
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.batch_scan import scan_file
from tidelog_core.log.checkpoint import (
    CorruptCheckpoint,
    read_checkpoint,
    sync_directory,
    write_checkpoint,
)
from tidelog_core.log.cleaned_segments import finish_swaps
from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.log_segments import LogSegments, remove_segment_files
from tidelog_core.log.open_files import OpenFiles
from tidelog_core.log.paths import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    RECOVERY_POINT_FILE,
    SEGMENT_FILE,
    SNAPSHOT_SUFFIX,
    START_OFFSET_FILE,
    TEMPORARY_SUFFIX,
    parse_segment_name,
    segment_path,
)
from tidelog_core.log.producer_snapshots import (
    note_batch,
    producers_at,
    remove_stray_snapshots,
    write_snapshot,
)
from tidelog_core.log.producer_state import ProducerState
from tidelog_core.log.seal_file import read_seals
from tidelog_core.log.segment import BatchSpan, LogSegment
from tidelog_core.log.segment_indexes import SealRecord, SegmentIndexes
from tidelog_core.log.values import CorruptLog
from tidelog_core.model import NO_LEADER_EPOCH, TopicPartition
from tidelog_core.records.batch import BatchHeader, Buffer, check_crc

_NOTHING_VERIFIED = sys.maxsize  # as an offset from which CRCs are checked


@dataclass(slots=True)
class OpenedLog:
    """A log's state after opening."""

    segments: LogSegments
    producers: ProducerState
    epochs: LeaderEpochs
    log_start_offset: int
    recovery_point: int
    is_new: bool  # the directory was made just now
    cleaned_up_to: int  # the end of the compacted records


@dataclass(slots=True)
class Checkpoints:
    """The content of a log's checkpoint files."""

    log_start_offset: int
    local_start_offset: int | None  # None: unknown
    recovery_point: int | None  # None: unknown, everything must be read
    epochs: list[list[int]] | None  # None: unknown, to be read from the batches
    seals: list[SealRecord]  # two for a segment that was being replaced, see ``cleaned_segments``
    seals_are_whole: bool  # whether rows may be appended to their file
    clean_end: list[int] | None  # log end offset, active base offset, active size
    cleaned_up_to: int
    _seals_at: dict[int, list[SealRecord]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the records by segment."""
        for seal in self.seals:
            self._seals_at.setdefault(seal.base_offset, []).append(seal)

    def seal_of(self, segment: LogSegment) -> SealRecord | None:
        """Return the record that fits the segment's extent, if exactly one does."""
        extent = (segment.base_offset, segment.end_offset, segment.size_bytes)
        fitting = [seal for seal in self.seals_at(segment.base_offset) if seal[:3] == extent]
        return fitting[0] if len(fitting) == 1 else None

    def sizes_of(self, segment: LogSegment) -> list[tuple[int, int]]:
        """Return the end offsets and sizes that the segment was ever sealed with."""
        return [seal[1:3] for seal in self.seals_at(segment.base_offset)]

    def seals_at(self, base_offset: int) -> Sequence[SealRecord]:
        """Return all seal records of a segment, right or wrong."""
        return self._seals_at.get(base_offset, ())


def open_log(
    directory: Path,
    partition: TopicPartition,
    *,
    config: TopicConfig,
    clock_ms: Callable[[], int],
    log_start_offset: int,
    is_clean: bool,
    producer_id_expiration_ms: int,
    open_files: OpenFiles | None,
    on_offline: Callable[[], None] | None,
) -> OpenedLog:
    """Open the log in ``directory``, which is created if it does not exist.

    With ``is_clean`` the caller guarantees that the log was closed in order: CRCs are not
    checked then. Raises ``CorruptLog``, or ``StorageError`` if the disk fails.
    """

    def rebuild(segments: LogSegments, segment: LogSegment) -> SegmentIndexes:
        return rebuild_indexes(segments, segment, expiration_ms=producer_id_expiration_ms)

    segments = LogSegments(
        directory,
        partition,
        config=config,
        clock_ms=clock_ms,
        rebuild=rebuild,
        open_files=open_files,
        on_offline=on_offline,
    )
    with segments.storage_errors("opening"):
        is_new = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        checkpoints = read_checkpoints(directory)
        start_offset = max(checkpoints.log_start_offset, log_start_offset)
        opening = _Opening(segments, checkpoints, is_clean, producer_id_expiration_ms)
        finish_swaps(directory)
        base_offsets = _clear_directory(directory)
        opening.load_segments(base_offsets, start_offset)
        producers = opening.recover()
        producers = opening.restart_if_behind(start_offset, producers)
        epochs = opening.epochs
        epochs.truncate_from_end(segments.end_offset + 1)
        epochs.truncate_from_start(start_offset)
        remove_stray_snapshots(
            directory, keep={segments.end_offset, *(s.base_offset for s in segments.all)}
        )
        (directory / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    recovery_point = min(opening.recovery_point, segments.end_offset)
    return OpenedLog(
        segments,
        producers,
        epochs,
        start_offset,
        recovery_point,
        is_new,
        cleaned_up_to=min(checkpoints.cleaned_up_to, segments.end_offset),
    )


class _Opening:
    """One opening of one log."""

    def __init__(
        self, segments: LogSegments, checkpoints: Checkpoints, is_clean: bool, expiration_ms: int
    ) -> None:
        self.segments = segments
        self.checkpoints = checkpoints
        self.is_clean = is_clean
        self.expiration_ms = expiration_ms
        self.now_ms = segments.clock_ms()
        segments.seal_file.opened(checkpoints.seals, is_whole=checkpoints.seals_are_whole)
        self.epochs = LeaderEpochs((epoch, start) for epoch, start in checkpoints.epochs or ())
        self.recovery_point = checkpoints.recovery_point or 0

    def load_segments(self, base_offsets: list[int], start_offset: int) -> None:
        """Make the segment objects, and finish the removal of segments below the local start."""
        segments, local_start = self.segments, self.checkpoints.local_start_offset or 0
        while len(base_offsets) > 1 and base_offsets[1] <= local_start:
            remove_segment_files(segments.directory, base_offsets.pop(0))
        if not base_offsets and self.recovery_point > max(start_offset, local_start):
            raise CorruptLog(
                f"{segments.partition} in {segments.directory} was flushed up to offset "
                f"{self.recovery_point}, but holds no segment"
            )
        is_known = self.checkpoints.local_start_offset is not None
        if base_offsets and is_known and base_offsets[0] > max(start_offset, local_start):
            raise _missing(segments.directory, max(start_offset, local_start), base_offsets[0])
        for base_offset in base_offsets:
            segment = segments.new_segment(base_offset)
            status = os.stat(segment.path)  # noqa: PTH116
            segment.size_bytes = status.st_size
            # Its first batch came at this time or before.
            segment.created_ms = min(segment.created_ms, status.st_mtime_ns // 1_000_000)
            segments.all.append(segment)
        for segment, following in zip(segments.all, segments.all[1:], strict=False):
            segment.end_offset = following.base_offset
        if not segments.all:
            base_offset = max(start_offset, local_start)
            if base_offset != self.checkpoints.local_start_offset:
                self._write_start(start_offset, base_offset)
            segment = segments.new_segment(base_offset)
            segment.create()
            segments.all.append(segment)

    def _write_start(self, log_start_offset: int, local_start_offset: int) -> None:
        """Write the log's start before its first file, or the offsets below would seem missing."""
        path = self.segments.directory / START_OFFSET_FILE
        write_checkpoint(path, [[log_start_offset, local_start_offset]])

    def recover(self) -> ProducerState:
        """Bring segments, epochs and producers to the log end offset."""
        segments = self.segments
        active = segments.active
        is_clean = self.checkpoints.clean_end is not None and self.checkpoints.clean_end[1:] == [
            active.base_offset,
            active.size_bytes,
        ]
        if is_clean and self.checkpoints.clean_end is not None:
            active.end_offset = self.checkpoints.clean_end[0]
            first_scanned = len(segments.all)
        else:
            first_scanned = segments.floor_index(self.recovery_point)
        for segment in segments.all[:first_scanned]:
            self._adopt(segment)
            if self.checkpoints.epochs is None:
                self._read_epochs(segment)
        if first_scanned == len(segments.all):
            return self._producers_at(active.end_offset)
        return self._scan_from(first_scanned)

    def _adopt(self, segment: LogSegment) -> None:
        seal = self.checkpoints.seal_of(segment)
        if seal is not None:
            segment.adopt(seal)
            return
        known = self.checkpoints.sizes_of(segment)
        is_sealed = segment is not self.segments.active
        is_other = bool(known) and (segment.end_offset, segment.size_bytes) not in known
        if is_sealed and (is_other or segment.size_bytes == 0):
            for end_offset, size_bytes in known:
                if size_bytes == segment.size_bytes and end_offset < segment.end_offset:
                    raise _missing(segment.directory, end_offset, segment.end_offset)
            raise CorruptLog(
                f"segment {segment.path} holds {segment.size_bytes} bytes, but was sealed with "
                + (f"{known[-1][1]} up to offset {known[-1][0]}" if known else "some")
            )
        if segment.size_bytes:
            segment.indexes = rebuild_indexes(
                self.segments, segment, expiration_ms=self.expiration_ms
            )
            if is_sealed and not known and not self._may_have_gaps:
                end_offset = segment.whole_below(segment.end_offset)
                if end_offset != segment.end_offset:
                    raise _missing(segment.directory, end_offset, segment.end_offset)

    @property
    def _may_have_gaps(self) -> bool:
        was_compacted = (self.segments.directory / CLEANER_OFFSET_FILE).exists()
        return was_compacted or "compact" in self.segments.config.cleanup_policy

    def _read_epochs(self, segment: LogSegment) -> None:
        for _, _, _, header in scan_file(segment.path, segment.size_bytes):
            if header.partition_leader_epoch > self.epochs.latest:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _scan_from(self, first: int) -> ProducerState:
        segments = self.segments
        every = segments.all
        producers = self._producers_at(every[first].base_offset)
        verify_from = _NOTHING_VERIFIED if self.is_clean else self.recovery_point
        for index in range(first, len(every)):
            segment = every[index]
            producers.end_offset = segment.base_offset
            if index > first:
                write_snapshot(segments.directory, producers)
            size_bytes, is_vouched = segment.size_bytes, self._is_vouched(segment)
            scan_segment(
                segment,
                size_bytes,
                producers=producers,
                epochs=self.epochs,
                verify_from=verify_from,
                config=segments.config,
                now_ms=self.now_ms,
            )
            following = every[index + 1] if index + 1 < len(every) else None
            is_whole = segment.size_bytes == size_bytes
            if is_whole and following is not None and is_vouched:
                # A compacted segment may end before the next begins.
                segment.end_at(following.base_offset)
            elif following is not None and segment.end_offset != following.base_offset:
                is_whole = False
            if not is_whole:
                self._cut_after(index, size_bytes)
                break
            if following is not None:
                segment.write_indexes()
                segment.release()
                segments.seal_file.require_rewrite()
        if segments.end_offset < self.recovery_point:
            raise self._lost(segments.active, segments.active.size_bytes)
        return producers

    def _cut_after(self, index: int, size_bytes: int) -> None:
        segments = self.segments
        segment = segments.all[index]
        if segment.end_offset < self.recovery_point:
            raise self._lost(segment, size_bytes)
        if segment.size_bytes < size_bytes:
            descriptor = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.ftruncate(descriptor, segment.size_bytes)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        segments.remove_last(len(segments.all) - index - 1)

    def _lost(self, segment: LogSegment, size_bytes: int) -> CorruptLog:
        """Describe a segment of this size that should reach further."""
        end_offset = segment.end_offset
        if segment.size_bytes < size_bytes:
            where = f"{segment.path} is damaged at position {segment.size_bytes} of {size_bytes}"
        else:
            following = segment_path(segment.directory, end_offset, LOG_SUFFIX)
            where = f"{segment.path} has lost its end, or {following} is missing"
        return CorruptLog(
            f"{self.segments.partition} was flushed up to offset {self.recovery_point}, but its "
            f"batches are whole only up to offset {end_offset}: {where}"
        )

    def _is_vouched(self, segment: LogSegment) -> bool:
        return any(size == segment.size_bytes for _, size in self.checkpoints.sizes_of(segment))

    def _producers_at(self, offset: int) -> ProducerState:
        return producers_at(
            self.segments.directory,
            self.segments.all,
            offset,
            expiration_ms=self.expiration_ms,
            now_ms=self.now_ms,
        )

    def restart_if_behind(self, start_offset: int, producers: ProducerState) -> ProducerState:
        """Restart empty at the log start offset if all local records are below it."""
        segments = self.segments
        if segments.end_offset >= start_offset:
            return producers
        write_checkpoint(segments.directory / RECOVERY_POINT_FILE, [[segments.start_offset]])
        self._write_start(start_offset, start_offset)
        self.recovery_point = start_offset
        (segments.directory / CLEANER_OFFSET_FILE).unlink(missing_ok=True)
        self.checkpoints.cleaned_up_to = 0
        segment = segments.new_segment(start_offset)
        segment.create()
        segments.all.append(segment)
        segments.remove_first(len(segments.all) - 1)
        sync_directory(segments.directory)
        self.epochs.clear()
        return ProducerState(end_offset=start_offset, expiration_ms=self.expiration_ms)


def _missing(directory: Path, offset: int, found: int) -> CorruptLog:
    """Return the error for a log that has no file between two offsets."""
    return CorruptLog(
        f"segment {segment_path(directory, offset, LOG_SUFFIX)} is missing: the log continues at "
        f"offset {offset}, and the next file begins at {found}"
    )


def scan_segment(
    segment: LogSegment,
    size_bytes: int,
    *,
    producers: ProducerState,
    epochs: LeaderEpochs | None,
    verify_from: int,
    config: TopicConfig,
    now_ms: int,
) -> None:
    """Rebuild the segment's indexes from its file, up to the first damaged batch.

    ``size_bytes`` and ``end_offset`` of the segment are then the end of the good batches. Batches
    at ``verify_from`` and above must pass their CRC. ``producers`` (at the segment's
    base offset) and ``epochs`` are advanced.
    """
    segment.start_scan()
    was_compacted = (segment.directory / CLEANER_OFFSET_FILE).exists()
    may_have_gaps = was_compacted or "compact" in config.cleanup_policy
    latest_epoch: int = NO_LEADER_EPOCH
    with closing(scan_file(segment.path, size_bytes)) as batches:
        for buffer, at, position, header in batches:
            base_offset, epoch = header.base_offset, header.partition_leader_epoch
            if not _continues(segment, header):
                break
            if base_offset >= verify_from:
                # The CRC covers neither field. The batches around a torn header expose it.
                is_gap = base_offset != segment.end_offset and not may_have_gaps
                is_older = NO_LEADER_EPOCH < epoch < latest_epoch
                if is_gap or is_older or not _has_right_crc(buffer, at, header):
                    break
            span = BatchSpan(
                position,
                header.size_bytes,
                base_offset,
                header.last_offset,
                header.max_timestamp_ms,
            )
            segment.note_scanned(span, interval_bytes=config.index_interval_bytes)
            latest_epoch = max(latest_epoch, epoch)
            if epochs is not None and epoch > epochs.latest:
                epochs.assign(epoch, base_offset)
            for aborted in note_batch(producers, buffer, at, header, now_ms=now_ms):
                segment.indexes.txn.append(aborted)
    producers.end_offset = segment.end_offset


def rebuild_indexes(
    segments: LogSegments, segment: LogSegment, *, expiration_ms: int
) -> SegmentIndexes:
    """Rebuild a segment's indexes from its file, and write them if it is sealed.

    Raises ``CorruptLog`` if the file has changed since it was last flushed.
    """
    size_bytes, end_offset = segment.size_bytes, segment.end_offset
    now_ms = segments.clock_ms()
    index = segments.all.index(segment)
    producers = producers_at(
        segments.directory,
        segments.all[: index + 1],
        segment.base_offset,
        expiration_ms=expiration_ms,
        now_ms=now_ms,
    )
    scan_segment(
        segment,
        size_bytes,
        producers=producers,
        epochs=None,
        verify_from=_NOTHING_VERIFIED,
        config=segments.config,
        now_ms=now_ms,
    )
    valid_size_bytes = segment.size_bytes
    segment.size_bytes = size_bytes
    segment.end_at(end_offset)
    if valid_size_bytes != size_bytes:
        segment.forget_indexes()
        raise CorruptLog(
            f"segment {segment.path} is damaged at position {valid_size_bytes} of {size_bytes}"
        )
    indexes = segment.indexes
    if segment is not segments.active:
        segment.write_indexes()
        segments.seal_file.require_rewrite()
    return indexes


def _continues(segment: LogSegment, header: BatchHeader) -> bool:
    return (
        header.base_offset >= segment.end_offset
        and header.last_offset_delta >= 0
        and segment.has_room_for(header.last_offset)
    )


def _has_right_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    try:
        check_crc(buffer, position, header)
    except CorruptRecordBatch:
        return False
    return True


def read_checkpoints(directory: Path) -> Checkpoints:
    """Return the content of the checkpoint files; an unreadable file counts as missing."""
    start_file = directory / START_OFFSET_FILE
    start = _rows(start_file)
    point = _rows(directory / RECOVERY_POINT_FILE)
    clean = _rows(directory / CLEAN_SHUTDOWN_FILE)
    cleaned = _rows(directory / CLEANER_OFFSET_FILE) or [[0]]
    seals, seals_are_whole = read_seals(directory / SEGMENT_FILE)
    return Checkpoints(
        log_start_offset=start[0][0] if start else 0,
        local_start_offset=start[0][1] if start else None if start_file.exists() else 0,
        recovery_point=point[0][0] if point else None,
        epochs=_rows(directory / LEADER_EPOCH_FILE),
        seals=seals,
        seals_are_whole=seals_are_whole,
        clean_end=clean[0] if clean else None,
        cleaned_up_to=cleaned[0][0],
    )


def _rows(path: Path) -> list[list[int]] | None:
    try:
        return read_checkpoint(path)
    except CorruptCheckpoint:
        # All these files save work or can be rebuilt from the batches, except the start offset,
        # which is also in the metadata store.
        return None


def _clear_directory(directory: Path) -> list[int]:
    """Remove the incomplete files of a crash. Returns the segments' base offsets, ascending."""
    found: dict[int, set[str]] = {}
    for name in os.listdir(directory):  # noqa: PTH208 - names are all that is needed
        if name.endswith(TEMPORARY_SUFFIX):
            (directory / name).unlink()
            continue
        parsed = parse_segment_name(name)
        if parsed is not None:
            found.setdefault(parsed[0], set()).add(parsed[1])
    base_offsets = sorted(offset for offset, suffixes in found.items() if LOG_SUFFIX in suffixes)
    for offset, suffixes in found.items():
        if LOG_SUFFIX not in suffixes and suffixes != {SNAPSHOT_SUFFIX}:
            remove_segment_files(directory, offset)
    return base_offsets
