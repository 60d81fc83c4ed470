"""The tiered part of one partition: its segments, and reads from them.

A segment's log object is read in chunks that are cut at batch starts: chunk c has the batches that
begin in ``[c * chunk_bytes, (c + 1) * chunk_bytes)``, whole. So every chunk is one ranged GET and
one cache file, all readers of a segment request the same ranges, and no batch spans two files.

A reader that continues where it stopped gets the maximal read-ahead: many ranges in parallel take
as long as one. So does a reader that begins at a segment's base offset, as a scan of the whole log
does. For any other reader one more range is fetched. Within a chunk a sequential reader uses the
open file, so it calls the worker once per chunk.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar
from uuid import UUID

from tidelog_core.errors import ObjectNotFound, OffsetOutOfRange
from tidelog_core.log.record_source import ReadLimits, SourceRead, TimestampOffset
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import FileSlice, ReadableFile, TopicPartition
from tidelog_core.tier.contents import TierContents
from tidelog_core.tier.index_file import BatchRow, BatchTable, IndexFile
from tidelog_core.tier.keys import SegmentKeys, segment_keys
from tidelog_core.tier.tiered_segments import TieredSegments
from tidelog_core.tier.time_search import find_tiered_offset

from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.index_cache import IndexCache
from tidelog_node.tier.known_segments import KnownSegments
from tidelog_node.tier.protocol import ByteRange

T = TypeVar("T")

CURSORS_MAX = 64  # readers of one partition that get read-ahead
AHEAD_CHUNKS_UNKNOWN = 1  # for a reader that may not be sequential
OPEN_CHUNKS_MAX = 16  # of all partitions: the disk may hold that many more than the cache
READ_ATTEMPTS_MAX = 3
# The last batch of a chunk may end so far behind it, and is still read with it: the default of
# max.message.bytes.
OVERHANG_BYTES = 1_048_588


@dataclass(frozen=True, slots=True)
class OpenChunk:
    """A chunk whose file is open."""

    where: ByteRange
    index: IndexFile  # of its segment
    rows: range  # the batches in it
    file: ReadableFile


class OpenChunks:
    """The chunks that readers are in the middle of: a bounded LRU.

    The worker may evict such a file. It is kept open here until its reader has read the chunk, or
    has not used it between two calls of ``drop_unused``.
    """

    def __init__(self, count_max: int = OPEN_CHUNKS_MAX) -> None:
        self._count_max = count_max
        self._chunks: OrderedDict[ByteRange, OpenChunk] = OrderedDict()
        self._unused: set[ByteRange] = set()  # here at the last ``drop_unused`` and not used since

    def get(self, where: ByteRange) -> OpenChunk | None:
        """Return the chunk if it is open."""
        chunk = self._chunks.get(where)
        if chunk is not None:
            self._unused.discard(where)
            self._chunks.move_to_end(where)
        return chunk

    def put(self, chunk: OpenChunk) -> None:
        """Keep the chunk's file open."""
        self._unused.discard(chunk.where)
        self._chunks[chunk.where] = chunk
        self._chunks.move_to_end(chunk.where)
        while len(self._chunks) > self._count_max:
            self._chunks.popitem(last=False)

    def drop(self, where: ByteRange) -> None:
        """Release the chunk's file: its reader has read all of it."""
        self._chunks.pop(where, None)

    def drop_unused(self) -> None:
        """Release the files that were not used since the last call: their readers may be gone."""
        for where in self._unused:
            self.drop(where)
        self._unused = set(self._chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReader:
    """The resources that all partitions' tiered logs read with."""

    cluster_id: str
    store: MetadataStore
    client: TierClient
    indexes: IndexCache
    open_chunks: OpenChunks
    executor: Executor
    inspector: BatchInspector
    chunk_bytes: int
    ahead_chunks_max: int


class RemoteLog:
    """The tiered segments of one partition: a ``RecordSource``."""

    def __init__(
        self,
        reader: RemoteReader,
        topic_id: UUID,
        partition: TopicPartition,
        *,
        tiered_end: Callable[[], int],
    ) -> None:
        """``tiered_end`` returns the end of the tier, as far as the local log knows it."""
        self._reader = reader
        self._tiered_end = tiered_end
        self._topic_id = topic_id
        self._partition = partition
        self._known = KnownSegments(
            reader.store, topic_id, partition.partition, on_replaced=self._on_replaced
        )
        self._replaced: dict[UUID, SegmentMeta] = {}  # their objects may still be cached
        # By the next offset of each sequential reader, least recently used first: its chunk and
        # next row if it is in the middle of a chunk, else None.
        self._cursors: OrderedDict[int, tuple[ByteRange, int] | None] = OrderedDict()

    @property
    def read_bytes_max(self) -> int:
        """The bytes of a chunk, and of the batch that goes over its end."""
        return self._reader.chunk_bytes + OVERHANG_BYTES

    @property
    def is_behind(self) -> bool:
        """Whether ``refresh`` may have something to do."""
        return self._known.is_stale or bool(self._replaced)

    @property
    def is_settled(self) -> bool:
        """Whether the last reading is whole and no replacement was noted since."""
        return self._known.is_settled

    @property
    def size_bytes(self) -> int | None:
        """The bytes of the tiered segments in memory; ``None`` if they were not read yet."""
        return self._known.size_bytes

    async def segments(self) -> TieredSegments:
        """Return the last reading, perhaps with gaps; from memory once loaded."""
        return await self._known.segments()

    async def whole(self) -> TieredSegments:
        """Return segments that have every offset of the tier. Raises ``TierRewritten``."""
        return await self._known.whole()

    async def reload(self) -> TierContents:
        """Return all segments, from a reading begun after the last possible replacement.

        Raises ``TierRewritten``.
        """
        return await self._known.contents()

    def add(self, segment: SegmentMeta) -> None:
        """Note a segment whose copy has finished."""
        self._known.add(segment)

    def remove(self, segment: SegmentMeta) -> None:
        """Note that a segment is no longer read."""
        self._reader.indexes.forget(segment.segment_id)
        self._known.remove(segment)

    def invalidate(self) -> None:
        """Note that segments may have been replaced: ``refresh`` reads them again."""
        self._known.invalidate()

    def distrust(self) -> None:
        """Note that changes may have been missed: decisions need a new reading."""
        self._known.distrust()

    async def refresh(self) -> None:
        """Make all readers use the current segments, also those in the middle of a chunk.

        The old segments are served until the new ones are read. Then the cached objects of segments
        that are no longer read are removed. Raises the errors of the store and the client.
        """
        await self._known.caught_up()
        replaced, self._replaced = self._replaced, {}
        keys = map(self._keys, replaced.values())
        await self._reader.client.forget(
            tuple(key for pair in keys for key in (pair.log, pair.index))
        )

    def _on_replaced(self, metas: Collection[SegmentMeta]) -> None:
        if metas:
            self._cursors.clear()
        for meta in metas:
            self._reader.indexes.forget(meta.segment_id)
            self._replaced[meta.segment_id] = meta

    async def read(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        """Return batches from the one with ``offset`` on, at most to the end of a chunk.

        ``None`` if compaction has removed all tiered batches from there on: the next ones are in
        the local log. Raises ``OffsetOutOfRange`` if the tier does not have the offset,
        ``TierRewritten`` if it may have it, and the client's errors.
        """
        found = self.read_open(offset, limits)
        if found is not None:
            return found
        is_known = offset in self._cursors
        self._cursors.pop(offset, None)
        return await self._attempt(lambda: self._read(offset, limits, is_known=is_known))

    def read_open(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        """Return the result of ``read`` if the reader continues in an open chunk.

        Otherwise ``None``. Never waits.
        """
        cursor = self._cursors.get(offset)
        if cursor is None:
            return None
        where, row = cursor
        chunk = self._reader.open_chunks.get(where)
        if chunk is None:
            return None
        return self._cut(chunk, row, offset, limits)

    async def _attempt(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``read``; read the segments again and retry if an object is gone."""
        for _ in range(1, READ_ATTEMPTS_MAX):
            known = await self.segments()
            try:
                return await read()
            except ObjectNotFound:
                # Retention has deleted the segment, or a rewriter has replaced it.
                if known is await self.segments():  # Otherwise another reader has reloaded them.
                    self.invalidate()
                    await self._known.caught_up()
        return await read()

    async def _read(self, offset: int, limits: ReadLimits, *, is_known: bool) -> SourceRead | None:
        found = await self._find(offset)
        if found is None:
            return None
        segment, index, row = found
        rows = _chunk_rows(index, row, self._reader.chunk_bytes)
        first = index.batches[row]
        if first.size_bytes > limits.max_bytes and not limits.min_one_batch:
            return SourceRead(None, first.base_offset)
        where = _byte_range(index, self._keys(segment).log, rows)
        is_scan = is_known or offset == segment.base_offset
        count = self._reader.ahead_chunks_max if is_scan else AHEAD_CHUNKS_UNKNOWN
        ahead = await self._ranges_behind(segment, index, rows.stop, count)
        file = await self._reader.client.read(where, ahead)
        return self._cut(OpenChunk(where, index, rows, file), row, offset, limits)

    def _cut(self, chunk: OpenChunk, row: int, offset: int, limits: ReadLimits) -> SourceRead:
        """Return the batches from ``row`` on; note where their reader will continue."""
        batches, rows = chunk.index.batches, chunk.rows
        first = batches[row]
        last = _last_row(batches, row, rows.stop, limits.max_bytes)
        if limits.min_one_batch:
            last = max(row, last)
        if last < row:
            return SourceRead(None, first.base_offset)
        end = batches[last]
        self._cursors.pop(offset, None)
        is_middle = last + 1 < rows.stop
        self._cursors[end.last_offset + 1] = (chunk.where, last + 1) if is_middle else None
        while len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)
        if is_middle:
            self._reader.open_chunks.put(chunk)
        else:
            self._reader.open_chunks.drop(chunk.where)
        return SourceRead(
            FileSlice(
                chunk.file,
                first.position - chunk.where.start,
                end.position + end.size_bytes - first.position,
            ),
            first.base_offset,
            _aborted_within(chunk.index, offset, end.last_offset) if limits.include_aborted else (),
            end.last_offset + 1,
        )

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int
    ) -> TimestampOffset | None:
        """Return the first tiered record at or after a time and an offset, ``None`` for none."""
        wanted = (timestamp_ms, start_offset)

        async def find() -> TimestampOffset | None:
            return await find_tiered_offset(
                await self.whole(),
                timestamp_ms,
                start_offset=start_offset,
                index_of=self._index,
                search_batch=lambda segment, index, row: self._first_record(
                    segment, index, row, wanted
                ),
            )

        return await self._attempt(find)

    async def max_timestamp(self, *, start_offset: int) -> TimestampOffset | None:
        """Return the first tiered record with the greatest timestamp, ``None`` for none."""
        newest = (await self.whole()).newest(start_offset=start_offset)
        if newest is None or newest.max_timestamp_ms < 0:
            return None
        return await self.offset_for_timestamp(newest.max_timestamp_ms, start_offset=start_offset)

    async def _find(self, offset: int) -> tuple[SegmentMeta, IndexFile, int] | None:
        """Return the first batch at or above the offset, with its segment and index.

        ``None`` if the tier has the offset, but no batch from there on.
        """
        segment = await self._segment_with(offset)
        if segment is None:
            known = await self.segments()
            first = 0 if known.first is None else known.first.base_offset
            raise OffsetOutOfRange(self._partition, offset, start=first, end=known.end_offset)
        while segment is not None:
            index = await self._index(segment)
            row = index.batches.row_of_offset(offset)
            if row < len(index.batches):
                return segment, index, row
            # Compaction has removed all batches from the offset to the segment's end.
            offset = segment.end_offset
            end_offset = max((await self.segments()).end_offset, self._tiered_end())
            segment = await self._segment_with(offset) if offset < end_offset else None
        return None

    async def _segment_with(self, offset: int) -> SegmentMeta | None:
        segment = (await self.segments()).locate(offset)
        if segment is None:
            # Another node may have finished the segment since the last reading.
            known = await self._known.search(offset, tiered_end=self._tiered_end())
            segment = known.locate(offset)
        return segment

    async def _index(self, segment: SegmentMeta) -> IndexFile:
        return await self._reader.indexes.get(segment, self._keys(segment).index)

    def _keys(self, segment: SegmentMeta) -> SegmentKeys:
        return segment_keys(self._reader.cluster_id, self._partition.topic, segment)

    async def _ranges_behind(
        self, segment: SegmentMeta, index: IndexFile, row: int, count: int
    ) -> tuple[ByteRange, ...]:
        """Return the next ``count`` chunks from ``row`` on, as far as index objects are cached.

        The first missing index object is fetched for the next call.
        """
        chunk_bytes = self._reader.chunk_bytes
        ranges = list(islice(_ranges_from(index, self._keys(segment).log, row, chunk_bytes), count))
        while len(ranges) < count:
            following = (await self.segments()).next_after(segment)
            if following is None:
                break
            keys = self._keys(following)
            known = self._reader.indexes.prefetch(following, keys.index)
            if known is None:
                break
            more = _ranges_from(known, keys.log, 0, chunk_bytes)
            ranges += islice(more, count - len(ranges))
            segment = following
        return tuple(ranges)

    async def _first_record(
        self, segment: SegmentMeta, index: IndexFile, row: int, wanted: tuple[int, int]
    ) -> TimestampOffset | None:
        """Return the batch's first record at or after the wanted timestamp and offset."""
        rows = _chunk_rows(index, row, self._reader.chunk_bytes)
        file = await self._reader.client.read(_byte_range(index, self._keys(segment).log, rows))
        loop = asyncio.get_running_loop()
        batch, first = index.batches[row], index.batches[rows.start]
        data = await loop.run_in_executor(
            self._reader.executor, _read_batch, file, batch, first.position
        )
        return await self._reader.inspector.find(data, *wanted)


def _chunk_rows(index: IndexFile, row: int, chunk_bytes: int) -> range:
    """Return the rows of the chunk that contains ``row``."""
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


def _last_row(batches: BatchTable, row: int, stop: int, max_bytes: int) -> int:
    """Return the last row before ``stop`` that ends within ``max_bytes`` of the start of ``row``.

    ``row - 1`` if ``row`` itself is larger.
    """
    limit = batches[row].position + max_bytes

    def end(candidate: int) -> int:
        batch = batches[candidate]
        return batch.position + batch.size_bytes

    if end(stop - 1) <= limit:
        return stop - 1
    return row - 1 + bisect_right(range(row, stop), limit, key=end)


def _aborted_within(
    index: IndexFile, offset: int, last_offset: int
) -> tuple[AbortedTransaction, ...]:
    return tuple(
        transaction
        for transaction in index.aborted
        if transaction.first_offset <= last_offset and transaction.last_offset >= offset
    )


def _read_batch(file: ReadableFile, batch: BatchRow, file_position: int) -> bytes:
    return os.pread(file.fileno(), batch.size_bytes, batch.position - file_position)
