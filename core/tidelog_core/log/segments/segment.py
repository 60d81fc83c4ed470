"""One segment of a log: a file of record batches back to back, and its indexes.

Only the last segment of a log, the active one, is written to. Its size and end offset in
memory are authoritative: bytes above ``size_bytes`` in the file (of a failed write) do not
count, and the next write overwrites them.

The last appended batches are found in memory, any other offset through the sparse offset
index and the batch headers behind its entry.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import write_fully
from tidelog_core.log.paths import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.segments import offset_index
from tidelog_core.log.segments.open_files import OpenFiles
from tidelog_core.log.segments.segment_indexes import SealRecord, SegmentIndexes
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.model import NO_TIMESTAMP, ReadableFile
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD, Buffer

RECENT_BATCH_COUNT_MAX = 64  # batches of the tail whose positions are kept in memory
SCAN_CHUNK_BYTES = 16 * 1024

# The header fields that a seek needs: base offset, batch length, last offset delta, max timestamp.
_SPAN = Struct(">qi11xi8xq")


class BatchSpan(NamedTuple):
    """A batch's place in a segment file, and its offsets."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int  # inclusive
    max_timestamp_ms: int


class NewBatch(NamedTuple):
    """A batch to append: its position in the buffer, and its header."""

    position: int
    base_offset: int
    next_offset: int
    max_timestamp_ms: int


