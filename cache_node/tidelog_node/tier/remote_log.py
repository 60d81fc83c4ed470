"""The tiered part of one partition: which segments there are, and reading from them.

A segment's log object is read in chunks that are cut at batch starts: chunk c holds
the batches that begin in ``[c * chunk_bytes, (c + 1) * chunk_bytes)``, whole. So every
chunk is one ranged GET and one cache file, every reader of a segment asks for the same
ranges, and no batch ever spans two files.

A reader that goes on where it stopped is read ahead for, twice as far each time.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from tidelog_core.errors import ObjectNotFound, OffsetOutOfRange
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import FileSlice, ReadableFile, TopicPartition
from tidelog_core.records.batch import first_record
from tidelog_core.tier.index_file import BatchRow, IndexFile
from tidelog_core.tier.keys import SegmentKeys, segment_keys
from tidelog_core.tier.planning import finished_segments, locate, next_segment
from tidelog_core.tier.time_search import find_tiered_offset

from tidelog_node.tier.client import TierClient
from tidelog_node.tier.index_cache import IndexCache
from tidelog_node.tier.protocol import ByteRange
from tidelog_node.tier.segment_catalog import SegmentCatalog

CURSORS_MAX = 64  # readers of one partition that are read ahead for
READ_ATTEMPTS_MAX = 3


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """Whole batches in a cache file."""

    slice: FileSlice | None  # None: the first batch is larger than max_bytes
    start_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReader:
    """What all partitions' tiered logs read with."""

    cluster_id: str
    catalog: SegmentCatalog
    client: TierClient
    indexes: IndexCache
    executor: Executor
    chunk_bytes: int
    ahead_chunks_max: int


class RemoteLog:
    """The tiered segments of one partition. For the tasks of one event loop."""

    def __init__(self, reader: RemoteReader, topic_id: UUID, partition: TopicPartition) -> None:
        self._reader = reader
        self._topic_id = topic_id
        self._partition = partition
        self._segments: list[SegmentMeta] | None = None
        self._loading = asyncio.Lock()
        # Where each sequential reader goes on, and how many chunks ahead are brought.
        self._cursors: OrderedDict[int, int] = OrderedDict()

    @property
    def is_loaded(self) -> bool:
        """Whether the segments are known."""
        return self._segments is not None

    async def segments(self) -> list[SegmentMeta]:
        """Return the segments that may be read, by base offset; from memory once loaded."""
        async with self._loading:
            if self._segments is None:
                metas = await self._reader.catalog.segments_of(
                    self._topic_id, self._partition.partition
                )
                self._segments = finished_segments(metas)
            return list(self._segments)

    def add(self, segment: SegmentMeta) -> None:
        """Note a segment whose copy has finished."""
        if self._segments is not None:
            self._segments = finished_segments([*self._segments, segment])

    def remove(self, segment: SegmentMeta) -> None:
        """Note that a segment is no longer read."""
        if self._segments is not None:
            kept = [s for s in self._segments if s.segment_id != segment.segment_id]
            self._segments = kept

    def invalidate(self) -> None:
        """Read the segments' metadata again before the next use."""
        self._segments = None

    async def read(
        self, offset: int, *, max_bytes: int, min_one_batch: bool, include_aborted: bool
    ) -> RemoteRead:
        """Return batches from the one that holds ``offset`` on, at most to a chunk's end.

        Raises ``OffsetOutOfRange`` where the tier does not hold the offset, and what
        the client raises.
        """
        ahead_count = self._cursors.pop(offset, 0)
        for attempt in range(1, READ_ATTEMPTS_MAX + 1):
            try:
                return await self._read(
                    offset,
                    ahead_count=ahead_count,
                    max_bytes=max_bytes,
                    min_one_batch=min_one_batch,
                    include_aborted=include_aborted,
                )
            except ObjectNotFound:
                # Retention was faster, or someone rewrote the segment: look again.
                if attempt == READ_ATTEMPTS_MAX:
                    raise
                self.invalidate()
        raise AssertionError("unreachable")

    async def _read(
        self,
        offset: int,
        *,
        ahead_count: int,
        max_bytes: int,
        min_one_batch: bool,
        include_aborted: bool,
    ) -> RemoteRead:
        segment, index, row = await self._find(offset)
        rows = _chunk_rows(index, row, self._reader.chunk_bytes)
        last = max(row if min_one_batch else row - 1, _last_row(index, rows, row, max_bytes))
        first = index.batches[row]
        if last < row:
            return RemoteRead(None, first.base_offset, ())
        file = await self._chunk(segment, index, rows, ahead_count=ahead_count)
        end = index.batches[last]
        position = first.position - index.batches[rows.start].position
        size_bytes = end.position + end.size_bytes - first.position
        self._move_cursor(ahead_count, end.last_offset + 1, is_chunk_end=last == rows.stop - 1)
        return RemoteRead(
            FileSlice(file, position, size_bytes),
            first.base_offset,
            _aborted_within(index, offset, end.last_offset) if include_aborted else (),
        )

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int
    ) -> tuple[int, int] | None:
        """Return timestamp and offset of the first tiered record at or after both, if any."""
        wanted = (timestamp_ms, start_offset)
        return await find_tiered_offset(
            await self.segments(),
            timestamp_ms,
            start_offset=start_offset,
            index_of=self._index,
            search_batch=lambda segment, index, row: self._first_record(
                segment, index, row, wanted
            ),
        )

    async def max_timestamp(self, *, start_offset: int) -> tuple[int, int] | None:
        """Return the greatest tiered timestamp and the first record that has it, if any."""
        segments = [s for s in await self.segments() if s.end_offset > start_offset]
        newest = max(segments, key=lambda segment: segment.max_timestamp_ms, default=None)
        if newest is None or newest.max_timestamp_ms < 0:
            return None
        return await self.offset_for_timestamp(newest.max_timestamp_ms, start_offset=start_offset)

    async def _find(self, offset: int) -> tuple[SegmentMeta, IndexFile, int]:
        is_fresh = not self.is_loaded
        segment = locate(await self.segments(), offset)
        if segment is None and not is_fresh:
            self.invalidate()
            segment = locate(await self.segments(), offset)
        while segment is not None:
            index = await self._index(segment)
            row = index.batches.row_of_offset(offset)
            if row < len(index.batches):
                return segment, index, row
            # Compaction has removed all from the offset to the segment's end.
            offset = segment.end_offset
            segment = next_segment(await self.segments(), segment)
        segments = await self.segments()
        raise OffsetOutOfRange(
            self._partition,
            offset,
            start=segments[0].base_offset if segments else 0,
            end=segments[-1].end_offset if segments else 0,
        )

    async def _index(self, segment: SegmentMeta) -> IndexFile:
        return await self._reader.indexes.get(segment, self._keys(segment).index)

    def _keys(self, segment: SegmentMeta) -> SegmentKeys:
        return segment_keys(self._reader.cluster_id, self._partition.topic, segment)

    async def _chunk(
        self, segment: SegmentMeta, index: IndexFile, rows: range, *, ahead_count: int
    ) -> ReadableFile:
        """Return the cache file of the chunk that has these rows."""
        wanted = _byte_range(index, self._keys(segment).log, rows)
        ahead: tuple[ByteRange, ...] = ()
        if ahead_count:
            ahead = await self._ranges_behind(segment, index, rows.stop, ahead_count)
        return await self._reader.client.read(wanted, ahead)

    async def _ranges_behind(
        self, segment: SegmentMeta, index: IndexFile, row: int, count: int
    ) -> tuple[ByteRange, ...]:
        """Return the next chunks from ``row`` on, into the following segment if need be."""
        chunk_bytes = self._reader.chunk_bytes
        ranges = list(islice(_ranges_from(index, self._keys(segment).log, row, chunk_bytes), count))
        if len(ranges) < count:
            following = next_segment(await self.segments(), segment)
            if following is not None:
                keys = self._keys(following)
                known = self._reader.indexes.prefetch(following, keys.index)
                if known is not None:
                    more = _ranges_from(known, keys.log, 0, chunk_bytes)
                    ranges += islice(more, count - len(ranges))
        return tuple(ranges)

    def _move_cursor(self, ahead_count: int, next_offset: int, *, is_chunk_end: bool) -> None:
        ahead_count = max(1, 2 * ahead_count if is_chunk_end else ahead_count)
        self._cursors[next_offset] = min(ahead_count, self._reader.ahead_chunks_max)
        while len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)

    async def _first_record(
        self, segment: SegmentMeta, index: IndexFile, row: int, wanted: tuple[int, int]
    ) -> tuple[int, int] | None:
        """Return the batch's first record at or after the wanted timestamp and offset."""
        rows = _chunk_rows(index, row, self._reader.chunk_bytes)
        file = await self._chunk(segment, index, rows, ahead_count=0)
        loop = asyncio.get_running_loop()
        batch, first = index.batches[row], index.batches[rows.start]
        return await loop.run_in_executor(
            self._reader.executor, _search_batch, file, batch, first.position, wanted
        )


