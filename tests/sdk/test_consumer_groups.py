"""Groups by the consumer protocol (KIP-848): who reads what, handing over, and both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from tidelog import (
    Admin,
    Consumer,
    Producer,
    RebalanceListener,
    SubscriptionPattern,
    TopicPartition,
)
from tidelog.errors import (
    CommitFailed,
    InvalidConfig,
    InvalidRegularExpression,
    InvalidRequest,
    UnreleasedInstanceId,
)
from tidelog.options import GroupProtocol
from tidelog.wire.requests import CONSUMER_GROUP_HEARTBEAT
from tidelog_core.wire_messages import build

from tests.sdk.group_readers import (
    CONSUMER,
    Log,
    Reader,
    come_and_go,
    create,
    die,
    is_divided,
    writing,
)
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async


@pytest.fixture(params=["tidelog", pytest.param("kafka", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest) -> str:
    """Both: what the protocol has to do with is tried against Apache Kafka too."""
    broker = request.getfixturevalue("node" if request.param == "tidelog" else "kafka")
    return str(broker.address)


async def describe(address: str, group: str) -> Any:
    async with Admin(address) as admin:
        return (await admin.describe_groups([group]))[group]


async def test_members_come_and_go_and_every_record_is_read_exactly_once(
    address: str, name: str
) -> None:
    await come_and_go(address, await create(address, name, 6), name, **CONSUMER)


async def test_a_member_that_dies_is_replaced(address: str, name: str) -> None:
    await die(address, await create(address, name, 4), name, **CONSUMER)


async def test_listeners_are_told_of_what_changes_hands_only(address: str, name: str) -> None:
    topic = await create(address, name, 4)
    log = Log()
    reader = Reader(address, topic, name, **CONSUMER)
    reader.consumer.subscribe([topic], listener=log)
    async with reader:
        await eventually_async(is_divided(4, reader), "alone")
        async with Reader(address, topic, name, **CONSUMER) as second:
            await eventually_async(is_divided(4, reader, second), "two share")
        await eventually_async(is_divided(4, reader), "alone again")
        told = [(event, partitions) for event, partitions in log.told if partitions]
    everything = {0, 1, 2, 3}
    assert told[0] == ("assigned", everything)
    gone = told[1][1]
    assert told[1] == ("revoked", gone)
    assert len(gone) == 2
    assert set().union(*(back for event, back in told[2:] if event == "assigned")) == gone
    assert log.told[-1] == ("revoked", everything)


async def test_a_member_that_is_fenced_gives_up_its_partitions_and_joins_once_more(
    address: str, name: str
) -> None:
    topic = await create(address, name, 2)
    log = Log()
    reader = Reader(address, topic, name, **CONSUMER)
    reader.consumer.subscribe([topic], listener=log)
    async with reader, Admin(address) as admin:
        await eventually_async(is_divided(2, reader), "it reads")
        member_id = reader.consumer.group_metadata().member_id
        coordinator = await admin._cluster.find_coordinator(name)
        goodbye = build(
            ConsumerGroupHeartbeatRequest,
            group_id=name,
            member_id=member_id,
            member_epoch=-1,
            topic_partitions=None,
        )
        await admin._cluster.request(CONSUMER_GROUP_HEARTBEAT, goodbye, node_id=coordinator)
        await eventually_async(lambda: ("lost", {0, 1}) in log.told, "it hears of it")
        await eventually_async(is_divided(2, reader), "it reads again")
        assert reader.consumer.group_metadata().member_id == member_id


async def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    address: str, name: str
) -> None:
    topic = await create(address, name, 4)
    log = Log()
    other = Reader(address, topic, name, **CONSUMER, group_instance_id="b")
    other.consumer.subscribe([topic], listener=log)
    async with other:
        first = Reader(address, topic, name, **CONSUMER, group_instance_id="a")
        async with first:
            await eventually_async(is_divided(4, first, other), "two share")
            had = first.partitions
        told = len(log.told)
        async with Reader(address, topic, name, **CONSUMER, group_instance_id="a") as again:
            await eventually_async(lambda: again.partitions == had, "the same partitions again")
            assert len(log.told) == told
            group = await describe(address, name)
            assert {member.group_instance_id for member in group.members} == {"a", "b"}


async def test_the_second_of_one_name_waits_for_the_first_to_leave(address: str, name: str) -> None:
    topic = await create(address, name, 1)
    options = {**CONSUMER, "group_id": name, "group_instance_id": "same"}
    async with Consumer(address, topics=topic, **options) as second:
        async with Reader(address, topic, name, **CONSUMER, group_instance_id="same") as first:
            await eventually_async(is_divided(1, first), "the first reads")
            with pytest.raises(UnreleasedInstanceId):
                await second.poll(timeout_ms=10_000)
        async with asyncio.timeout(60):
            while not second.assignment():
                await second.poll(timeout_ms=100)


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
        **CONSUMER,
    )
    slow.subscribe([topic], listener=log)
    async with slow:
        assert len(await slow.poll(max_records=4, timeout_ms=10_000)) == 4
        async with Reader(node.address, topic, name, **CONSUMER) as quick:
            await eventually_async(lambda: len(quick.got) == 10, "the quick one reads all", 60)
            with pytest.raises(CommitFailed):
                await slow.commit()
            await slow.poll(timeout_ms=200)
            assert ("lost", {0}) in log.told
        async with asyncio.timeout(60):
            while not slow.assignment():
                await slow.poll(timeout_ms=100)


@pytest.mark.parametrize("is_matched_here", [False, True])
async def test_new_topics_that_match_and_new_partitions_are_taken_up(
    node: NodeProcess, name: str, is_matched_here: bool
) -> None:
    """Kafka's coordinators look for new topics every ten seconds."""
    address = node.address
    names = [f"{name}-a", f"{name}-b"]
    await create(address, names[0], 1)
    consumer = Consumer(address, group_id=name, metadata_max_age_ms=300, **CONSUMER)
    pattern = f"{name}-[ab]"
    consumer.subscribe(pattern=pattern if is_matched_here else SubscriptionPattern(pattern))

    async def reads(*partitions: tuple[str, int]) -> None:
        async with asyncio.timeout(60):
            while consumer.assignment() != set(partitions):
                await consumer.poll(timeout_ms=100)

    async with consumer, Admin(address) as admin, Producer(address) as producer:
        await reads((names[0], 0))
        await admin.create_partitions({names[0]: 2})
        await reads((names[0], 0), (names[0], 1))
        await create(address, f"{name}-ab-longer", 1)
        await create(address, names[1], 1)
        if is_matched_here:  # Python's pattern is matched to the beginning of the name
            await reads((names[0], 0), (names[0], 1), (names[1], 0), (f"{name}-ab-longer", 0))
            return
        await reads((names[0], 0), (names[0], 1), (names[1], 0))
        assert consumer.subscription() == set(names)
        consumer.seek_to_beginning()
        await producer.send_and_wait(names[1], b"found")
        async with asyncio.timeout(60):
            while not (records := await consumer.poll(timeout_ms=100)):
                pass
        assert [record.value for record in records] == [b"found"]
        consumer.subscribe([names[1]])
        await reads((names[1], 0))


