"""Calls that are cancelled wherever they wait, as by ``asyncio.timeout``: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.errors import InvalidRequest

from tests.sdk.cancelling import Cancelled, Place, places
from tests.sdk.group_readers import CONSUMER, Log
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async

WAITED_S = 30.0  # for what a fault would keep from happening at all
CLASSIC: dict[str, Any] = {"heartbeat_interval_ms": 100}


async def cancelled_at(
    place: Place | None, work: Coroutine[Any, Any, Any]
) -> tuple[int, object | None]:
    """Await the work, cancelled at the place; return how often it has waited, and its result."""
    results: list[object] = []

    async def keep() -> None:
        results.append(await work)

    cancelled = Cancelled(keep(), [] if place is None else [place])

    async def run() -> None:
        await cancelled

    task = asyncio.create_task(run())
    await asyncio.wait([task], timeout=WAITED_S)
    assert task.done(), f"it does not end, cancelled at {place}"
    if not task.cancelled():
        task.result()
    return cancelled.suspension_count, results[0] if results else None


async def read_all(address: str, topic: str) -> list[bytes | None]:
    async with Consumer(address) as consumer:
        consumer.assign([(topic, 0)])
        end = (await consumer.end_offsets([(topic, 0)]))[TopicPartition(topic, 0)]
        consumer.seek((topic, 0), 0)
        found: list[bytes | None] = []
        async with asyncio.timeout(WAITED_S):
            while len(found) < end:
                found += [record.value for record in await consumer.poll()]
    return found


# -- sending --


@pytest.mark.parametrize("buffer_memory_bytes", [32 * 1024 * 1024, 700])
async def test_a_record_whose_send_was_cancelled_is_not_sent(
    node: NodeProcess, topic: str, buffer_memory_bytes: int
) -> None:
    """One was, if it filled its batch: a program that sent it again wrote it twice."""
    options: dict[str, Any] = {
        "batch_size_bytes": 300,
        "buffer_memory_bytes": buffer_memory_bytes,
        "request_size_bytes_max": 600,
    }
    async with Producer(node.address, **options) as producer:
        taken, number = [], 0
        for round_number in range(30):
            for place in (*places(2), None):
                number += 1
                value = b"%0100d" % number
                _, delivery = await cancelled_at(place, producer.send(topic, value))
                if delivery is not None:
                    taken.append(value)
            if round_number % 3 == 0:
                await producer.flush()
        await producer.flush()
    assert len(taken) < number  # Some were cancelled.
    assert await read_all(node.address, topic) == taken


async def test_a_producer_whose_start_was_cancelled_starts_with_the_next_call(
    node: NodeProcess, topic: str, name: str
) -> None:
    for transactional_id in (None, name):
        options: dict[str, Any] = {"transactional_id": transactional_id}
        async with Producer(node.address, **options) as producer:
            del producer
        probe = Producer(node.address, **options)
        count, _ = await cancelled_at(None, probe.start())
        await probe.close()
        for place in places(count):
            producer = Producer(node.address, **options)
            await cancelled_at(place, producer.start())
            async with asyncio.timeout(WAITED_S):
                if transactional_id is None:
                    await producer.send_and_wait(topic, b"v")
                else:
                    async with producer.transaction():
                        await producer.send(topic, b"v")
                await producer.close()


async def test_a_producer_whose_close_was_cancelled_is_closed(
    node: NodeProcess, topic: str
) -> None:
    before = asyncio.all_tasks()

    async def used() -> Producer:
        producer = Producer(node.address, linger_ms=1)
        await producer.send_and_wait(topic, b"v")
        await producer.send(topic, b"v")
        return producer

    count, _ = await cancelled_at(None, (await used()).close())
    for place in places(count):
        await cancelled_at(place, (await used()).close())
    await eventually_async(lambda: not asyncio.all_tasks() - before, "no task is left")


# -- reading --


async def fill(address: str, topic: str, count: int) -> None:
    async with Producer(address) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=0)


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
@pytest.mark.parametrize("call", ["poll", "anext"])
async def test_no_record_is_lost_by_polls_that_are_cancelled(
    node: NodeProcess, topic: str, name: str, protocol: dict[str, Any], call: str
) -> None:
    await fill(node.address, topic, 300)
    async with Consumer(
        node.address,
        topics=topic,
        group_id=name,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=200,
        **protocol,
    ) as consumer:
        records = aiter(consumer)
        found: list[int] = []
        for place in [None, *places(4)] * 3:

            async def read() -> list[int]:
                if call == "poll":
                    return [one.offset for one in await consumer.poll(max_records=3)]
                return [(await anext(records)).offset]

            _, read_now = await cancelled_at(place, read())
            assert isinstance(read_now, list | None)
            found += read_now or []
        async with asyncio.timeout(WAITED_S):
            while len(found) < 300:
                found += [one.offset for one in await consumer.poll(max_records=20)]
    assert found == list(range(300))


async def test_a_wait_for_the_next_record_may_be_cut_short_again_and_again(
    node: NodeProcess, topic: str, name: str
) -> None:
    """The iteration was over after the first, and the reading with it."""
    async with Consumer(
        node.address, topics=topic, group_id=name, auto_offset_reset="earliest"
    ) as consumer:
        records = aiter(consumer)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(records), 0.05)
        await fill(node.address, topic, 3)
        offsets = [(await asyncio.wait_for(anext(records), WAITED_S)).offset for _ in range(3)]
        assert offsets == [0, 1, 2]
        await records.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(records)


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
async def test_a_commit_that_is_cancelled_keeps_no_other_from_its_place(
    node: NodeProcess, topic: str, name: str, protocol: dict[str, Any]
) -> None:
    await fill(node.address, topic, 100)
    async with Consumer(
        node.address,
        topics=topic,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **protocol,
    ) as consumer:
        while not await consumer.poll(max_records=1, timeout_ms=1_000):
            pass
        count, _ = await cancelled_at(None, consumer.commit({(topic, 0): 1}))
        for number, place in enumerate(places(count)):
            await cancelled_at(place, consumer.commit({(topic, 0): number + 2}))
            async with asyncio.timeout(WAITED_S):
                await consumer.commit({(topic, 0): number + 3})
                (committed,) = (await consumer.committed([(topic, 0)])).values()
            assert committed is not None
            assert committed.offset == number + 3


async def joined(address: str, topic: str, group: str, **options: Any) -> Consumer:
    consumer = Consumer(address, group_id=group, auto_offset_reset="earliest", **options)
    consumer.subscribe([topic], listener=Log())
    async with asyncio.timeout(WAITED_S):
        while not await consumer.poll(max_records=1, timeout_ms=1_000):
            pass
    return consumer


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
@pytest.mark.parametrize("call", ["close", "unsubscribe"])
async def test_a_consumer_whose_end_was_cancelled_reads_no_more_of_its_group(
    node: NodeProcess, topic: str, name: str, protocol: dict[str, Any], call: str
) -> None:
    """After ``unsubscribe`` it read on without a group, what others read too."""
    await fill(node.address, topic, 10)

    def end(consumer: Consumer) -> Callable[[], Coroutine[Any, Any, None]]:
        return consumer.close if call == "close" else consumer.unsubscribe

    before = asyncio.all_tasks()
    probe = await joined(node.address, topic, name, **protocol)
    count, _ = await cancelled_at(None, end(probe)())
    await probe.close()
    for number, place in enumerate(places(count)):
        consumer = await joined(node.address, topic, f"{name}-{number}", **protocol)
        await cancelled_at(place, end(consumer)())
        assert consumer.assignment() == frozenset(), place
        if call == "unsubscribe":
            with pytest.raises(InvalidRequest, match="nothing to read"):
                await consumer.poll(timeout_ms=0)
        async with asyncio.timeout(WAITED_S):
            await consumer.close()
    await eventually_async(lambda: not asyncio.all_tasks() - before, "no task is left")


async def test_calls_of_an_admin_that_are_cancelled_leave_it_usable(
    node: NodeProcess, topic: str
) -> None:
    probe = Admin(node.address)
    count, _ = await cancelled_at(None, probe.describe_topics([topic]))
    await probe.close()
    for place in places(count):
        admin = Admin(node.address)
        await cancelled_at(place, admin.describe_topics([topic]))
        async with asyncio.timeout(WAITED_S):
            await admin.describe_topics([topic])
            await admin.close()
