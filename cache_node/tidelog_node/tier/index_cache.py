"""Caches parsed index objects in memory: a bounded LRU, one fetch at a time per object."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from concurrent.futures import Executor
from uuid import UUID

from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import ReadableFile
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.time_search import parse_index_of

from tidelog_node.tier.client import TierClient
from tidelog_node.tier.protocol import ByteRange

SIZE_BYTES_MAX = 64 << 20


class IndexCache:
    """Index objects by segment id. For the tasks of one event loop."""

    def __init__(
        self, client: TierClient, *, executor: Executor, size_bytes_max: int = SIZE_BYTES_MAX
    ) -> None:
        self._client = client
        self._executor = executor
        self._size_bytes_max = size_bytes_max
        self._indexes: OrderedDict[UUID, IndexFile] = OrderedDict()  # least used first
        self._under_way: dict[UUID, asyncio.Task[IndexFile]] = {}
        self.size_bytes = 0

    async def get(self, segment: SegmentMeta, key: str) -> IndexFile:
        """Return the segment's index. Raises ``CorruptObject`` and the client's errors."""
        found = self._indexes.get(segment.segment_id)
        if found is not None:
            self._indexes.move_to_end(segment.segment_id)
            return found
        return await asyncio.shield(self._start(segment, key))

    def prefetch(self, segment: SegmentMeta, key: str) -> IndexFile | None:
        """Return the index if it is cached; otherwise start to fetch it and return ``None``."""
        found = self._indexes.get(segment.segment_id)
        if found is None:
            self._start(segment, key)
        return found

    def forget(self, segment_id: UUID) -> None:
        """Drop the index of a segment that is no longer read, unless it is being fetched."""
        forgotten = self._indexes.pop(segment_id, None)
        if forgotten is not None:
            self.size_bytes -= forgotten.size_bytes

    async def close(self) -> None:
        """Cancel the running fetches."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, segment: SegmentMeta, key: str) -> asyncio.Task[IndexFile]:
        task = self._under_way.get(segment.segment_id)
        if task is None:
            task = asyncio.create_task(self._load(segment, key))
            self._under_way[segment.segment_id] = task
            task.add_done_callback(lambda done: self._forget(segment.segment_id, done))
        return task

    def _forget(self, segment_id: UUID, done: asyncio.Task[IndexFile]) -> None:
        del self._under_way[segment_id]
        if not done.cancelled():
            done.exception()  # Every caller may have been cancelled.

    async def _load(self, segment: SegmentMeta, key: str) -> IndexFile:
        file = await self._client.read(ByteRange(key, 0, segment.index_size_bytes))
        loop = asyncio.get_running_loop()
        index = await loop.run_in_executor(self._executor, _parse, file, segment, key)
        self._indexes[segment.segment_id] = index
        self.size_bytes += index.size_bytes
        while self.size_bytes > self._size_bytes_max and len(self._indexes) > 1:
            _, evicted = self._indexes.popitem(last=False)
            self.size_bytes -= evicted.size_bytes
        return index


def _parse(file: ReadableFile, segment: SegmentMeta, key: str) -> IndexFile:
    return parse_index_of(segment, os.pread(file.fileno(), segment.index_size_bytes, 0), key=key)
