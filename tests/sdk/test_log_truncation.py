"""Consumers of a log that lost records: a replica that was behind was elected (KIP-320).

Records 0 to 99 are on all three nodes, 100 to 149 were on the dead leader alone. Then 80
others take offsets 100 to 179, so that a consumer at 150 could read on and never know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog import Consumer, OffsetAndMetadata, Producer, TopicPartition
from tidelog.consuming.positions import PartitionState
from tidelog.errors import LogTruncation

from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import (
    SETTLE_SECONDS_MAX,
    ReplicatedCluster,
    replicated_cluster,
)
from tests.support.waiting import eventually_async

TOPIC = "t"
TP = TopicPartition(TOPIC, 0)
KEPT = [b"kept %d" % n for n in range(100)]
LOST = [b"lost %d" % n for n in range(50)]
OTHERS = [b"other %d" % n for n in range(80)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    """Three nodes whose leader alone has the records that will be lost."""
    with replicated_cluster(tmp_path) as cluster:
        cluster.create(
            TOPIC,
            unclean_leader_election_enable="true",
            min_insync_replicas="1",
            remote_storage_enable="false",
        )
        cluster.produce(TOPIC, KEPT)
        cluster.wait_same_logs(TOPIC)
        leader = cluster.node_leading(TOPIC)
        for follower in cluster.followers(TOPIC):
            follower.kill()
        cluster.wait_isr(TOPIC, {leader.broker_id})
        assert sorted(cluster.produce(TOPIC, LOST)) == list(range(100, 150))
        yield cluster


def truncate(cluster: ReplicatedCluster) -> None:
    """Have a replica without the lost records lead, and write others in their place."""
    leader = cluster.node_leading(TOPIC)
    behind = next(node for node in cluster.nodes.values() if node.process is None)
    leader.kill()
    behind.start()
    cluster.wait_leader(TOPIC, other_than=leader.broker_id)
    assert sorted(cluster.produce(TOPIC, OTHERS)) == list(range(100, 180))


@asynccontextmanager
async def reader(
    cluster: ReplicatedCluster, policy: str, group_id: str | None = None
) -> AsyncIterator[Consumer]:
    """A consumer of the partition, without automatic commits."""
    async with Consumer(
        cluster.addresses,
        group_id=group_id,
        auto_offset_reset=policy,  # type: ignore[arg-type]
        enable_auto_commit=False,
        retry_backoff_max_ms=200,
        reconnect_backoff_max_ms=300,
    ) as consumer:
        consumer.assign([TP])
        yield consumer


async def read(consumer: Consumer, count: int) -> list[bytes]:
    """Return the values of the next records, and no more than these."""
    values: list[bytes] = []
    async with asyncio.timeout(SETTLE_SECONDS_MAX):
        while len(values) < count:
            records = await consumer.poll(max_records=count - len(values), timeout_ms=1_000)
            values += [record.value or b"" for record in records]
    return values


async def test_consumers_of_lost_records_learn_of_it_as_their_policies_say(
    cluster: ReplicatedCluster,
) -> None:
    """One loss for all: the nodes of a cluster take seconds to start."""
    async with (
        reader(cluster, "none", "g") as strict,
        reader(cluster, "earliest") as earliest,
        reader(cluster, "latest") as latest,
        reader(cluster, "none") as ahead,
    ):
        for consumer in (strict, earliest, latest):
            consumer.seek(TP, 0)
            assert await read(consumer, 150) == KEPT + LOST
        await strict.commit()
        committed = (await strict.committed([TP]))[TP]
        assert committed == OffsetAndMetadata(150, leader_epoch(strict))
        old = await fetch_ahead(ahead)
        await asyncio.to_thread(truncate, cluster)
        await check_strict(strict)
        # With a policy, reading goes on where the logs part.
        for consumer in (earliest, latest):
            assert await read(consumer, 80) == OTHERS
        # Lost records that were only fetched ahead are fetched again.
        await eventually_async(lambda: leader_epoch(ahead) != old, "there is a new leader")
        assert await read(ahead, 170) == KEPT[10:] + OTHERS
    for node in [node for node in cluster.nodes.values() if node.process is None]:
        await asyncio.to_thread(node.start)  # Among them is who has the commit.
    async with reader(cluster, "none", "g") as consumer:
        with pytest.raises(LogTruncation) as caught:
            await read(consumer, 1)
        assert (caught.value.fetch_offset, caught.value.divergent_offset) == (150, 100)


async def fetch_ahead(consumer: Consumer) -> int:
    """Read the first ten records once all are fetched; return the leader's epoch."""
    consumer.seek(TP, 0)
    assert await read(consumer, 10) == KEPT[:10]
    await eventually_async(
        lambda: state_of(consumer).fetch_position == 150, "everything is fetched"
    )
    return leader_epoch(consumer)


async def check_strict(consumer: Consumer) -> None:
    """A consumer without a policy has an error until it is sought to another position."""
    for _ in range(2):
        with pytest.raises(LogTruncation, match=r"t-0.* 100 on.* 150") as caught:
            await read(consumer, 1)
        error = caught.value
        assert (error.partition, error.fetch_offset) == (TP, 150)
        assert error.divergent_offset == 100
    assert await consumer.position(TP) == 150
    consumer.seek(TP, error.divergent_offset)
    assert await read(consumer, 80) == OTHERS


async def test_a_position_that_the_new_leader_has_stays_with_all_that_was_fetched_ahead(
    tmp_path: Path,
) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create(TOPIC, min_insync_replicas="2")
        cluster.produce(TOPIC, KEPT)
        async with reader(cluster, "none") as consumer:
            consumer.seek(TP, 0)
            assert await read(consumer, 10) == KEPT[:10]
            old, version = leader_epoch(consumer), state_of(consumer).version
            leader = cluster.node_leading(TOPIC)
            await asyncio.to_thread(leader.kill)
            await eventually_async(lambda: leader_epoch(consumer) != old, "there is a new leader")
            assert state_of(consumer).fetch_position == 100
            await asyncio.to_thread(cluster.produce, TOPIC, OTHERS)
            assert await read(consumer, 170) == KEPT[10:] + OTHERS
            assert state_of(consumer).version == version


async def test_a_commit_of_an_epoch_that_the_leader_does_not_know_is_a_lost_position(
    node: NodeProcess, topic: str, name: str
) -> None:
    """As after a topic was deleted and made anew: there is no offset at which they part."""
    tp = TopicPartition(topic, 0)
    async with Producer(node.address) as producer:
        for value in KEPT:
            await producer.send(topic, value)
    async with Consumer(
        node.address, group_id=name, auto_offset_reset="none", enable_auto_commit=False
    ) as consumer:
        consumer.assign([tp])
        await consumer.commit({tp: OffsetAndMetadata(50, 1_000)})
        with pytest.raises(LogTruncation, match=r"unknown offset on.* 50") as caught:
            await read(consumer, 1)
        assert caught.value.divergent_offset is None
    async with Consumer(
        node.address, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([tp])
        assert await read(consumer, 100) == KEPT


def state_of(consumer: Consumer) -> PartitionState:
    """Return where the consumer stands."""
    return consumer._positions.state(TP)


def leader_epoch(consumer: Consumer) -> int:
    """Return the epoch of the leader that the position was validated by."""
    return state_of(consumer).leader_epoch
