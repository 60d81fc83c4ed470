"""Groups of real consumers on a real node: stopped clients, killed nodes, administrators."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.node.coordinator.group_process import PARTITIONS, Member, wait_for_shares
from tests.support.node_process import NodeProcess

KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata
client = KafkaConsumer(bootstrap_servers=sys.argv[1], group_id="g", enable_auto_commit=False)
assert client.committed(TopicPartition("t", 0)) == 5
client.assign([TopicPartition("t", 1)])
client.commit({TopicPartition("t", 1): OffsetAndMetadata(6, "note", -1)})
client.close()
"""


@pytest.fixture
def admin(node: NodeProcess) -> AdminClient:
    client = AdminClient({"bootstrap.servers": node.address})
    client.create_topics([NewTopic("t", len(PARTITIONS), 1)])["t"].result(60)
    return client


@contextlib.contextmanager
def consumer(node: NodeProcess, group: str = "g", **settings: object) -> Iterator[Consumer]:
    client = Consumer({"bootstrap.servers": node.address, "group.id": group, **settings})
    try:
        yield client
    finally:
        client.close()


def committed(node: NodeProcess, group: str = "g") -> list[int]:
    with consumer(node, group) as reader:
        some = reader.committed([TopicPartition("t", p) for p in PARTITIONS], timeout=60)
    return [p.offset for p in some]


def test_a_stopped_client_loses_its_partitions_and_cannot_commit_when_it_wakes(
    node: NodeProcess, admin: AdminClient
) -> None:
    with Member(node.address) as first, Member(node.address) as second:
        wait_for_shares(first, second)
        assert first.commit(1) == "committed"
        begun = time.monotonic()
        first.signal(signal.SIGSTOP)
        while second.partitions != PARTITIONS:
            second.hear(0.2)
            assert time.monotonic() - begun < 60
        assert time.monotonic() - begun > 4  # not before its session of 6 s had a chance
        assert second.commit(7) == "committed"
        first.signal(signal.SIGCONT)
        wait_for_shares(first, second)
        assert committed(node) == [7, 7, 7, 7]
        assert "lost" in [what for what, _ in first.told]


def test_a_cooperative_rebalance_moves_only_what_must_move(
    node: NodeProcess, admin: AdminClient
) -> None:
    strategy = "partition.assignment.strategy=cooperative-sticky"
    with Member(node.address, strategy) as first:
        wait_for_shares(first)
        with Member(node.address, strategy) as second:
            wait_for_shares(first, second)
            revoked = [some for what, some in first.told if what == "revoked"]
            assert sum(map(len, revoked)) == 2
            assert len(first.partitions) == 2
        wait_for_shares(first)


@pytest.mark.slow  # tests/node/membership lets a coordinator die
def test_a_killed_node_comes_back_with_the_group_as_it_was(
    node: NodeProcess, admin: AdminClient
) -> None:
    timeout = "session.timeout.ms=20000"
    with Member(node.address, timeout) as first, Member(node.address, timeout) as second:
        wait_for_shares(first, second)
        assert first.commit(3) == second.commit(3) == "committed"
        told = (list(first.told), list(second.told))
        node.kill()
        node.start()
        assert first.commit(4) == second.commit(4) == "committed"
        first.hear(3)
        second.hear(3)
        # Nothing but the commits has happened: no rebalance, no lost partition.
        assert len(first.told) == len(told[0]) + 1
        assert len(second.told) == len(told[1]) + 1
        assert committed(node) == [4, 4, 4, 4]
        groups = admin.describe_consumer_groups(["g"])["g"].result(60)
        assert groups.state is ConsumerGroupState.STABLE
        assert len(groups.members) == 2


def test_a_static_member_keeps_its_partitions_over_its_restart(
    node: NodeProcess, admin: AdminClient
) -> None:
    with Member(node.address, "group.instance.id=one") as first:
        with Member(node.address, "group.instance.id=two") as second:
            wait_for_shares(first, second)
            share = second.partitions
        first.hear(1)
        told = list(first.told)
        with Member(node.address, "group.instance.id=two") as second:
            wait_for_shares(first, second)
            assert second.partitions == share
            first.hear(1)
            assert first.told == told


def test_a_second_client_of_one_instance_fences_the_first(
    node: NodeProcess, admin: AdminClient
) -> None:
    with consumer(node, **{"group.instance.id": "one"}) as first:
        first.subscribe(["t"])
        deadline = time.monotonic() + 60
        while not first.assignment():
            first.poll(0.1)
            assert time.monotonic() < deadline
        with consumer(node, **{"group.instance.id": "one"}) as second:
            second.subscribe(["t"])
            while time.monotonic() < deadline:
                second.poll(0.1)
                message = first.poll(0.1)
                if message is not None and message.error() is not None:
                    assert message.error().code() == KafkaError._FATAL
                    assert "FENCED" in str(message.error()) or "instance" in str(message.error())
                    break
            else:
                raise AssertionError("the first client was not fenced")
            assert len(second.assignment()) == len(PARTITIONS)


def test_administrators_see_change_and_delete_groups(node: NodeProcess, admin: AdminClient) -> None:
    offsets = [TopicPartition("t", p, 10 + p) for p in PARTITIONS]
    altered = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("idle", offsets)])
    altered["idle"].result(60)
    with Member(node.address, group="busy") as member:
        wait_for_shares(member)
        listed = admin.list_consumer_groups().result().valid
        assert {group.group_id: group.state for group in listed} == {
            "idle": ConsumerGroupState.EMPTY,
            "busy": ConsumerGroupState.STABLE,
        }
        stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result().valid
        assert [group.group_id for group in stable] == ["busy"]
        described = admin.describe_consumer_groups(["busy"])["busy"].result(60)
        (found,) = described.members
        assert len(found.assignment.topic_partitions) == len(PARTITIONS)
        assert found.host == "/127.0.0.1"
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["busy"])["busy"].result(60)
    assert committed(node, "idle") == [10, 11, 12, 13]
    admin.delete_consumer_groups(["idle"])["idle"].result(60)
    assert committed(node, "idle") == [-1001] * 4


def test_offsets_committed_by_one_client_are_read_by_the_others(
    node: NodeProcess, admin: AdminClient
) -> None:
    with consumer(node) as writer:
        writer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    # A process of its own: importing kafka-python warns of deprecations.
    subprocess.run([sys.executable, "-c", KAFKA_PYTHON, node.address], check=True, timeout=60)

    async def read() -> int | None:
        client = AIOKafkaConsumer(
            bootstrap_servers=node.address, group_id="g", enable_auto_commit=False
        )
        await client.start()
        try:
            return await client.committed(AioTopicPartition("t", 1))
        finally:
            await client.stop()

    assert asyncio.run(read()) == 6
    assert committed(node) == [5, 6, -1001, -1001]
