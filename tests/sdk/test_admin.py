"""The admin against a real node."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

import pytest
from tidelog import (
    Admin,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    PartitionLag,
    Producer,
    TopicPartition,
)
from tidelog.errors import (
    ClientClosed,
    ErrorCode,
    GroupIdNotFound,
    GroupNotEmpty,
    GroupSubscribedToTopic,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    NodeError,
    SeveralFailed,
    TidelogError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

from tests.support.node_process import NodeProcess


async def test_topics_are_created_described_listed_grown_and_deleted(
    node: NodeProcess, name: str
) -> None:
    async with Admin(node.address) as admin:
        created = await admin.create_topic(
            name, partition_count=2, configs={"retention.ms": "60000"}
        )
        assert (created.name, created.partition_count) == (name, 2)
        assert created.topic_id is not None
        described = (await admin.describe_topics([name]))[name]
        assert described.topic_id == created.topic_id
        assert [p.partition for p in described.partitions] == [0, 1]
        assert all(p.leader == node.broker_id and p.isr for p in described.partitions)
        assert dataclasses.asdict(described)["partitions"][1]["partition"] == 1
        assert name in [topic.name for topic in await admin.list_topics()]
        await admin.create_partitions({name: 3})
        assert len((await admin.describe_topics([name]))[name].partitions) == 3
        await admin.delete_topics([name])
        assert name not in [topic.name for topic in await admin.list_topics()]
        with pytest.raises(UnknownTopicOrPartition, match=name):
            await admin.describe_topics([name])


async def test_what_cannot_be_created_is_named(node: NodeProcess, topic: str) -> None:
    async with Admin(node.address) as admin:
        with pytest.raises(TopicAlreadyExists, match=topic):
            await admin.create_topic(topic)
        with pytest.raises(InvalidTopic):
            await admin.create_topic("not a name")
        with pytest.raises(InvalidReplicationFactor):
            await admin.create_topic(f"{topic}-x", replication_factor=99)
        with pytest.raises(InvalidPartitions):
            await admin.create_topic(f"{topic}-x", partition_count=0)
        with pytest.raises(InvalidConfig, match=r"no\.such"):
            await admin.create_topic(f"{topic}-x", configs={"no.such": "1"})
        with pytest.raises(InvalidPartitions):
            await admin.create_partitions({topic: 1})
        with pytest.raises(UnknownTopicOrPartition):
            await admin.delete_topics(["absent"])


async def test_of_several_those_that_can_be_are_done(node: NodeProcess, topic: str) -> None:
    async with Admin(node.address) as admin:
        with pytest.raises(SeveralFailed) as caught:
            await admin.create_topics(
                [NewTopic(topic), NewTopic("not a name"), NewTopic(f"{topic}-2")]
            )
        assert {k: type(e) for k, e in caught.value.errors.items()} == {
            topic: TopicAlreadyExists,
            "not a name": InvalidTopic,
        }
        assert f"{topic}-2" in await admin.describe_topics([f"{topic}-2"])


async def test_validation_creates_nothing(node: NodeProcess, name: str) -> None:
    async with Admin(node.address) as admin:
        await admin.create_topics([NewTopic(name, 2)], validate_only=True)
        assert name not in [topic.name for topic in await admin.list_topics()]


async def test_configs_are_set_put_back_and_checked(node: NodeProcess, topic: str) -> None:
    async with Admin(node.address) as admin:
        await admin.alter_configs(
            "topic", topic, set={"retention.ms": "5000", "segment.bytes": "2000000"}
        )
        configs = await admin.describe_configs("topic", topic)
        assert configs["retention.ms"].value == "5000"
        assert not configs["retention.ms"].is_default
        with pytest.raises(InvalidConfig):
            await admin.alter_configs(
                "topic", topic, set={"segment.bytes": "3000000", "retention.ms": "soon"}
            )
        await admin.alter_configs("topic", topic, delete=["retention.ms"])
        configs = await admin.describe_configs(
            "topic", topic, keys=["retention.ms", "segment.bytes"]
        )
        assert configs.keys() == {"retention.ms", "segment.bytes"}
        assert configs["retention.ms"].is_default
        assert configs["segment.bytes"].value == "2000000"
        of_node = await admin.describe_configs("node", node.broker_id, include_documentation=True)
        assert of_node["num.partitions"].documentation
        with pytest.raises(InvalidRequest, match="topic, node"):
            await admin.describe_configs("broker", 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="by its id"):
            await admin.describe_configs("node", "one")
        with pytest.raises(UnknownTopicOrPartition):
            await admin.describe_configs("topic", "absent")


@pytest.mark.parametrize("at_once", [1, 2, 200])
async def test_configs_of_many_are_asked_in_few_requests(
    node: NodeProcess, topic: str, name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.administering.configs.DESCRIBED_AT_ONCE_MAX", at_once)
    others = [f"{name}-{number}" for number in range(3)]
    async with Admin(node.address) as admin:
        await admin.create_topics(
            [NewTopic(other, configs={"segment.ms": "7777"}) for other in others]
        )
        found = await admin.describe_several_configs(
            "topic", [*others, topic, topic], keys=["segment.ms"]
        )
        assert list(found) == [*others, topic]
        assert [found[other]["segment.ms"].value for other in others] == ["7777"] * 3
        assert found[topic]["segment.ms"].is_default
        assert await admin.describe_several_configs("topic", []) == {}
        of_nodes = await admin.describe_several_configs("node", [node.broker_id])
        assert of_nodes[str(node.broker_id)]["num.partitions"].value
        with pytest.raises(UnknownTopicOrPartition) as failure:
            await admin.describe_several_configs("topic", [topic, "absent"])
        assert failure.value.topic == "absent"
        await admin.delete_topics(others)


async def test_a_groups_configs_are_set_and_put_back(node: NodeProcess, name: str) -> None:
    key = "consumer.session.timeout.ms"

    async with Admin(node.address) as admin:
        await admin.alter_configs("group", name, set={key: "50000"})
        found = await admin.describe_configs("group", name)
        assert (found[key].value, found[key].source) == ("50000", "dynamic_group")
        with pytest.raises(InvalidConfig, match=r"group\.consumer\.max\.session\.timeout\.ms"):
            await admin.alter_configs("group", name, set={key: "3600000"})
        await admin.alter_configs("group", name, delete=[key])
        assert (await admin.describe_configs("group", name))[key].is_default


async def test_cluster_and_disks_are_described(node: NodeProcess, topic: str) -> None:
    async with Producer(node.address) as producer:
        await producer.send_and_wait(topic, b"v" * 1000)
    async with Admin(node.address) as admin:
        cluster = await admin.describe_cluster()
        assert [(n.node_id, n.port) for n in cluster.nodes] == [(node.broker_id, node.port)]
        assert cluster.cluster_id
        (log_dir,) = await admin.describe_log_dirs()
        (replica,) = [r for r in log_dir.replicas if r.topic == topic]
        assert replica.size_bytes > 1000
        assert log_dir.error is None


async def test_offsets_of_many_topics_take_one_look_at_the_metadata(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """One look for each topic made a status of 1,000 topics last 18 seconds."""
    partitions = [TopicPartition(new_topic(), 0) for _ in range(5)]
    async with Admin(node.address) as admin:
        before = admin._cluster.version
        listed = await admin.list_offsets(dict.fromkeys(partitions, "latest"))
        assert len(listed) == 5
        assert admin._cluster.version - before <= 2


async def test_offsets_are_looked_up_and_records_deleted(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    async with Producer(node.address, linger_ms=0) as producer:
        for n in range(10):
            await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=1000 * n)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Admin(node.address) as admin:
        listed = await admin.list_offsets({zero: "latest", one: "latest"})
        assert {p: at.offset for p, at in listed.items()} == {zero: 10, one: 0}
        assert (await admin.list_offsets({zero: 3_500}))[zero].offset == 4
        assert (await admin.list_offsets({zero: "max-timestamp"}))[zero].timestamp_ms == 9_000
        assert await admin.delete_records({zero: 4, one: -1}) == {zero: 4, one: 0}
        assert (await admin.list_offsets({zero: "earliest"}))[zero].offset == 4
        with pytest.raises(NodeError) as caught:
            await admin.delete_records({zero: 99})
        assert caught.value.code is ErrorCode.offset_out_of_range
        with pytest.raises(UnknownTopicOrPartition):
            await admin.delete_records({(topic, 7): 1})
        with pytest.raises(InvalidRequest, match="one of earliest"):
            await admin.list_offsets({zero: "first"})  # type: ignore[dict-item]


async def test_groups_are_listed_described_reset_and_deleted(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic(2)
    tp = TopicPartition(topic, 0)
    async with Producer(node.address, linger_ms=0) as producer:
        for n in range(10):
            await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=1000 * n)
    async with Admin(node.address) as admin:
        with pytest.raises(GroupIdNotFound):
            await admin.describe_groups([name])
        async with Consumer(
            node.address,
            topics=topic,
            group_id=name,
            client_id="reader",
            auto_offset_reset="earliest",
        ) as consumer:
            await consumer.poll(timeout_ms=10_000)
            group = (await admin.describe_groups([name]))[name]
            assert (group.state, group.assignor) == ("Stable", "cooperative-sticky")
            (member,) = group.members
            assert member.client_id == "reader"
            assert set(member.assignment) == {(topic, 0), (topic, 1)}
            for call in (
                admin.alter_group_offsets(name, {tp: 3}),
                admin.delete_groups([name]),
            ):
                with pytest.raises(GroupNotEmpty, match=name):
                    await call
            with pytest.raises(GroupSubscribedToTopic):
                await admin.delete_group_offsets(name, [tp])
        assert (name, "Empty") in [(g.group_id, g.state) for g in await admin.list_groups()]
        assert name not in [g.group_id for g in await admin.list_groups(states=["Stable"])]
        await admin.alter_group_offsets(name, {tp: 3})
        assert (await admin.list_group_offsets(name))[tp] == OffsetAndMetadata(3)
        assert await admin.reset_group_offsets(name, [tp], to=4_500, is_dry_run=True) == {tp: 5}
        assert (await admin.list_group_offsets(name, [tp]))[tp].offset == 3
        for to, expected in (("earliest", 0), ("latest", 10), (4_500, 5), (99_000, 10)):
            assert await admin.reset_group_offsets(name, [tp], to=to) == {tp: expected}  # type: ignore[arg-type]
            assert (await admin.list_group_offsets(name))[tp].offset == expected
        await admin.delete_group_offsets(name, [tp])
        assert tp not in await admin.list_group_offsets(name)
        await admin.delete_groups([name])
        with pytest.raises(GroupIdNotFound):
            await admin.delete_groups([name])


async def test_lag_is_told_in_records_and_in_the_age_of_the_next_one(
    node: NodeProcess, new_topic: Callable[..., str], name: str
) -> None:
    """Also of large batches, of offsets within one, at the end, and out of range."""
    topic = new_topic(5)
    now_ms = time.time_ns() // 1_000_000
    partitions = [TopicPartition(topic, number) for number in range(5)]
    single, batched, large, read, gone = partitions
    async with Producer(node.address, linger_ms=50) as producer:
        for n in range(3):
            for partition in (single, read, gone):
                made_ms = now_ms - 1_000_000 + 100_000 * n
                await producer.send_and_wait(
                    topic, b"v", partition=partition.partition, timestamp_ms=made_ms
                )
        deliveries = [
            await producer.send(
                topic,
                b"v" * size,
                partition=number,
                timestamp_ms=now_ms - 900_000 + 100_000 * n,
            )
            for number, size in ((batched.partition, 1), (large.partition, 100_000))
            for n in range(3)
        ]
        await asyncio.gather(*deliveries)
    async with Admin(node.address) as admin:
        committed = {single: 1, batched: 1, large: 1, read: 3, gone: 0}
        await admin.alter_group_offsets(name, committed)
        await admin.delete_records({gone: 2})
        lags = await admin.group_lag(name)
        never = TopicPartition(topic + "-never", 0)
        assert (await admin.group_lag(name, [never]))[never] == PartitionLag(None, None, None, None)
    assert list(lags) == partitions
    assert [lags[p].committed_offset for p in partitions] == [1, 1, 1, 3, 0]
    assert [lags[p].end_offset for p in partitions] == [3] * 5
    assert [lags[p].lag for p in partitions] == [2, 2, 2, 0, 3]
    for partition, age_s in ((single, 900), (batched, 800), (large, 800)):
        seconds = lags[partition].lag_seconds
        assert seconds is not None
        assert age_s <= seconds < age_s + 60
    assert (lags[read].lag_seconds, lags[gone].lag_seconds) == (0.0, None)


async def test_after_close_nothing_is_asked(node: NodeProcess) -> None:
    admin = Admin(node.address)
    await admin.list_topics()  # Starts by itself.
    await admin.close()
    await admin.close()
    with pytest.raises(ClientClosed):
        await admin.list_topics()


def test_every_error_has_a_code_and_says_whether_to_retry() -> None:
    from tidelog import errors

    for code in ErrorCode:
        if code is ErrorCode.none:
            continue
        error = errors.error_for(code, None, about="thing")
        assert isinstance(error, TidelogError)
        assert error.code is code
        assert error.retriable == code.retriable
        assert str(error).startswith("thing: ")
