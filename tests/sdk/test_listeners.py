"""Rebalance listeners that do what they should not, and what they do in odd moments."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest
from tidelog import Consumer, Producer, RebalanceListener, TopicPartition
from tidelog.errors import InvalidRequest

from tests.sdk.group_readers import CONSUMER, Reader, is_divided
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async

WAITED_S = 30.0  # for what a fault would keep from happening at all
CLASSIC: dict[str, Any] = {"heartbeat_interval_ms": 100}
PROTOCOLS = [
    pytest.param(CLASSIC, id="cooperative"),
    pytest.param({**CLASSIC, "assignors": "range"}, id="eager"),
    pytest.param(CONSUMER, id="consumer"),
]


class Doing(RebalanceListener):
    """Does something in its first call of the given kind."""

    def __init__(self, kind: str, does: Callable[[], Awaitable[object]]) -> None:
        self._kind = kind
        self._does = does
        self.raised: list[BaseException] = []
        self.told: list[tuple[str, frozenset[TopicPartition]]] = []

    async def _note(self, kind: str, partitions: Collection[TopicPartition]) -> None:
        self.told.append((kind, frozenset(partitions)))
        if kind == self._kind and not self.raised:
            try:
                await self._does()
            except BaseException as error:
                self.raised.append(error)
                raise

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await self._note("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._note("revoked", partitions)


async def first_error(consumer: Consumer) -> BaseException:
    """Poll until a poll raises."""
    async with asyncio.timeout(WAITED_S):
        while True:
            try:
                await consumer.poll(timeout_ms=500)
            except Exception as error:
                return error


@pytest.mark.parametrize("options", PROTOCOLS)
@pytest.mark.parametrize("call", ["close", "unsubscribe"])
async def test_a_listener_that_ends_its_consumer_is_refused_and_the_consumer_goes_on(
    node: NodeProcess, topic: str, name: str, options: dict[str, Any], call: str
) -> None:
    """The end would have waited for the rebalance, and that for the listener."""
    consumer = Consumer(node.address, group_id=name, auto_offset_reset="earliest", **options)
    listener = Doing("assigned", getattr(consumer, call))
    consumer.subscribe([topic], listener=listener)
    assert isinstance(await first_error(consumer), InvalidRequest)
    assert isinstance(listener.raised[0], InvalidRequest)
    async with Producer(node.address) as producer:
        await producer.send_and_wait(topic, b"v")
    async with asyncio.timeout(WAITED_S):
        while not await consumer.poll():
            pass
        await consumer.close()


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
def test_a_plain_listener_that_ends_its_consumer_is_refused(
    node: NodeProcess, topic: str, name: str, call: str
) -> None:
    """``close`` waited for its own thread."""
    raised: list[BaseException] = []
    with Consumer(node.address, group_id=name).sync() as consumer:

        class Ending(RebalanceListener):
            def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
                try:
                    getattr(consumer, call)()
                except InvalidRequest as error:
                    raised.append(error)

        consumer.subscribe([topic], listener=Ending())
        polling = threading.Thread(target=lambda: consumer.poll(timeout_ms=5_000), daemon=True)
        polling.start()
        polling.join(WAITED_S)
        assert not polling.is_alive()
        assert len(raised) == 1
        assert consumer.assignment()


@pytest.mark.parametrize("options", PROTOCOLS)
async def test_a_listener_may_have_another_task_close_the_consumer(
    node: NodeProcess, topic: str, name: str, options: dict[str, Any]
) -> None:
    consumer = Consumer(node.address, group_id=name, **options)
    closing: list[asyncio.Task[None]] = []

    async def close() -> None:
        closing.append(asyncio.create_task(consumer.close()))
        await asyncio.sleep(0.1)

    consumer.subscribe([topic], listener=Doing("assigned", close))
    assert "closed" in str(await first_error(consumer))
    async with asyncio.timeout(WAITED_S):
        await closing[0]


@pytest.mark.parametrize("options", PROTOCOLS)
@pytest.mark.parametrize("kind", ["assigned", "revoked"])
async def test_a_listener_that_awaits_what_it_has_cancelled_stops_no_rebalance(
    node: NodeProcess,
    new_topic: Callable[..., str],
    name: str,
    options: dict[str, Any],
    kind: str,
) -> None:
    """The rebalance ended in silence: partitions that were assigned then were never read."""
    topic = new_topic(4)

    async def await_worker() -> None:
        worker = asyncio.create_task(asyncio.sleep(3600))
        worker.cancel()
        await worker

    consumer = Consumer(node.address, group_id=name, auto_offset_reset="earliest", **options)
    listener = Doing(kind, await_worker)
    consumer.subscribe([topic], listener=listener)
    raised: list[BaseException] = []
    got: set[int] = set()

    async def read() -> None:
        while True:
            try:
                got.update(one.partition for one in await consumer.poll(timeout_ms=100))
            except InvalidRequest as error:
                raised.append(error)

    task = asyncio.create_task(read())
    try:
        await eventually_async(lambda: len(consumer.assignment()) == 4, "alone")
        async with Reader(node.address, topic, name, **options) as other:
            await eventually_async(lambda: len(consumer.assignment()) == 2, "two share")
            await eventually_async(lambda: len(other.partitions) == 2, "two share")
        await eventually_async(lambda: len(consumer.assignment()) == 4, "alone again")
        async with Producer(node.address) as producer:
            for number in range(4):
                await producer.send(topic, b"v", partition=number)
        await eventually_async(lambda: got == {0, 1, 2, 3}, "all are read")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.close()
    assert isinstance(listener.raised[0], asyncio.CancelledError)
    assert [str(error) for error in raised] == [
        "the rebalance listener raised CancelledError: it awaits a task that was cancelled"
    ]


@pytest.mark.parametrize("options", PROTOCOLS)
async def test_seeks_pauses_and_commits_within_a_slow_rebalance_hold(
    node: NodeProcess, new_topic: Callable[..., str], name: str, options: dict[str, Any]
) -> None:
    topic = new_topic(4)
    async with Producer(node.address) as producer:
        for number in range(40):
            await producer.send(topic, b"v", partition=number % 4)
    consumer = Consumer(
        node.address, group_id=name, auto_offset_reset="earliest", fetch_max_wait_ms=100, **options
    )

    class Seeking(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            for partition in partitions:
                consumer.seek(partition, 4)
                await asyncio.sleep(0.05)
                consumer.pause([partition])
            await consumer.commit()

        async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            await asyncio.sleep(0.3)
            await consumer.commit()

    consumer.subscribe([topic], listener=Seeking())
    got: list[tuple[int, int]] = []

    async def read() -> None:
        while True:
            records = await consumer.poll(timeout_ms=50)
            got.extend((one.partition, one.offset) for one in records)
            if consumer.paused() and len(consumer.paused()) == len(consumer.assignment()):
                consumer.resume(consumer.paused())

    task = asyncio.create_task(read())
    try:
        await eventually_async(lambda: len(got) == 24, "all behind the place are read")
        async with Reader(node.address, topic, name, **options) as other:

            def is_shared() -> bool:
                mine = {one.partition for one in consumer.assignment()}
                return len(mine) == len(other.partitions) == 2 and not mine & other.partitions

            await eventually_async(is_shared, "two share")
        await eventually_async(lambda: len(consumer.assignment()) == 4, "alone again")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.close()
    assert set(got) | set(other.got) == {(n, offset) for n in range(4) for offset in range(4, 10)}


async def test_a_group_whose_members_have_slow_listeners_comes_to_rest(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic(6)
    called_at = 0.0

    class Slow(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            nonlocal called_at
            called_at = time.monotonic()
            await asyncio.sleep(0.3)

        async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            await asyncio.sleep(0.3)

    readers = [Reader(node.address, topic, name) for _ in range(3)]
    for reader in readers:
        reader.consumer.subscribe([topic], listener=Slow())
        await reader.__aenter__()
    try:
        await eventually_async(is_divided(6, *readers), "three share")
        # Another rebalance would begin before.
        await eventually_async(lambda: time.monotonic() - called_at > 1.5, "it rests", 60)
        assert is_divided(6, *readers)()
    finally:
        for reader in readers:
            await reader.__aexit__()