async def test_a_pattern_that_is_none_is_said_so_by_poll(address: str, name: str) -> None:
    topic = await create(address, name, 1)
    async with Consumer(address, group_id=name, **CONSUMER) as consumer:
        consumer.subscribe(pattern=SubscriptionPattern("(" + topic))
        with pytest.raises(InvalidRegularExpression):
            await consumer.poll(timeout_ms=10_000)
        consumer.subscribe([topic])
        async with asyncio.timeout(60):
            while not consumer.assignment():
                await consumer.poll(timeout_ms=100)


async def test_the_coordinators_assignor_may_be_asked_for(address: str, name: str) -> None:
    topic = await create(address, name, 3)
    options = {**CONSUMER, "group_remote_assignor": "range"}
    async with Reader(address, topic, name, **options) as reader:
        await eventually_async(is_divided(3, reader), "it reads")
        assert (await describe(address, name)).assignor == "range"
    options["group_remote_assignor"] = "none-such"
    async with Consumer(address, topics=topic, group_id=name, **options) as consumer:
        with pytest.raises(Exception, match="none-such"):
            await consumer.poll(timeout_ms=10_000)


async def test_commits_hold_while_the_group_moves_from_epoch_to_epoch(
    address: str, name: str
) -> None:
    """A commit of what is ours still is made again where the epoch has grown meanwhile."""
    topic = await create(address, name, 8)
    options = {"group_id": name, "enable_auto_commit": False, **CONSUMER}
    async with Consumer(address, topics=topic, **options) as consumer:
        async with asyncio.timeout(60):
            while len(consumer.assignment()) < 8:
                await consumer.poll(timeout_ms=100)
        epochs, offset = set(), 0

        async def shake() -> None:
            for _ in range(3):
                async with Reader(address, topic, name, **CONSUMER):
                    await eventually_async(lambda: len(consumer.assignment()) == 4, "two share")
                await eventually_async(lambda: len(consumer.assignment()) == 8, "alone again")

        shaking = asyncio.create_task(shake())
        while not shaking.done():
            await consumer.poll(timeout_ms=1)
            epochs.add(consumer.group_metadata().generation)
            for partition in consumer.assignment():
                offset += 1
                try:
                    await consumer.commit({partition: offset})
                except CommitFailed:
                    assert partition not in consumer.assignment()
        await shaking
        assert len(epochs) > 1


async def test_offsets_go_with_a_transaction_under_the_members_epoch(
    address: str, name: str
) -> None:
    topic = await create(address, name, 1)
    options = {"group_id": name, "enable_auto_commit": False, **CONSUMER}
    async with (
        Consumer(address, topics=topic, **options) as consumer,
        Producer(address, transactional_id=name) as producer,
    ):
        async with asyncio.timeout(60):
            while not consumer.assignment():
                await consumer.poll(timeout_ms=100)
        async with producer.transaction() as transaction:
            await transaction.send_offsets({(topic, 0): 7}, consumer.group_metadata())
        found = await consumer.committed([(topic, 0)])
        committed = found[TopicPartition(topic, 0)]
        assert committed is not None
        assert committed.offset == 7


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_what_a_listener_raises_comes_out_of_poll_and_the_next_poll_goes_on(
    node: NodeProcess, topic: str, name: str, protocol: GroupProtocol
) -> None:
    """As a member: without heartbeats another would get the partitions."""

    class Fails(RebalanceListener):
        count = 0

        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            self.count += 1
            if self.count == 1:
                raise LookupError("no room")

    listener = Fails()
    async with (
        Consumer(
            node.address,
            group_id=name,
            auto_offset_reset="earliest",
            group_protocol=protocol,
        ) as one,
        Producer(node.address) as producer,
    ):
        one.subscribe([topic], listener=listener)
        with pytest.raises(LookupError, match="no room"):
            await one.poll(timeout_ms=10_000)
        await producer.send_and_wait(topic, b"v")
        assert [record.value for record in await one.poll(timeout_ms=10_000)] == [b"v"]
        await eventually_async(lambda: listener.count > 1, "it has joined once more")
        await one.commit()


async def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    node: NodeProcess, topic: str, name: str
) -> None:
    """It has the name of the one before, and that one's position is not its own."""
    options = {**CONSUMER, "group_id": name, "auto_offset_reset": "earliest"}
    async with (
        Admin(node.address) as admin,
        Producer(node.address) as producer,
        Consumer(node.address, topics=topic, metadata_max_age_ms=300, **options) as consumer,
    ):
        for _ in range(3):
            await producer.send_and_wait(topic, b"old")
        got: list[bytes | None] = []
        async with asyncio.timeout(60):
            while len(got) < 3:
                got += [record.value for record in await consumer.poll(timeout_ms=100)]
        await admin.delete_topics([topic])
        async with asyncio.timeout(60):
            while consumer.assignment():
                await consumer.poll(timeout_ms=100)
        await admin.create_topic(topic, partition_count=1)
        await producer.send_and_wait(topic, b"new")
        async with asyncio.timeout(60):
            while len(got) < 4:
                got += [record.value for record in await consumer.poll(timeout_ms=100)]
        assert got == [b"old"] * 3 + [b"new"]


async def test_leaving_and_subscribing_anew(node: NodeProcess, topic: str, name: str) -> None:
    async with Consumer(node.address, topics=topic, group_id=name, **CONSUMER) as consumer:

        async def reads() -> None:
            async with asyncio.timeout(60):
                while not consumer.assignment():
                    await consumer.poll(timeout_ms=100)

        await reads()
        await consumer.unsubscribe()
        assert consumer.assignment() == set()
        assert (await describe(node.address, name)).state == "Empty"
        consumer.subscribe([topic])
        await reads()


def test_the_plain_face_reads_as_a_member_too(node: NodeProcess, topic: str, name: str) -> None:
    with Producer(node.address).sync() as producer:
        producer.send(topic, b"v").result()
    consumer = Consumer(node.address, group_id=name, auto_offset_reset="earliest", **CONSUMER)
    with consumer.sync() as plain:
        plain.subscribe(pattern=SubscriptionPattern(topic))
        assert [record.value for record in plain.poll(timeout_ms=10_000)] == [b"v"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group_protocol": "other"}, "group_protocol must be one of classic, consumer"),
        ({"group_remote_assignor": "uniform"}, "group_remote_assignor needs"),
        ({**CONSUMER, "session_timeout_ms": 10_000}, "session_timeout_ms cannot be set"),
        ({**CONSUMER, "heartbeat_interval_ms": 1_000}, "heartbeat_interval_ms cannot be set"),
        ({**CONSUMER, "assignors": "range"}, "assignors cannot be set"),
    ],
)
def test_options_of_the_other_protocol_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        Consumer("localhost", group_id="g", **options)


async def test_a_pattern_for_the_coordinator_needs_the_consumer_protocol() -> None:
    consumer = Consumer("localhost", group_id="g")
    with pytest.raises(InvalidRequest, match="group_protocol='consumer'"):
        consumer.subscribe(pattern=SubscriptionPattern("a"))


@pytest.mark.parametrize(
    ("before", "after"), [("classic", "consumer"), ("consumer", "classic")], ids=["up", "down"]
)
async def test_members_are_replaced_one_by_one_by_those_of_the_other_protocol(
    address: str, name: str, before: str, after: str
) -> None:
    topic = await create(address, name, 4)

    def reader(protocol: str) -> Reader:
        return Reader(address, topic, name, group_protocol=protocol)

    async with writing(address, topic, 4) as written:
        old = [reader(before), reader(before)]
        new = [reader(after), reader(after)]
        for one in old:
            await one.__aenter__()
        await eventually_async(is_divided(4, *old), "the old ones share")
        await new[0].__aenter__()
        await eventually_async(is_divided(4, *old, new[0]), "three share")
        await old[0].__aexit__()
        await eventually_async(is_divided(4, old[1], new[0]), "one of each shares")
        await new[1].__aenter__()
        await old[1].__aexit__()
        await eventually_async(is_divided(4, *new), "the new ones share")
        assert len((await describe(address, name)).members) == 2
        await asyncio.sleep(0.2)
    got = [record for one in (*old, *new) for record in one.got]
    await eventually_async(
        lambda: len({r for one in (*old, *new) for r in one.got}) == len(written),
        "everything is read",
    )
    assert got
    for one in new:
        await one.__aexit__()