def _chunk_rows(index: IndexFile, row: int, chunk_bytes: int) -> range:
    """Return the rows of the chunk that ``row`` belongs to."""
    chunk = index.batches[row].position // chunk_bytes
    return range(
        index.batches.row_at_position(chunk * chunk_bytes),
        index.batches.row_at_position((chunk + 1) * chunk_bytes),
    )


def _byte_range(index: IndexFile, key: str, rows: range) -> ByteRange:
    first, last = index.batches[rows.start], index.batches[rows.stop - 1]
    return ByteRange(key, first.position, last.position + last.size_bytes)


def _ranges_from(index: IndexFile, key: str, row: int, chunk_bytes: int) -> Iterator[ByteRange]:
    while row < len(index.batches):
        rows = _chunk_rows(index, row, chunk_bytes)
        yield _byte_range(index, key, rows)
        row = rows.stop


def _last_row(index: IndexFile, rows: range, row: int, max_bytes: int) -> int:
    """Return the last row that ends within ``max_bytes`` of where ``row`` begins.

    That is ``row - 1`` if not even ``row`` does.
    """
    batches, limit = index.batches, index.batches[row].position + max_bytes

    def end(candidate: int) -> int:
        return batches[candidate].position + batches[candidate].size_bytes

    return row - 1 + bisect_right(range(row, rows.stop), limit, key=end)


def _aborted_within(
    index: IndexFile, offset: int, last_offset: int
) -> tuple[AbortedTransaction, ...]:
    return tuple(
        transaction
        for transaction in index.aborted
        if transaction.first_offset <= last_offset and transaction.last_offset >= offset
    )


def _search_batch(
    file: ReadableFile, batch: BatchRow, file_position: int, wanted: tuple[int, int]
) -> tuple[int, int] | None:
    data = os.pread(file.fileno(), batch.size_bytes, batch.position - file_position)
    return first_record(data, *wanted)
