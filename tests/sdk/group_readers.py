"""Consumers of one group that read in the background, and what is asked of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from tidelog import Admin, Consumer, Producer, RebalanceListener, TopicPartition

from tests.support.waiting import eventually_async

CONSUMER: dict[str, Any] = {"group_protocol": "consumer"}


async def create(address: str, topic: str, partition_count: int) -> str:
    async with Admin(address) as admin:
        await admin.create_topic(topic, partition_count=partition_count)
    return topic


class Reader:
    """A consumer that reads in the background and remembers what it got."""

    def __init__(self, address: str, topic: str, group: str, **options: object) -> None:
        self.got: list[tuple[int, int]] = []
        classic = {"heartbeat_interval_ms": 100, "session_timeout_ms": 6_000}
        self.options: dict[str, object] = {
            "auto_offset_reset": "earliest",
            **({} if options.get("group_protocol") == "consumer" else classic),
            "fetch_max_wait_ms": 100,
            **options,
        }
        self.consumer = Consumer(address, topics=topic, group_id=group, **self.options)  # type: ignore[arg-type]
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Reader:
        await self.consumer.start()
        self.task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.consumer.close()

    async def _read(self) -> None:
        async for record in self.consumer:
            self.got.append((record.partition, record.offset))
            if record.offset % 7 == 0:
                await asyncio.sleep(0.001)

    @property
    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}


def is_divided(count: int, *readers: Reader) -> Callable[[], bool]:
    """Whether the readers have all partitions, none twice, none without any."""

    def check() -> bool:
        parts = [reader.partitions for reader in readers]
        return all(parts) and Counter(p for part in parts for p in part) == Counter(range(count))

    return check


@contextlib.asynccontextmanager
async def writing(address: str, topic: str, partitions: int) -> AsyncIterator[list[int]]:
    """Write to every partition in turn until the block ends; yields what was written."""
    written: list[int] = []
    stop = asyncio.Event()

    async def write() -> None:
        async with Producer(address) as producer:
            while not stop.is_set():
                await producer.send(topic, b"v", partition=len(written) % partitions)
                written.append(len(written))
                await asyncio.sleep(0.001)

    task = asyncio.create_task(write())
    try:
        yield written
    finally:
        stop.set()
        await task


class Log(RebalanceListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, set[int]]] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", {p.partition for p in partitions}))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", {p.partition for p in partitions}))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("lost", {p.partition for p in partitions}))


async def come_and_go(address: str, topic: str, group: str, **options: Any) -> None:
    """Have members come and go; fails unless every record is read exactly once.

    Handing over in order repeats nothing, as what was dealt with is committed first. The topic has
    six partitions.
    """
    async with Reader(address, topic, group, **options) as first:
        async with writing(address, topic, 6) as written:
            await eventually_async(is_divided(6, first), "the first reads alone")
            async with Reader(address, topic, group, **options) as second:
                await eventually_async(is_divided(6, first, second), "two share")
                assert len(first.partitions) == 3
                async with Reader(address, topic, group, **options) as third:
                    await eventually_async(is_divided(6, first, second, third), "three share")
                    await _reads_more(second)
                    await _reads_more(third)
                await eventually_async(is_divided(6, first, second), "two share again")
            await eventually_async(is_divided(6, first), "the first reads alone again")
            await _reads_more(first)

        def read() -> list[tuple[int, int]]:
            return first.got + second.got + third.got

        await eventually_async(lambda: len(set(read())) == len(written), "everything is read")
    assert len(read()) == len(written)


async def _reads_more(reader: Reader) -> None:
    """Wait for a record after those that it has: it looks for its place and fetches first."""
    count = len(reader.got)
    await eventually_async(lambda: len(reader.got) > count, "it reads")


async def die(address: str, topic: str, group: str, **options: Any) -> None:
    """Have one of two members die; fails unless the other gets all four partitions."""
    first = Reader(address, topic, group, **options)
    await first.__aenter__()
    async with Reader(address, topic, group, **options) as second:
        await eventually_async(is_divided(4, first, second), "two share")
        assert first.task is not None
        first.task.cancel()
        await first.consumer._cluster.close()  # No heartbeats, no goodbye.
        await eventually_async(is_divided(4, second), "the second has all")
    await first.consumer.close()
