"""The segments of one log on this node's disk: write, find, roll, truncate, remove.

``LocalLog`` decides what may be appended, read or removed. A write that fails for lack of
space is undone. If the undo fails, or another write or fsync fails, the content of the disk is
unknown: the log goes offline. Opening it again recovers it (``unflushed_segments``).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog_core.config import TopicConfig
from tidelog_core.errors import StorageError, UnknownTopicOrPartition
from tidelog_core.log.checkpoint import OUT_OF_ROOM, sync_directory
from tidelog_core.log.paths import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_FILE,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.segments import time_index
from tidelog_core.log.segments.open_files import OpenFiles
from tidelog_core.log.segments.seal_file import SealFile, SealWrite
from tidelog_core.log.segments.segment import LogSegment, NewBatch
from tidelog_core.log.segments.segment_indexes import SealRecord, SegmentIndexes
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.model import FileSlice, TopicPartition
from tidelog_core.records.batch import Buffer

OPEN_SEALED_COUNT_MAX = 2  # sealed segments of one log whose files are kept open for readers


class LogSegments:
    """The segments, ascending and without a gap; the last one is active."""

    __slots__ = (
        "_is_deleted",
        "_is_offline",
        "_on_offline",
        "_open_files",
        "_open_sealed",
        "_rebuild",
        "all",
        "clock_ms",
        "config",
        "cut_count",
        "directory",
        "partition",
        "seal_file",
    )

    def __init__(
        self,
        directory: Path,
        partition: TopicPartition,
        *,
        config: TopicConfig,
        clock_ms: Callable[[], int],
        rebuild: Callable[[LogSegments, LogSegment], SegmentIndexes],
        open_files: OpenFiles | None = None,
        on_offline: Callable[[], None] | None = None,
    ) -> None:
        """``on_offline`` is called each time the log goes offline, on the thread that found out."""
        self.directory = directory
        self.partition = partition
        self.config = config
        self.clock_ms = clock_ms
        self.all: list[LogSegment] = []  # never empty once the log is open
        self.seal_file = SealFile(directory / SEGMENT_FILE)
        self.cut_count = 0  # how often the end was cut: a sealed segment may have changed then
        self._rebuild = rebuild
        self._open_files = open_files
        self._open_sealed: list[LogSegment] = []
        self._on_offline = on_offline
        self._is_offline = False
        self._is_deleted = False

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        return self.all[-1]

    @property
    def end_offset(self) -> int:
        """The log end offset: the offset of the next record."""
        return self.all[-1].end_offset

    @property
    def start_offset(self) -> int:
        """The base offset of the first segment."""
        return self.all[0].base_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self.all)

    @property
    def is_offline(self) -> bool:
        """Whether the disk has failed, or the log was deleted: its content is unknown."""
        return self._is_offline

    def check_online(self) -> None:
        """Raise ``StorageError`` if the log is offline, another error if it was deleted."""
        if self._is_deleted:
            raise UnknownTopicOrPartition(f"{self.partition} was deleted")
        if self._is_offline:
            raise StorageError(f"{self.partition} is offline on this node: its disk has failed")

    def go_offline(self) -> None:
        """Refuse everything from now on: the disk has failed."""
        self._is_offline = True
        if self._on_offline is not None:
            self._on_offline()

    def go_away(self) -> None:
        """Refuse everything from now on: the log was deleted."""
        self._is_deleted = self._is_offline = True
        # Break the references back to the log, so that it is freed with its last user.
        self._on_offline = None
        for segment in self.all:
            segment.forget_log()

    @contextmanager
    def storage_errors(self, action: str, *, is_append: bool = False) -> Iterator[None]:
        """Turn an ``OSError`` within into ``StorageError``.

        The log goes offline if an append fails, unless space or descriptors were missing.
        """
        try:
            yield
        except OSError as error:
            if is_append and error.errno not in OUT_OF_ROOM:
                self.go_offline()
            raise self._storage_error(action, error) from error

    def new_segment(self, base_offset: int) -> LogSegment:
        """Return a segment object; it is not one of the log's yet."""
        return LogSegment(
            self.directory,
            base_offset,
            created_ms=self.clock_ms(),
            rebuild=lambda segment: self._rebuild(self, segment),
            open_files=self._open_files,
        )

    def append(self, content: Buffer, batches: list[NewBatch]) -> None:
        """Write the batches to the active segment: all of them or none.

        Raises ``StorageError``; the log is as before, or offline.
        """
        active = self.all[-1]
        if active.size_bytes == 0:
            active.created_ms = self.clock_ms()
        try:
            active.append(content, batches, interval_bytes=self.config.index_interval_bytes)
        except OSError as error:
            try:
                active.cut_failed_write()
                is_cut = True
            except OSError:
                is_cut = False
            if not is_cut or error.errno not in OUT_OF_ROOM:
                self.go_offline()
            raise self._storage_error("append", error) from error

    def complete(self, base_offset: int, batch: Buffer, *, is_durable: bool) -> bool:
        """Write the records of a batch whose header is there; return false if it is not.

        ``is_durable``: the disk has them on return. Raises ``StorageError``, and goes offline then.
        """
        if not self.start_offset <= base_offset < self.end_offset:
            return False
        segment = self.all[self.floor_index(base_offset)]
        self.note_open(segment)
        try:
            return segment.complete(base_offset, batch, is_durable=is_durable)
        except OSError as error:
            self.go_offline()
            raise self._storage_error("append", error) from error

    def should_roll(self, size_bytes: int, *, last_offset: int, max_timestamp_ms: int) -> bool:
        """Whether batches of that size, offset and time belong into a new segment.

        Source: ``LogSegment.shouldRoll`` of Apache Kafka.
        """
        active, config = self.all[-1], self.config
        if active.size_bytes == 0:
            return not active.has_room_for(last_offset)
        if active.size_bytes + size_bytes > config.segment_bytes:
            return True
        first_timestamp_ms = active.first_timestamp_ms
        if first_timestamp_ms is not None and first_timestamp_ms >= 0:
            waited_ms = max_timestamp_ms - first_timestamp_ms
        else:
            waited_ms = self.clock_ms() - active.created_ms
        if waited_ms > self.segment_ms(active):
            return True
        if active.entry_count * time_index.ENTRY_SIZE_BYTES >= config.segment_index_bytes:
            return True
        return not active.has_room_for(last_offset)

    def segment_ms(self, segment: LogSegment) -> int:
        """Return how old the segment may become before it is sealed.

        ``segment.ms``, or ``max.compaction.lag.ms`` if that is less, less the segment's
        own part of ``segment.jitter.ms``.
        """
        config = self.config
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            # Compaction reads sealed segments only.
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        jitter_ms = min(config.segment_jitter_ms, segment_ms)
        if jitter_ms == 0:
            return segment_ms
        # Seeded with the segment's name, so every call returns the same.
        seed = f"{self.partition}/{segment.base_offset}"
        return segment_ms - random.Random(seed).randrange(jitter_ms)

    def roll(self) -> LogSegment:
        """Seal the active segment and start a new one at the log end offset.

        Does nothing if the active segment is empty. Raises ``StorageError``; the
        active segment is unchanged then, or the log is offline.
        """
        active = self.all[-1]
        if active.size_bytes == 0 and active.base_offset == active.end_offset:
            return active
        segment = self.new_segment(active.end_offset)
        with self.storage_errors("roll", is_append=True):
            seal = active.write_indexes()
            segment.create()
        active.seal_writes()
        active.release()
        self.seal_file.add(seal)
        self.all.append(segment)
        return segment

    def floor_index(self, offset: int) -> int:
        """Return the index of the last segment that starts at or before ``offset``."""
        segments = self.all
        if offset >= segments[-1].base_offset:
            return len(segments) - 1
        return max(0, bisect_right(segments, offset, key=_base_offset) - 1)

    def read(
        self, offset: int, *, max_bytes: int, up_to: int, min_one_batch: bool
    ) -> tuple[FileSlice, int, int] | None:
        """Return the bytes from the batch with ``offset`` on, and their start and end offsets.

        The start is that batch's base offset, the end is that of ``LogRead``.

        Returns ``None`` if no batch is in ``[offset, up_to)``. The bytes belong to one segment and
        end before the first batch that reaches ``up_to``. The last batch may be cut, the first
        never: without ``min_one_batch`` it is left out if it does not fit, because clients treat
        bytes without a whole batch as a broker's fault.
        """
        for index in range(self.floor_index(offset), len(self.all)):
            segment = self.all[index]
            if segment.base_offset >= up_to:
                return None
            self.note_open(segment)
            try:
                located = segment.locate(max(offset, segment.base_offset))
                if located is not None:  # A compacted segment may hold nothing at its end.
                    return self._slice(segment, located, max_bytes, up_to, min_one_batch)
            except OSError as error:
                raise self._storage_error("read", error) from error
        return None

    def file_ranges(self, base_offset: int, end_offset: int) -> list[tuple[Path, int, int]]:
        """Return the files' bytes ``[start, end)`` that hold ``[base_offset, end_offset)``."""
        found: list[tuple[Path, int, int]] = []
        for index in range(self.floor_index(base_offset), len(self.all)):
            segment = self.all[index]
            if segment.base_offset >= end_offset:
                break
            self.note_open(segment)
            located = segment.locate(max(base_offset, segment.base_offset))
            if located is None:
                continue
            start, end = located[0], segment.position_of(end_offset)
            if end > start:
                found.append((segment.path, start, end))
        return found

    def pieces(self, base_offset: int, end_offset: int, size_bytes: int) -> list[int]:
        """Return the ends of pieces of about this size that ``[base_offset, end_offset)`` has."""
        found: list[int] = []
        while base_offset < end_offset:
            read = self.read(
                base_offset, max_bytes=size_bytes, up_to=end_offset, min_one_batch=True
            )
            # Without progress the rest has no batch, or one that no index entry follows.
            end = end_offset if read is None else read[2]
            base_offset = end if end > base_offset else end_offset
            found.append(base_offset)
        return found

    def _slice(
        self,
        segment: LogSegment,
        located: tuple[int, int],
        max_bytes: int,
        up_to: int,
        min_one_batch: bool,
    ) -> tuple[FileSlice, int, int] | None:
        position, base_offset = located
        available = segment.position_of(up_to) - position
        if available <= 0:
            return None
        end_offset = min(up_to, segment.end_offset)
        size_bytes = min(available, max_bytes)
        if size_bytes < available:
            recent = segment.recent_end(position, position + size_bytes)
            if recent is not None and recent[0] > position:
                # Without the cut batch behind: a reader would drop it and fetch it again.
                size_bytes, end_offset = recent[0] - position, recent[1]
                return FileSlice(segment.reader, position, size_bytes), base_offset, end_offset
            first_size_bytes = segment.batch_size_bytes(position)
            if size_bytes < first_size_bytes:
                if not min_one_batch:
                    return None
                size_bytes = first_size_bytes
            end_position = position + size_bytes
            known = segment.indexes.offset.offset_at_or_before(end_position)
            end_offset = max(base_offset, known)
        return FileSlice(segment.reader, position, size_bytes), base_offset, end_offset

    def collect_aborted(
        self, start_offset: int, slice_end: tuple[LogSegment, int], up_to: int
    ) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that overlap a slice read from ``start_offset``.

        ``slice_end`` is the slice's segment and end position. The result may have transactions
        behind the slice but below ``up_to``; readers skip those.
        """
        segment, position = slice_end
        with self.storage_errors("read"):
            bound = segment.indexes.offset.offset_at_or_after(position)
            end_offset = min(up_to, segment.end_offset if bound is None else bound)
            found: list[AbortedTransaction] = []
            for index in range(self.floor_index(start_offset), len(self.all)):
                if self.all[index].collect_aborted(start_offset, end_offset, found):
                    break
            return tuple(found)

    def seals(self) -> list[SealRecord]:
        """Return the seal records of all segments that have one."""
        return [segment.seal for segment in self.all if segment.seal is not None]

    def begin_seal_write(self) -> SealWrite | None:
        """Return the write that the seal file needs, if it needs any."""
        if not self.seal_file.is_dirty:
            return None
        return self.seal_file.begin_write(len(self.all), self.seals)

    def put_before(self, segments: list[LogSegment]) -> None:
        """Put sealed segments, whose files are there, before the first one."""
        self.all[:0] = segments
        self.seal_file.require_rewrite()

    def remove_first(self, count: int) -> int:
        """Remove the first segments, oldest first. Returns the bytes freed.

        Not durable on return: the caller has stored durably that they are removed.
        """
        removed, self.all[:count] = self.all[:count], []
        return self._remove(removed)

    def remove_last(self, count: int, *, is_durable: bool = True) -> None:
        """Remove the last segments, newest first.

        Durably, unless the caller sees to it that they do not come back.
        """
        if count == 0:
            return
        removed, self.all[-count:] = self.all[-count:], []
        self.seal_file.require_rewrite()
        self._remove(reversed(removed))
        if is_durable:
            with self.storage_errors("truncation"):
                sync_directory(self.directory)

    def replace(self, replaced: range, segment: LogSegment) -> None:
        """Replace the sealed segments at these indexes with one whose files are already there."""
        removed = self.all[replaced.start : replaced.stop]
        self.all[replaced.start : replaced.stop] = [segment]
        for old in removed:
            if old in self._open_sealed:
                self._open_sealed.remove(old)
            old.close()
        self.seal_file.require_rewrite()

    def first_timestamp_ms(self, segment: LogSegment) -> int | None:
        """Return the timestamp of a segment's first batch without keeping its file open."""
        is_open = segment in self._open_sealed
        timestamp_ms = segment.first_timestamp_ms
        if not is_open and segment is not self.all[-1]:
            segment.release()
        return timestamp_ms

    def note_open(self, segment: LogSegment) -> None:
        """Note that a segment is being read; close the sealed one read longest ago."""
        if segment is self.all[-1]:
            return
        opened = self._open_sealed
        if opened and opened[-1] is segment:
            return
        if segment in opened:
            opened.remove(segment)
        elif len(opened) == OPEN_SEALED_COUNT_MAX:
            opened.pop(0).release()
        opened.append(segment)

    def _remove(self, segments: Iterator[LogSegment] | list[LogSegment]) -> int:
        freed_bytes = 0
        for segment in segments:
            if segment in self._open_sealed:
                self._open_sealed.remove(segment)
            freed_bytes += segment.size_bytes
            segment.close()
            with self.storage_errors("removal of a segment"):
                remove_segment_files(self.directory, segment.base_offset)
        return freed_bytes

    def close(self) -> None:
        """Close all files."""
        for segment in self.all:
            segment.close()
        self._open_sealed.clear()

    def _storage_error(self, action: str, error: OSError) -> StorageError:
        problem = f"{action} of {self.partition} in {self.directory} failed: {error}"
        return StorageError(problem, errno=error.errno)


def remove_segment_files(directory: Path, base_offset: int) -> None:
    """Unlink a segment's files; open descriptors of them stay valid. Raises ``OSError``.

    The producers' snapshot at the base offset is left: it is the end of the segment
    before, too.
    """
    for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        segment_path(directory, base_offset, suffix).unlink(missing_ok=True)


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset
