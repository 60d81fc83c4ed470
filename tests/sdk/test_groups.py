"""Groups of consumers against a real node: who reads what, and handing over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest
from tidelog import Admin, Consumer, Producer, RebalanceListener, TopicPartition
from tidelog.errors import CommitFailed, FencedInstanceId
from tidelog.options import ASSIGNORS, AssignorName

from tests.sdk.group_readers import Log, Reader, come_and_go, die, is_divided, writing
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_members_come_and_go_and_every_record_is_read_exactly_once(
    node: NodeProcess, new_topic: Callable[..., str], name: str, assignor: AssignorName
) -> None:
    await come_and_go(node.address, new_topic(6), name, assignors=assignor)


async def test_a_member_that_dies_is_replaced(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    await die(node.address, new_topic(4), name, session_timeout_ms=1_000)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_listeners_are_told_what_comes_and_goes(
    node: NodeProcess, new_topic: Callable[..., str], name: str, assignor: AssignorName
) -> None:
    topic = new_topic(4)
    log = Log()
    reader = Reader(node.address, topic, name, assignors=assignor)
    reader.consumer.subscribe([topic], listener=log)
    async with reader:
        await eventually_async(is_divided(4, reader), "alone")
        async with Reader(node.address, topic, name, assignors=assignor) as second:
            await eventually_async(is_divided(4, reader, second), "two share")
        await eventually_async(is_divided(4, reader), "alone again")
        told = list(log.told)
    everything = {0, 1, 2, 3}
    assert told[0] == ("assigned", everything)
    if assignor == "range":
        kept = told[2][1]
        assert len(kept) == 2
        assert told == [
            ("assigned", everything),
            ("revoked", everything),
            ("assigned", kept),
            ("revoked", kept),
            ("assigned", everything),
        ]
    else:
        gone = told[1][1]
        assert told[1] == ("revoked", gone)
        assert len(gone) == 2
        assert ("assigned", gone) in told[2:]
    assert log.told[-1] == ("revoked", everything)


class SlowLog(Log):
    """Takes several heartbeats' time to give partitions back."""

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        super().on_partitions_revoked(partitions)
        await asyncio.sleep(0.5)


