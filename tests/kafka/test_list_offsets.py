"""Offsets by time and by name, and moving the start of a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog_core.records.batch import CompressionType

from tests.kafka.batches import NOW_MS, good_batch
from tests.kafka.compare import compared
from tests.support.diskless_default import replicated_only
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
VERSIONS = range(1, 11)


def fill(peer: Peer, topic: str) -> None:
    """Create a topic of five records with times 1000 apart, one of them out of order."""
    peer.create_topic(topic)
    for at in (0, 1000, 5000, 3000):
        peer.produce(topic, good_batch(timestamp_ms=NOW_MS + at))
    peer.produce(
        topic,
        good_batch(b"a", b"b", b"c", timestamp_ms=NOW_MS + 4000, compression=CompressionType.GZIP),
    )


@compared
def test_named_offsets_in_every_version(peer: Peer) -> Observations:
    fill(peer, "named")
    for version in VERSIONS:
        for name in (-1, -2, -3, -4, -5, -6, -7, -100):
            yield f"{name} in {version}", peer.offset("named", name, version=version)


@compared
def test_named_offsets_of_an_empty_log(peer: Peer) -> Observations:
    peer.create_topic("named-empty")
    for version in (1, 7, 10):
        for name in (-1, -2, -3, -4, -5, 0, NOW_MS):
            yield f"{name} in {version}", peer.offset("named-empty", name, version=version)


@compared
def test_the_first_record_at_or_after_a_time(peer: Peer) -> Observations:
    fill(peer, "by-time")
    for at in (-1000, 0, 1, 999, 1000, 2000, 3500, 4000, 4001, 4002, 4003, 5000, 5001, 10**9):
        for version in (1, 7, 10):
            yield f"{at} in {version}", peer.offset("by-time", NOW_MS + at, version=version)
    yield "zero", peer.offset("by-time", 0)
    yield "largest", peer.offset("by-time", 2**63 - 1)


@replicated_only("it names leader epochs, which begin with another one")
@compared
def test_errors_of_list_offsets(peer: Peer) -> Observations:
    fill(peer, "wrong")
    for version in (1, 4, 7):
        yield f"topic {version}", peer.offset("never-made", -1, version=version)
        yield f"partition {version}", peer.offset("wrong", -1, partition=3, version=version)
        yield f"negative {version}", peer.offset("wrong", -1, partition=-1, version=version)
    for epoch in (-1, 0, 1, -2):
        wanted = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
        for replica_id in (-1, 1, 7):
            yield (
                f"epoch {epoch} {replica_id}",
                peer.call(
                    "list_offsets",
                    7,
                    replica_id=replica_id,
                    topics=[{"name": "wrong", "partitions": [wanted]}],
                ),
            )
    wanted = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    other = {"partition_index": 0, "timestamp": -2, "current_leader_epoch": -1}
    yield (
        "twice",
        peer.call(
            "list_offsets",
            7,
            replica_id=-1,
            topics=[{"name": "wrong", "partitions": [wanted, other]}],
        ),
    )
    yield "nothing", peer.call("list_offsets", 7, replica_id=-1, topics=[])
    for level in (0, 1, 2):
        yield (
            f"isolation {level}",
            peer.call(
                "list_offsets",
                7,
                replica_id=-1,
                isolation_level=level,
                topics=[{"name": "wrong", "partitions": [wanted]}],
            ),
        )


@compared
def test_delete_records(peer: Peer) -> Observations:
    fill(peer, "to-delete")
    peer.create_topic("to-keep", cleanup_policy="compact")
    peer.create_topic("to-compact-and-delete", cleanup_policy="compact,delete")
    peer.await_coordinator("any")
    for topic, partition, offset in (
        ("to-delete", 0, 0),
        ("to-delete", 0, 3),
        ("to-delete", 0, 1),
        ("to-delete", 0, 99),
        ("to-delete", 0, -2),
        ("to-delete", 7, 0),
        ("to-delete", -1, 0),
        ("no-such", 0, 0),
        ("", 0, 0),
        ("to-keep", 0, 0),
        ("to-compact-and-delete", 0, 0),
        ("__consumer_offsets", 0, 0),
        ("to-delete", 0, -1),
        ("to-delete", 0, -1),
    ):
        part = {"partition_index": partition, "offset": offset}
        label = f"{topic} {partition} {offset}"
        if label == "to-delete 0 -1" and peer.offset("to-delete", -2)["offset"] == 7:
            label += " again"
        yield (
            label,
            peer.call(
                "delete_records", 2, topics=[{"name": topic, "partitions": [part]}], timeout=5000
            ),
        )
        yield f"{label}: start", peer.offset("to-delete", -2)
        yield f"{label}: end", peer.offset("to-delete", -1)
    yield "by time", peer.offset("to-delete", NOW_MS)
    yield "newest", peer.offset("to-delete", -3)
