"""Writes the remaining records of several segments as one segment: log file and indexes.

The files are like those of any sealed segment. The caller decides where they go and makes them
durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from tidelog_core.compaction.rewrite import RewriteBatch, WalkedBatch
from tidelog_core.compaction.selection import SegmentExtent, SegmentLimits
from tidelog_core.log.paths import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.segments.segment import LogSegment, NewBatch
from tidelog_core.log.segments.segment_indexes import SealRecord
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import BatchHeader, parse_header

WRITE_SIZE_BYTES = 1 << 20  # the bytes to buffer before a write


def _at_once(_size_bytes: int) -> None:
    """Let bytes be written without a limit on their rate."""


class SegmentWriter:
    """Writes one segment into a directory, batch by batch. Every method raises ``OSError``.

    ``throttle`` gets the number of bytes before each write, and may block.
    """

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        throttle: Callable[[int], None] = _at_once,
    ) -> None:
        self._interval_bytes = index_interval_bytes
        self._throttle = throttle
        self._segment = LogSegment(directory, base_offset, created_ms=0, rebuild=_never_rebuilt)
        self._segment.create()
        self._content = bytearray()
        self._batches: list[NewBatch] = []
        self._has_records = False  # some batch has records for consumers
        self.is_changed = False  # some rewritten batch differs from the original
        self.removed_record_count = 0  # by rewriting
        self.last_read: BatchHeader | None = None  # the last batch passed to ``rewrite``

    @property
    def size_bytes(self) -> int:
        """The bytes that were appended."""
        return self._segment.size_bytes + len(self._content)

    def has_room_for(
        self, segment: SegmentExtent, limits: SegmentLimits, *, index_entry_count: int
    ) -> bool:
        """Whether one more segment fits, however many of its records remain.

        ``index_entry_count`` is the number of entries in the segment's offset index.
        """
        self._write()
        return limits.allow(
            segment,
            base_offset=self._segment.base_offset,
            size_bytes=self.size_bytes,
            entry_count=self._segment.entry_count + index_entry_count,
            has_records=self._has_records,
        )

    def rewrite(self, batches: Iterable[WalkedBatch], rewrite_batch: RewriteBatch) -> None:
        """Append the rewritten batches. Raises ``CorruptRecordBatch`` as well."""
        for buffer, position, header in batches:
            self.last_read = header
            left = rewrite_batch(buffer, position, header)
            if left is None:
                self.is_changed = True
                self.removed_record_count += header.record_count
                continue
            if left != buffer[position : position + header.size_bytes]:
                self.is_changed = True
                self.removed_record_count += header.record_count - parse_header(left).record_count
            self.append(left)

    def append(self, batch: bytes) -> None:
        """Append a whole batch."""
        header = parse_header(batch)
        self._batches.append(
            NewBatch(
                len(self._content), header.base_offset, header.next_offset, header.max_timestamp_ms
            )
        )
        self._content += batch
        self._has_records |= header.record_count > 0 and not header.is_control
        if len(self._content) >= WRITE_SIZE_BYTES:
            self._write()

    def seal(self, end_offset: int, aborted: Sequence[AbortedTransaction] = ()) -> SealRecord:
        """Write the remaining content and the index files; nothing is durable yet.

        ``aborted`` becomes the content of the transaction index.
        """
        self._write()
        segment = self._segment
        for transaction in aborted:
            segment.indexes.txn.append(transaction)
        segment.end_at(end_offset)
        seal = segment.write_indexes()
        segment.close()
        return seal

    def discard(self) -> None:
        """Remove the written files."""
        self._segment.close()
        for path in self.paths():
            path.unlink(missing_ok=True)

    @property
    def path(self) -> Path:
        """The log file."""
        return self._segment.path

    @property
    def offset_index(self) -> Path:
        """The offset index file."""
        return self._path(OFFSET_INDEX_SUFFIX)

    @property
    def time_index(self) -> Path:
        """The time index file."""
        return self._path(TIME_INDEX_SUFFIX)

    def paths(self) -> list[Path]:
        """Return all files that there may be."""
        return [self._path(suffix) for suffix in _SUFFIXES]

    def _path(self, suffix: str) -> Path:
        return segment_path(self._segment.directory, self._segment.base_offset, suffix)

    def _write(self) -> None:
        if not self._batches:
            return
        self._throttle(len(self._content))
        self._segment.append(self._content, self._batches, interval_bytes=self._interval_bytes)
        self._content, self._batches = bytearray(), []


_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def _never_rebuilt(segment: LogSegment) -> NoReturn:
    raise AssertionError(f"{segment.path} is only written to")