async def test_a_slow_listener_causes_no_rebalance_more(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    """Heartbeats before the join show the rebalance that the join is for."""
    topic = new_topic(4)
    log = SlowLog()
    reader = Reader(node.address, topic, name, assignors="range")
    reader.consumer.subscribe([topic], listener=log)
    async with reader:
        await eventually_async(is_divided(4, reader), "alone")
        async with Reader(node.address, topic, name, assignors="range") as second:
            await eventually_async(is_divided(4, reader, second), "two share")
            await asyncio.sleep(0.5)  # Another rebalance would have begun.
            told = list(log.told)
    everything = {0, 1, 2, 3}
    assert told[:2] == [("assigned", everything), ("revoked", everything)]
    assert len(told) == 3


async def test_a_listener_may_seek_and_commit(node: NodeProcess, topic: str, name: str) -> None:
    async with Producer(node.address) as producer:
        for _ in range(20):
            await producer.send(topic, b"v")
    consumer = Consumer(node.address, group_id=name, enable_auto_commit=False)

    class Seeks(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            for partition in partitions:
                assert await consumer.position(partition) == 20
                consumer.seek(partition, 15)

        async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            await consumer.commit()

    consumer.subscribe([topic], listener=Seeks())
    async with consumer:
        (record,) = await consumer.poll(max_records=1, timeout_ms=10_000)
        assert record.offset == 15
    async with Admin(node.address) as admin:
        assert (await admin.list_group_offsets(name))[TopicPartition(topic, 0)].offset == 16


async def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic(4)
    log = Log()
    options = {"assignors": "range", "session_timeout_ms": 20_000}
    other = Reader(node.address, topic, name, **options, group_instance_id="b")
    other.consumer.subscribe([topic], listener=log)
    async with other:
        async with Reader(node.address, topic, name, **options, group_instance_id="a") as first:
            await eventually_async(is_divided(4, first, other), "two share")
            had = first.partitions
        told = len(log.told)
        async with Reader(node.address, topic, name, **options, group_instance_id="a") as again:
            await eventually_async(lambda: again.partitions == had, "the same partitions again")
            assert len(log.told) == told
            async with Admin(node.address) as admin:
                group = (await admin.describe_groups([name]))[name]
            assert {m.group_instance_id for m in group.members} == {"a", "b"}


async def test_the_second_of_one_name_fences_the_first(
    node: NodeProcess, topic: str, name: str
) -> None:
    options = {"group_instance_id": "same", "heartbeat_interval_ms": 100}
    first = Consumer(node.address, topics=[topic], group_id=name, **options)  # type: ignore[arg-type]
    async with (
        first,
        Consumer(node.address, topics=[topic], group_id=name, **options) as second,
    ):  # type: ignore[arg-type]
        await first.poll(timeout_ms=1_000)
        await second.poll(timeout_ms=1_000)

        async def poll_on() -> None:
            for _ in range(100):
                await first.poll(timeout_ms=100)

        for _ in range(2):  # and it stays so
            with pytest.raises(FencedInstanceId):
                await poll_on()


async def test_a_user_that_does_not_come_back_loses_its_partitions(
    node: NodeProcess, topic: str, name: str
) -> None:
    async with Producer(node.address) as producer:
        for _ in range(10):
            await producer.send(topic, b"v")
    log = Log()
    slow = Consumer(
        node.address,
        group_id=name,
        auto_offset_reset="earliest",
        max_poll_interval_ms=700,
        heartbeat_interval_ms=100,
    )
    slow.subscribe([topic], listener=log)
    async with slow:
        assert len(await slow.poll(max_records=4, timeout_ms=10_000)) == 4
        async with Reader(node.address, topic, name) as quick:
            await eventually_async(lambda: len(quick.got) == 10, "the quick one reads all", 60)
            with pytest.raises(CommitFailed):
                await slow.commit()
            await slow.poll(timeout_ms=200)
            assert ("lost", {0}) in log.told
        while not slow.assignment():
            await slow.poll(timeout_ms=100)


async def test_a_user_that_takes_long_over_each_record_keeps_its_partitions(
    node: NodeProcess, topic: str, name: str
) -> None:
    async with Producer(node.address) as producer:
        for _ in range(8):
            await producer.send(topic, b"v")
    count = 0
    async with Consumer(
        node.address,
        topics=[topic],
        group_id=name,
        auto_offset_reset="earliest",
        max_poll_interval_ms=2_000,
        heartbeat_interval_ms=100,
    ) as consumer:
        async for _ in consumer:
            await asyncio.sleep(0.3)
            count += 1
            if count == 8:
                break
        await consumer.commit()


async def test_new_partitions_and_new_topics_are_taken_up(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    prefix = new_topic(1)
    async with Admin(node.address) as admin:
        consumer = Consumer(
            node.address, group_id=name, metadata_max_age_ms=200, heartbeat_interval_ms=100
        )
        consumer.subscribe(pattern=f"{prefix}.*")
        async with consumer:
            wanted = {(prefix, 0)}

            async def reads(more: set[tuple[str, int]]) -> None:
                async with asyncio.timeout(60):
                    while consumer.assignment() != more:
                        await consumer.poll(timeout_ms=100)

            await reads(wanted)
            await admin.create_partitions({prefix: 2})
            await reads({(prefix, 0), (prefix, 1)})
            await admin.create_topic(f"{prefix}-more", partition_count=1)
            await reads({(prefix, 0), (prefix, 1), (f"{prefix}-more", 0)})
            assert consumer.subscription() == {prefix, f"{prefix}-more"}


async def test_subscribing_anew_and_unsubscribing(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    one, two = new_topic(1), new_topic(1)
    async with Consumer(node.address, topics=one, group_id=name) as consumer:

        async def reads(topic: str) -> None:
            async with asyncio.timeout(60):
                while consumer.assignment() != {(topic, 0)}:
                    await consumer.poll(timeout_ms=100)

        await reads(one)
        consumer.subscribe([two])
        await reads(two)
        await consumer.unsubscribe()
        assert consumer.assignment() == set()
        async with Admin(node.address) as admin:
            assert (await admin.describe_groups([name]))[name].state == "Empty"
        consumer.subscribe([one])
        await reads(one)


async def test_a_coordinator_that_was_killed_keeps_the_group(own_node: NodeProcess) -> None:
    from tests.sdk.conftest import make_topic

    topic = make_topic(own_node, "kept", 4)
    async with (
        Reader(own_node.address, topic, "g") as first,
        Reader(own_node.address, topic, "g") as second,
    ):
        async with writing(own_node.address, topic, 4) as written:
            await eventually_async(is_divided(4, first, second), "two share")
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own_node.kill)
            await asyncio.to_thread(own_node.start)
            await eventually_async(is_divided(4, first, second), "two share still")
            await asyncio.sleep(0.5)
        await eventually_async(
            lambda: len(set(first.got + second.got)) == len(written), "everything is read"
        )
