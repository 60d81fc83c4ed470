"""Replicas of diskless topics follow from the bucket, and serve the consumers of their zone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
TOPIC = "t"


def values(begin: int, end: int) -> list[bytes]:
    return [b"value%d" % n for n in range(begin, end)]


def read_near(cluster: ReplicatedCluster, count: int) -> list[dict[int, bytes]]:
    """Return what a consumer in the rack of each running node reads."""
    return [
        cluster.consume(TOPIC, count, **{"client.rack": f"rack{node.broker_id}"})
        for node in cluster.running
    ]


def test_replicas_have_what_the_bucket_has_and_serve_their_rack(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, racks=True) as cluster:
        cluster.create(TOPIC, diskless_enable="true")
        acked = cluster.produce(TOPIC, values(0, 500))
        assert len(acked) == 500
        cluster.wait_same_logs(TOPIC)
        cluster.wait_isr(TOPIC, {1, 2, 3})
        assert read_near(cluster, 500) == [acked] * 3


def read_from(cluster: ReplicatedCluster, broker_id: int, count: int, **config: str) -> list[bytes]:
    """Return what a consumer reads that must have come to read from the broker."""
    found: list[bytes] = []
    places: list[int] = []

    def note(text: str) -> None:
        topic = json.loads(text)["topics"].get(TOPIC, {})
        places.append(topic.get("partitions", {}).get("0", {}).get("broker", -1))

    settings = {"bootstrap.servers": cluster.addresses, "group.id": "g", **config}
    consumer = Consumer({**settings, "statistics.interval.ms": 100, "stats_cb": note})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def has_all() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            found.append(value)
        return len(found) >= count and places[-1:] == [broker_id]

    try:
        eventually(has_all, lambda: f"{len(found)} records, read from {places[-3:]}")
    finally:
        consumer.close()
    return found


def test_a_consumer_whose_client_id_names_its_zone_reads_there(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, racks=True) as cluster:
        cluster.create(TOPIC, diskless_enable="true")
        cluster.produce(TOPIC, values(0, 300))
        cluster.wait_same_logs(TOPIC)
        cluster.wait_isr(TOPIC, {1, 2, 3})
        for broker_id in (1, 2, 3):
            client_id = f"app,diskless_az=rack{broker_id}"
            found = read_from(cluster, broker_id, 300, **{"client.id": client_id})
            assert found == values(0, 300)


def test_a_killed_leader_is_followed_by_a_replica_and_follows_it_when_it_is_back(
    tmp_path: Path,
) -> None:
    with replicated_cluster(tmp_path, racks=True) as cluster:
        cluster.create(TOPIC, diskless_enable="true")
        acked = cluster.produce(TOPIC, values(0, 300))
        for _ in range(2):
            leader = cluster.node_leading(TOPIC)
            leader.kill()
            heir = cluster.wait_leader(TOPIC, other_than=leader.broker_id)
            assert heir in (1, 2, 3)
            count = len(acked)
            acked |= cluster.produce(TOPIC, values(count, count + 300))
            assert len(acked) == count + 300
            leader.start()
            cluster.wait_same_logs(TOPIC)
            cluster.wait_isr(TOPIC, {1, 2, 3})
        assert read_near(cluster, len(acked)) == [acked] * 3


def test_a_replica_that_slept_or_lost_its_disk_catches_up(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, racks=True) as cluster:
        cluster.create(TOPIC, diskless_enable="true", segment_bytes="20000")
        acked = cluster.produce(TOPIC, values(0, 200))
        sleeping, lost = cluster.followers(TOPIC)
        os.kill(sleeping.pid, signal.SIGSTOP)
        lost.kill()
        lost.data_dir.rename(tmp_path / "lost")  # Its workers still remove their sockets.
        acked |= cluster.produce(TOPIC, values(200, 1_500))
        os.kill(sleeping.pid, signal.SIGCONT)
        lost.start()
        acked |= cluster.produce(TOPIC, values(1_500, 1_600))
        assert len(acked) == 1_600
        cluster.wait_isr(TOPIC, {1, 2, 3})
        eventually(lambda: read_near(cluster, 1_600) == [acked] * 3, "all have everything")
