"""``BucketReader`` reads partitions from the stores alone: no node has to run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tidelog_core.diskless.wal.slice_bytes import check_slice_bytes, placed_batches
from tidelog_core.errors import CorruptObject, CorruptRecordBatch, ObjectNotFound
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import opened_object_store
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.header import Buffer
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.time_search import parse_index_of

from tidelog.bucket.bucket_log import BucketLog, LogLoader, Piece, segment_pieces
from tidelog.client import Client
from tidelog.consuming.fetched import Chunk
from tidelog.consuming.records import ConsumerRecord
from tidelog.errors import (
    ClientClosed,
    InvalidConfig,
    MissingRecords,
    OffsetOutOfRange,
    TidelogError,
    needing_arrow,
)
from tidelog.options import IsolationLevel
from tidelog.reused_memory import thread_memory

if TYPE_CHECKING:
    import pyarrow as pa

PIECES_AHEAD = 4

# The SDK's partition, or the user's tuple of topic and number.
AnyPartition = TopicPartition | tuple[str, int]


class BucketOffsets(NamedTuple):
    """The offsets ``[start, end)`` that can be read."""

    start: int
    end: int


class BucketReader(Client):
    """Reads what the bucket has of partitions, without a node.

    ::

        async with BucketReader(metadata="dynamodb://…", objects="s3://…") as bucket:
            async for record in bucket.read(("orders", 0)):
                ...

    That are the tiered segments, and of diskless topics every acknowledged record. Reading again
    from the next offset on costs one listing of each chain that grows. Make all calls from one
    event loop, one after the other.
    """

    def __init__(
        self,
        *,
        metadata: str,
        objects: str,
        isolation_level: IsolationLevel = "read_uncommitted",
        diskless_tail: bool = True,
    ) -> None:
        """``metadata`` and ``objects`` are the stores' urls; ``start()`` opens them.

        Without ``diskless_tail`` a log ends where its tier ends. Raises ``InvalidConfig``.
        """
        if isolation_level not in ("read_uncommitted", "read_committed"):
            raise InvalidConfig(
                [
                    f"isolation_level is {isolation_level!r}: it must be read_uncommitted or"
                    " read_committed"
                ]
            )
        self._metadata_url = metadata
        self._objects_url = objects
        self._is_read_committed = isolation_level == "read_committed"
        self._is_tail_read = diskless_tail
        self._opened = AsyncExitStack()
        self._objects: ObjectStore | None = None
        self._loader: LogLoader | None = None

    async def start(self) -> None:
        """Open the stores. Raises ``InvalidConfig`` for their urls."""
        metadata = await self._opened.enter_async_context(opened_metadata_store(self._metadata_url))
        self._objects = await self._opened.enter_async_context(
            opened_object_store(self._objects_url)
        )
        self._loader = LogLoader(
            metadata,
            self._objects,
            is_read_committed=self._is_read_committed,
            is_tail_read=self._is_tail_read,
        )

    async def close(self) -> None:
        """Close the stores."""
        self._objects = self._loader = None
        await self._opened.aclose()

    async def partitions_for(self, topic: str) -> int:
        """Return the topic's partition count. Raises as ``LogLoader.load``."""
        if self._loader is None:
            raise ClientClosed("the client is not started, or closed")
        return await self._loader.partition_count(topic)

    async def offsets(self, partition: AnyPartition) -> BucketOffsets:
        """Return the offsets that can be read now; the end is that of the isolation level.

        Raises as ``LogLoader.load``.
        """
        log = await self._load(TopicPartition(*partition))
        return BucketOffsets(log.start_offset, log.end_offset)

    async def read(
        self,
        partition: AnyPartition,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
    ) -> AsyncIterator[ConsumerRecord]:
        """Yield the records of ``[start_offset, end_offset)``, up to the log's end now.

        Without a start from the log's start. Raises ``OffsetOutOfRange`` for a start that the
        bucket does not have, ``MissingRecords`` where offsets are nowhere, ``CorruptObject``
        with the key of a damaged object, and as ``LogLoader.load``.
        """
        async with aclosing(self._chunks(partition, start_offset, end_offset)) as chunks:
            async for chunk, piece in chunks:
                while chunk:
                    with _naming(piece):
                        records, _, _ = chunk.next_batch(piece.start_offset)
                    for record in records:
                        if record.offset < piece.end_offset:
                            yield record

    async def read_arrow(
        self,
        partition: AnyPartition,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        include_headers: bool = False,
    ) -> AsyncGenerator[pa.RecordBatch]:
        """Yield the same records as Arrow; the columns are those of ``Consumer.poll_arrow``.

        Raises ``InvalidConfig`` without the extra ``arrow``, otherwise as ``read``.
        """
        runs = self.read_arrow_runs(
            partition,
            start_offset=start_offset,
            end_offset=end_offset,
            include_headers=include_headers,
        )
        async with aclosing(runs):
            async for batches in runs:
                for batch in batches:
                    yield batch

    async def read_arrow_runs(
        self,
        partition: AnyPartition,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        include_headers: bool = False,
    ) -> AsyncGenerator[list[pa.RecordBatch]]:
        """Yield the batches of ``read_arrow``, several at once."""
        with needing_arrow():
            from tidelog.consuming.arrow_polling import RUN_SIZE_BYTES_MAX, RunRows
            from tidelog.consuming.batch_runs import next_run

        name = TopicPartition(*partition)
        try:
            async with aclosing(self._chunks(partition, start_offset, end_offset)) as chunks:
                async for chunk, piece in chunks:
                    offsets = (piece.start_offset, piece.end_offset)
                    while chunk:
                        with _naming(piece):
                            run = next_run(chunk, RUN_SIZE_BYTES_MAX)
                            rows = RunRows(name, run, offsets, include_headers=include_headers)
                            found = rows.next()
                        while found:
                            yield found
                            with _naming(piece):
                                found = rows.next()
        finally:
            thread_memory().clear()  # No further read may come.

    async def _chunks(
        self, partition: AnyPartition, start_offset: int | None, end_offset: int | None
    ) -> AsyncGenerator[tuple[Chunk, Piece]]:
        """Yield the batches of the range, and what of them to read."""
        name = TopicPartition(*partition)
        log = await self._load(name)
        position = log.start_offset if start_offset is None else start_offset
        if not log.start_offset <= position <= log.end_offset:
            raise OffsetOutOfRange(name, position, start=log.start_offset, end=log.end_offset)
        end = log.end_offset if end_offset is None else min(end_offset, log.end_offset)
        gone: set[str] = set()
        while position < end:
            try:
                async with aclosing(self._fetched(log, position, end)) as fetched:
                    async for piece, data in fetched:
                        yield self._chunk(name, piece, data), piece
                        position = piece.end_offset
                return
            except ObjectNotFound as error:
                # It was deleted since: a rewritten segment, or the tier, has its records now.
                if error.key in gone:
                    raise MissingRecords(name, position, end) from error
                gone.add(error.key)
                log = await self._load(name)

    async def _load(self, partition: TopicPartition) -> BucketLog:
        if self._loader is None:
            raise ClientClosed("the client is not started, or closed")
        return await self._loader.load(partition)

    async def _fetched(
        self, log: BucketLog, start_offset: int, end_offset: int
    ) -> AsyncGenerator[tuple[Piece, Buffer]]:
        """Yield the pieces of the range with their bytes; some are fetched ahead."""
        pieces = self._pieces(log, start_offset, end_offset)
        pending: deque[tuple[Piece, asyncio.Task[Buffer]]] = deque()
        is_planned = False
        failure: TidelogError | None = None
        try:
            while not is_planned or pending:
                while not is_planned and len(pending) < PIECES_AHEAD:
                    try:
                        piece = await anext(pieces)
                    except StopAsyncIteration:
                        is_planned = True
                    except TidelogError as error:  # Raised after what comes before it.
                        is_planned, failure = True, error
                    else:
                        pending.append((piece, asyncio.create_task(self._fetch(piece))))
                if pending:
                    piece, task = pending[0]
                    data = await task
                    pending.popleft()
                    yield piece, data
            if failure is not None:
                raise failure
        finally:
            for _, task in pending:
                task.cancel()
            await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
            await pieces.aclose()

    async def _pieces(
        self, log: BucketLog, start_offset: int, end_offset: int
    ) -> AsyncGenerator[Piece]:
        """Yield the pieces of ``[start_offset, end_offset)`` in order of offset.

        Raises ``MissingRecords`` at the first hole.
        """
        position = start_offset
        for stretch in log.stretches:
            low, high = max(stretch.start_offset, position), min(stretch.end_offset, end_offset)
            if low >= high:
                continue
            if low > position:
                raise MissingRecords(log.partition, position, low)
            keys = segment_keys(log.cluster_id, log.partition.topic, stretch.segment)
            assert self._objects is not None
            data = await self._objects.get(keys.index)
            index = parse_index_of(stretch.segment, data, key=keys.index)
            for piece in segment_pieces(keys.log, index.batches, low, high):
                yield piece._replace(
                    aborted=tuple(
                        (one.first_offset, one.producer_id)
                        for one in index.aborted
                        if one.first_offset < piece.end_offset
                        and one.last_offset >= piece.start_offset
                    )
                )
            position = high
        for piece in log.tail_pieces(position, end_offset):
            if piece.start_offset > position:
                raise MissingRecords(log.partition, position, piece.start_offset)
            yield piece
            position = piece.end_offset
        if position < end_offset:
            raise MissingRecords(log.partition, position, end_offset)

    async def _fetch(self, piece: Piece) -> Buffer:
        assert self._objects is not None
        key, position = piece.key, piece.position
        data = await self._objects.get_range(key, position, position + piece.size_bytes)
        if len(data) != piece.size_bytes:
            raise CorruptObject(key, f"it ends at byte {position + len(data)}")
        if piece.crc32c is not None:
            check_slice_bytes(data, piece.crc32c, key=key, position=position)
        if piece.base_offset is not None:
            return placed_batches(data, piece.base_offset, key=key, position=position)
        return data

    def _chunk(self, partition: TopicPartition, piece: Piece, data: Buffer) -> Chunk:
        with _naming(piece):
            return Chunk(
                partition,
                data if isinstance(data, bytes) else memoryview(data),
                aborted=piece.aborted,
                read_committed=self._is_read_committed,
            )


@contextmanager
def _naming(piece: Piece) -> Iterator[None]:
    """Raise ``CorruptObject`` with the piece's object for a damaged batch."""
    try:
        yield
    except CorruptRecordBatch as error:
        raise CorruptObject(piece.key, str(error)) from None