class LogSegment:
    """One segment. ``end_offset`` is exclusive: the log end offset while it is active."""

    __slots__ = (
        "_bytes_since_entry",
        "_file",
        "_first_timestamp_ms",
        "_indexes",
        "_is_unflushed",
        "_is_writable",
        "_open_files",
        "_rebuild",
        "_recent_offsets",
        "_recent_positions",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "entry_count",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "path",
        "seal",
        "size_bytes",
        "was_used",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        created_ms: int,
        rebuild: Callable[[LogSegment], SegmentIndexes],
        open_files: OpenFiles | None = None,
    ) -> None:
        """``open_files``, if given, limits how many files are open."""
        self.directory = directory
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, LOG_SUFFIX)
        self.created_ms = created_ms  # when its first batch was appended, as far as is known
        self.end_offset = base_offset
        self.size_bytes = 0
        self.entry_count = 0  # of the offset index; known without loading it
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.seal: SealRecord | None = None  # None: no index file of this segment is trusted
        self._rebuild = rebuild
        self._indexes: SegmentIndexes | None = None  # None: not loaded
        self._first_timestamp_ms: int | None = None  # None: not read yet, or the segment is empty
        self._bytes_since_entry = 0
        # One descriptor for reading and appending. A user of it holds the object: ``let_go`` may be
        # called at any time, on any thread.
        self._file: ReadableFile | None = None
        self._is_writable = False  # whether the file is open for appending
        self._open_files = open_files
        self._is_unflushed = False  # whether something may be appended that is not flushed
        self.was_used = False  # the file, since the last check by ``OpenFiles``
        # The batches appended last, without a gap between their offsets; ends with the last one.
        self._recent_offsets: list[int] = []
        self._recent_positions: list[int] = []

    def create(self) -> None:
        """Make the (empty) file. Its name is durable after the next flush."""
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        self._indexes = SegmentIndexes.empty(self.base_offset)

    def adopt(self, seal: SealRecord) -> None:
        """Take the facts of a seal record that fits the file."""
        self.seal = seal
        self.end_offset, self.size_bytes = seal.end_offset, seal.size_bytes
        self.entry_count = seal.offset_index_size_bytes // offset_index.ENTRY_SIZE_BYTES
        self.max_timestamp_ms = seal.max_timestamp_ms
        self.max_timestamp_offset = seal.max_timestamp_offset

    @property
    def indexes(self) -> SegmentIndexes:
        """The indexes, loaded on first use; rebuilt if their files cannot be trusted."""
        indexes = self._indexes
        if indexes is None:
            if self.size_bytes == 0:
                indexes = SegmentIndexes.empty(self.base_offset)
            elif self.seal is not None:
                indexes = SegmentIndexes.load(self.directory, self.seal)
            if indexes is None:
                indexes = self._rebuild(self)
            self._indexes = indexes
        return indexes

    @indexes.setter
    def indexes(self, indexes: SegmentIndexes) -> None:
        self._indexes = indexes

    def forget_indexes(self) -> None:
        """Drop indexes that turned out wrong; the next use rebuilds them."""
        self._indexes = None

    def collect_aborted(
        self, start_offset: int, end_offset: int, into: list[AbortedTransaction]
    ) -> bool:
        """Add the aborted transactions that overlap ``[start_offset, end_offset)``.

        Returns whether all are found, see ``TxnIndex.collect``. Loads nothing if the seal record
        counts no aborted transaction: a reader calls this for all segments behind its own.
        """
        seal = self.seal
        if self._indexes is None and seal is not None and seal.txn_index_size_bytes == 0:
            return False
        return self.indexes.txn.collect(start_offset, end_offset, into)

    @property
    def reader(self) -> ReadableFile:
        """The file, open for reading."""
        self.was_used = True
        return self._file or self._open(os.O_RDONLY)

    def _open(self, flags: int) -> ReadableFile:
        file = self._file = ReadableFile(self.path, flags=flags)
        self._is_writable = flags != os.O_RDONLY
        if self._open_files is not None:
            self._open_files.opened(self)
        return file

    def let_go(self) -> None:
        """Close the file; it is opened again on use."""
        self._file, self._is_writable = None, False

    def note_flushed(self) -> None:
        """Note that all that was appended is flushed."""
        self._is_unflushed = False
        if self._open_files is not None:
            self._open_files.unpin(self)

    def has_room_for(self, last_offset: int) -> bool:
        """Whether the offset's distance from the base offset fits into an index entry."""
        return last_offset - self.base_offset <= offset_index.RELATIVE_OFFSET_MAX

    def append(self, content: Buffer, batches: list[NewBatch], *, interval_bytes: int) -> None:
        """Write the batches, as ``write_fully`` does, and index them.

        Raises ``OSError`` and has then changed nothing but, perhaps, bytes past
        ``size_bytes``, which ``cut_failed_write`` removes.
        """
        if not self._is_unflushed:
            if self._open_files is not None:
                self._open_files.pin(self)  # Keeps the file open until it is flushed.
            self._is_unflushed = True
        file = self._file
        if file is None or not self._is_writable:
            file = self._open(os.O_RDWR | os.O_CREAT)
        indexes = self.indexes
        size_bytes = self.size_bytes
        write_fully(file.fileno(), content, size_bytes)  # type: ignore[arg-type]
        self.seal = None
        end_offset = self.end_offset
        end_position = size_bytes + len(content)
        for index, (position, base_offset, next_offset, timestamp_ms) in enumerate(batches):
            if base_offset != end_offset:
                self._forget_recent()
            self._note(indexes, size_bytes + position, base_offset, timestamp_ms, interval_bytes)
            following = batches[index + 1].position if index + 1 < len(batches) else len(content)
            self._bytes_since_entry += following - position
            end_offset = next_offset
        self.size_bytes = end_position
        self.end_offset = end_offset

    def complete(self, base_offset: int, batch: Buffer, *, is_durable: bool) -> bool:
        """Write the records of a batch whose header is in the file; return false if it is not.

        Raises ``OSError``.
        """
        located = self.locate(base_offset)
        if located is None or located[1] != base_offset:
            return False
        position, size_bytes = located[0], len(batch)
        with memoryview(batch) as view:
            header = os.pread(self.reader.fileno(), HEADER_SIZE, position)
            if position + size_bytes > self.size_bytes or header != view[:HEADER_SIZE]:
                return False
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                write_fully(descriptor, view[HEADER_SIZE:], position + HEADER_SIZE)
                if is_durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return True

    def note_scanned(self, span: BatchSpan, *, interval_bytes: int) -> None:
        """Index a batch that is in the file already. Recovery calls this in log order."""
        if span.base_offset != self.end_offset:
            self._forget_recent()
        self._note(
            self.indexes, span.position, span.base_offset, span.max_timestamp_ms, interval_bytes
        )
        self._bytes_since_entry += span.size_bytes
        self.size_bytes = span.position + span.size_bytes
        self.end_offset = span.last_offset + 1

    def end_at(self, end_offset: int) -> None:
        """Move the end offset, which may be above the last batch's."""
        if end_offset != self.end_offset:
            # They are looked up as if no offset were missing before the end.
            self._forget_recent()
            self.end_offset = end_offset

    def start_scan(self) -> None:
        """Forget the content; ``note_scanned`` adds it again."""
        self._indexes = SegmentIndexes.empty(self.base_offset)
        self._forget_recent()
        self.seal = None
        self.entry_count = 0
        self.end_offset, self.size_bytes, self._bytes_since_entry = self.base_offset, 0, 0
        self.max_timestamp_ms, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._first_timestamp_ms = None

    def _note(
        self,
        indexes: SegmentIndexes,
        position: int,
        base_offset: int,
        timestamp_ms: int,
        interval_bytes: int,
    ) -> None:
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms, self.max_timestamp_offset = timestamp_ms, base_offset
        if position == 0:
            self._first_timestamp_ms = timestamp_ms
        if self._bytes_since_entry > interval_bytes:
            indexes.offset.append(base_offset, position)
            indexes.time.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset)
            self._bytes_since_entry = 0
            self.entry_count += 1
        recent = self._recent_offsets
        if len(recent) == RECENT_BATCH_COUNT_MAX:
            del recent[: RECENT_BATCH_COUNT_MAX // 2]
            del self._recent_positions[: RECENT_BATCH_COUNT_MAX // 2]
        recent.append(base_offset)
        self._recent_positions.append(position)

    def cut_failed_write(self) -> None:
        """Truncate the bytes of a failed write behind the end, durably. Raises ``OSError``."""
        file = self._file
        if file is not None and self._is_writable:
            os.ftruncate(file.fileno(), self.size_bytes)
            os.fsync(file.fileno())

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Return position and base offset of the first batch that ends at or after ``offset``.

        None if all batches end before it.
        """
        recent = self._recent_offsets
        if recent and recent[0] <= offset < self.end_offset:
            index = bisect_right(recent, offset) - 1
            return self._recent_positions[index], recent[index]
        if offset >= self.end_offset:
            return None
        for span in self.spans(self.indexes.offset.lookup(offset)):
            if span.last_offset >= offset:
                return span.position, span.base_offset
        return None

    def position_of(self, offset: int) -> int:
        """Return the position where the last batch ends that is wholly below ``offset``."""
        if offset >= self.end_offset:
            return self.size_bytes
        located = self.locate(offset)
        return self.size_bytes if located is None else located[0]

    def recent_end(self, start_position: int, end_position: int) -> tuple[int, int] | None:
        """Return where the last batch ends that is whole in ``[start_position, end_position)``.

        Its position and its offset; the start's if the first batch is not whole there. ``None`` if
        the batches there are not all in memory. A batch starts at ``start_position``, and another
        ends behind ``end_position``.
        """
        positions = self._recent_positions
        if not positions or start_position < positions[0]:
            return None
        index = bisect_right(positions, end_position) - 1
        return positions[index], self._recent_offsets[index]

    def whole_below(self, offset: int) -> int:
        """Return the end offset, exclusive, of the last batch that is wholly below ``offset``.

        Returns the base offset if there is none. If compaction has left a gap, the result is less
        than ``offset`` and less than the base offset of the next batch.
        """
        position = self.indexes.offset.lookup(offset)
        while True:
            end_offset, start = self.base_offset, position
            for span in self.spans(start):
                if span.last_offset >= offset:
                    break
                end_offset = span.last_offset + 1
            if end_offset > self.base_offset or start == 0:
                return end_offset
            # The index entry's batch is not below ``offset``: return the end of the one before.
            position = self.indexes.offset.lookup(next(self.spans(start)).base_offset - 1)

    def batch_size_bytes(self, position: int) -> int:
        """Return the size of the batch at ``position``."""
        return next(self.spans(position)).size_bytes

    def spans(self, position: int = 0) -> Iterator[BatchSpan]:
        """Yield the batches from ``position``, where one starts, to the end.

        Raises ``OSError``, also if the file has changed since it was written.
        """
        file, end = self.reader, self.size_bytes
        chunk, chunk_position = b"", position
        while position < end:
            at = position - chunk_position
            if at + HEADER_SIZE > len(chunk):
                chunk = os.pread(file.fileno(), min(SCAN_CHUNK_BYTES, end - position), position)
                chunk_position, at = position, 0
            if at + HEADER_SIZE > len(chunk):
                raise self._damaged(position)
            base_offset, length, delta, timestamp_ms = _SPAN.unpack_from(chunk, at)
            if length < HEADER_SIZE - LOG_OVERHEAD:
                raise self._damaged(position)
            yield BatchSpan(
                position, LOG_OVERHEAD + length, base_offset, base_offset + delta, timestamp_ms
            )
            position += LOG_OVERHEAD + length

    def _damaged(self, position: int) -> OSError:
        return OSError(errno.EIO, f"no batch at position {position}", str(self.path))

    @property
    def first_timestamp_ms(self) -> int | None:
        """The first batch's timestamp, None if the segment is empty."""
        if self._first_timestamp_ms is None and self.size_bytes:
            self._first_timestamp_ms = next(self.spans()).max_timestamp_ms
        return self._first_timestamp_ms

    def write_indexes(self) -> SealRecord:
        """Write the index files, not yet durably. Returns the seal record with their CRCs."""
        indexes = self.indexes
        indexes.time.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset)
        facts = indexes.write(self.directory, self.base_offset)
        self.seal = SealRecord(
            self.base_offset,
            self.end_offset,
            self.size_bytes,
            self.max_timestamp_ms,
            self.max_timestamp_offset,
            *facts,
        )
        return self.seal

    def remove_index_files(self) -> None:
        """Unlink the index files, which are rebuilt on use. Raises ``OSError``."""
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            segment_path(self.directory, self.base_offset, suffix).unlink(missing_ok=True)

    def truncate_to(self, offset: int) -> None:
        """Remove the batches that end at or after ``offset``, durably. Raises ``OSError``.

        ``offset`` is one of ``whole_below``.
        """
        indexes = self.indexes
        located = self.locate(offset)
        if located is None:
            self.end_at(offset)
            return
        position, _ = located
        self._cut_file(position)
        indexes.offset.truncate_to(offset)
        indexes.time.truncate_to(offset)
        indexes.txn.truncate_to(offset)
        self.size_bytes, self.end_offset = position, offset
        self.entry_count = len(indexes.offset)
        self._bytes_since_entry = 0
        self._forget_recent()
        self.seal = None
        self.max_timestamp_ms, self.max_timestamp_offset = indexes.time.last_entry()
        for span in self.spans(indexes.offset.lookup(self.max_timestamp_offset)):
            if span.max_timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms = span.max_timestamp_ms
                self.max_timestamp_offset = span.base_offset
        if position == 0:
            self._first_timestamp_ms = None

    def _cut_file(self, size_bytes: int) -> None:
        # Durably: else a crash could bring the cut batches back behind newer ones.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open_for_sync(self) -> int:
        """Return a new descriptor of the file, for ``os.fsync`` on any thread."""
        file = self._file
        if file is not None:
            return os.dup(file.fileno())
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def seal_writes(self) -> None:
        """Drop the state that only appends need."""
        self._forget_recent()
        if self._is_writable:
            self._drop_file()

    def release(self) -> None:
        """Close files and drop loaded indexes; both come back on use. Slices stay valid."""
        self._drop_file()
        if self.seal is not None:
            self._indexes = None

    def forget_log(self) -> None:
        """Note that the log was deleted: its indexes are not rebuilt any more."""
        self._rebuild = _refuse_to_rebuild

    def close(self) -> None:
        """Close all files and drop all state."""
        self.seal_writes()
        self.release()

    def _drop_file(self) -> None:
        self.let_go()
        self._is_unflushed = False
        if self._open_files is not None:
            self._open_files.closed(self)

    def _forget_recent(self) -> None:
        self._recent_offsets.clear()
        self._recent_positions.clear()


def _refuse_to_rebuild(segment: LogSegment) -> SegmentIndexes:
    raise StorageError(f"{segment.path} was deleted")
