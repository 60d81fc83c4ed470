"""The process that looks into batches: what it is sent, and who is served first."""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog_core.config import TopicConfig
from tidelog_core.records.batch import Record, build_batch
from tidelog_node.inspection.inspector import BatchInspector

NOW_MS = time.time_ns() // 1_000_000
COMPACTED = TopicConfig(cleanup_policy=("compact",), max_message_bytes=1 << 30)
LARGE_BYTES = 20_000_000


@asynccontextmanager
async def inspector() -> AsyncIterator[BatchInspector]:
    running = BatchInspector()
    try:
        yield running
    finally:
        await running.close()


def test_a_batch_is_sent_without_a_copy_of_the_whole() -> None:
    async def main() -> None:
        record = Record(0, NOW_MS, b"k", os.urandom(LARGE_BYTES), ())
        batch = memoryview(bytearray(build_batch([record])))
        async with inspector() as running:
            tracemalloc.start()
            checked, headers = await running.check(batch, COMPACTED, now_ms=NOW_MS)
            _, most_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert checked is batch
        assert [header.record_count for _, header in headers] == [1]
        assert most_bytes < LARGE_BYTES / 10

    asyncio.run(main())
