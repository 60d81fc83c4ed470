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


async def test_a_batch_is_sent_without_a_copy_of_the_whole() -> None:
    record = Record(0, NOW_MS, b"k", os.urandom(LARGE_BYTES), ())
    batch = memoryview(bytearray(build_batch([record])))
    async with inspector() as running:
        tracemalloc.start()
        checked, headers = await running.check(batch, COMPACTED, now_ms=NOW_MS, host="h")
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert checked is batch
    assert [header.record_count for _, header in headers] == [1]
    assert most_bytes < LARGE_BYTES / 10


def heavy_batch(count: int = 20_000) -> memoryview:
    records = [Record(offset, NOW_MS, b"k", b"", ()) for offset in range(count)]
    return memoryview(bytearray(build_batch(records)))


async def test_hosts_take_turns_however_much_one_of_them_sends() -> None:
    batch, done = heavy_batch(), []

    async with inspector() as running:

        async def check(host: str) -> None:
            await running.check(batch, COMPACTED, now_ms=NOW_MS, host=host)
            done.append(host)

        await asyncio.gather(*map(check, ["many"] * 6 + ["one", "other"]))
    assert done[:5] == ["many", "many", "one", "other", "many"]


async def test_a_caller_that_gives_up_leaves_the_line_and_the_process_to_the_others() -> None:
    batch = heavy_batch()
    async with inspector() as running:
        callers = [
            asyncio.create_task(running.check(batch, COMPACTED, now_ms=NOW_MS, host="many"))
            for _ in range(6)
        ]
        await asyncio.sleep(0.05)
        for caller in callers:
            caller.cancel()
        checked, _ = await running.check(batch, COMPACTED, now_ms=NOW_MS, host="one")
        assert checked is batch
        await asyncio.gather(*callers, return_exceptions=True)
        assert all(caller.cancelled() for caller in callers)
