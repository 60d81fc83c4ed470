"""Reads index objects of the tier for heirs: the producers and leader epochs at the tier's end.

The tier worker would do it too, but it is a process that starts with the first call, and producers
would wait for that. So an heir reads them itself, as it reads the chains.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial

from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.time_search import parse_index_of

from tidelog_node.diskless.recovery.range_reader import RangeReader


class TierIndexes:
    """Reads index objects without a cache. For the tasks of one event loop."""

    def __init__(self, read: RangeReader, executor: Executor) -> None:
        self._read = read
        self._executor = executor

    async def get(self, segment: SegmentMeta, key: str) -> IndexFile:
        """Return the segment's index. Raises ``CorruptObject`` and the store's errors."""
        data = await self._read(key, 0, segment.index_size_bytes)
        parse = partial(parse_index_of, segment, bytes(data), key=key)
        return await asyncio.get_running_loop().run_in_executor(self._executor, parse)
