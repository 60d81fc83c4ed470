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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.config import TopicConfig
from tidelog_core.log.checkpoint import (
    sync_directory,
    write_checkpoint,
)
from tidelog_core.log.cleaned_segments import finish_swaps
from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.paths import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LOG_SUFFIX,
    RECOVERY_POINT_FILE,
    SNAPSHOT_SUFFIX,
    START_OFFSET_FILE,
    TEMPORARY_SUFFIX,
    parse_segment_name,
    segment_path,
)
from tidelog_core.log.producers.producer_snapshots import (
    producers_at,
    remove_stray_snapshots,
    snapshots_among,
    write_snapshot,
)
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.recovery.index_rebuild import NOTHING_VERIFIED, rebuild_indexes, scan_segment
from tidelog_core.log.recovery.log_checkpoints import Checkpoints, read_checkpoints
from tidelog_core.log.segments.batch_scan import scan_file
from tidelog_core.log.segments.log_segments import LogSegments, remove_segment_files
from tidelog_core.log.segments.open_files import OpenFiles
from tidelog_core.log.segments.segment import LogSegment
from tidelog_core.log.segments.segment_indexes import SegmentIndexes
from tidelog_core.log.values import CorruptLog
from tidelog_core.model import TopicPartition


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
        if is_new:
            directory.mkdir(parents=True, exist_ok=True)
        checkpoints = read_checkpoints(directory)
        start_offset = max(checkpoints.log_start_offset, log_start_offset)
        # Listed once: four steps need the names, and a start opens thousands of logs.
        names = finish_swaps(directory)
        opening = _Opening(segments, checkpoints, is_clean, producer_id_expiration_ms, names)
        base_offsets = _clear_directory(directory, names)
        opening.load_segments(base_offsets, start_offset)
        producers = opening.recover()
        producers = opening.restart_if_behind(start_offset, producers)
        epochs = opening.epochs
        epochs.truncate_from_end(segments.end_offset + 1)
        epochs.truncate_from_start(start_offset)
        remove_stray_snapshots(
            directory,
            opening.snapshots,
            keep={segments.end_offset, *(s.base_offset for s in segments.all)},
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
    """The steps of opening a log, and what they have found so far."""

    def __init__(
        self,
        segments: LogSegments,
        checkpoints: Checkpoints,
        is_clean: bool,
        expiration_ms: int,
        names: Iterable[str],
    ) -> None:
        """``names`` are those in the log's directory."""
        self.segments = segments
        self.snapshots = set(snapshots_among(names))  # those that there may be
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
            self._take_unread(segment)
            if self.checkpoints.epochs is None:
                self._read_epochs(segment)
        if first_scanned == len(segments.all):
            return self._producers_at(active.end_offset)
        return self._scan_from(first_scanned)

    def _take_unread(self, segment: LogSegment) -> None:
        """Take a segment by its seal record; without one, rebuild its indexes from the file."""
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
        """Whether compaction may have removed whole batches of the log."""
        was_compacted = (self.segments.directory / CLEANER_OFFSET_FILE).exists()
        return was_compacted or "compact" in self.segments.config.cleanup_policy

    def _read_epochs(self, segment: LogSegment) -> None:
        """Note the leader epochs of the segment's batches."""
        for _, _, _, header in scan_file(segment.path, segment.size_bytes):
            if header.partition_leader_epoch > self.epochs.latest:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _scan_from(self, first: int) -> ProducerState:
        """Read the segments from an index on, cut the log where a batch is damaged.

        Returns the producers' state at the log's end.
        """
        segments = self.segments
        every = segments.all
        producers = self._producers_at(every[first].base_offset)
        verify_from = NOTHING_VERIFIED if self.is_clean else self.recovery_point
        for index in range(first, len(every)):
            segment = every[index]
            producers.end_offset = segment.base_offset
            if index > first:
                write_snapshot(segments.directory, producers)
                self.snapshots.add(producers.end_offset)
            size_bytes, has_sealed_size = segment.size_bytes, self._has_sealed_size(segment)
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
            if is_whole and following is not None and has_sealed_size:
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
        """Truncate the segment's file, of this size, to its good batches; remove later segments."""
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

    def _has_sealed_size(self, segment: LogSegment) -> bool:
        """Return whether the segment was sealed with the size of its file."""
        return any(size == segment.size_bytes for _, size in self.checkpoints.sizes_of(segment))

    def _producers_at(self, offset: int) -> ProducerState:
        """Return the producers' state at an offset, from snapshots and batches."""
        return producers_at(
            self.segments.directory,
            self.segments.all,
            offset,
            expiration_ms=self.expiration_ms,
            now_ms=self.now_ms,
            snapshots=self.snapshots,
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


def _clear_directory(directory: Path, names: Iterable[str]) -> list[int]:
    """Remove the incomplete files of a crash. Returns the segments' base offsets, ascending."""
    found: dict[int, set[str]] = {}
    for name in names:
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
