"""Reading: outside the log, with wrong ids and epochs, within limits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.kafka.batches import edited, good_batch
from tests.kafka.compare import LONG_WAIT_MS, SHORT_WAIT_MS, compared, timed
from tests.support.diskless_default import replicated_only
from tests.support.peer import NO_TOPIC, Peer

Observations = Iterator[tuple[str, Any]]


def fill(peer: Peer, topic: str, *sizes: int) -> None:
    """Create a topic with one batch of each size."""
    peer.create_topic(topic)
    for size in sizes:
        assert peer.produce(topic, good_batch(b"x" * size))["error_code"] == "none"


@compared
def test_every_version_reads_the_same(peer: Peer) -> Observations:
    fill(peer, "all-versions", 10, 20)
    for version in range(4, 18):
        yield f"version {version}", peer.fetch("all-versions", 0, version=version)
        yield (
            f"committed {version}",
            peer.fetch("all-versions", 0, version=version, isolation_level=1),
        )


@compared
def test_an_offset_inside_a_batch_gives_the_whole_batch(peer: Peer) -> Observations:
    peer.create_topic("inside")
    peer.produce("inside", good_batch(b"a", b"b", b"c"))
    peer.produce("inside", good_batch(b"d", b"e"))
    for offset in range(6):
        yield str(offset), peer.fetch("inside", offset)


@compared
def test_offsets_outside_the_log_are_refused(peer: Peer) -> Observations:
    fill(peer, "outside", 1, 1, 1)
    for offset in (-1, -2, 4, 2**40):
        yield str(offset), peer.fetch("outside", offset)
    peer.call(
        "delete_records",
        2,
        topics=[{"name": "outside", "partitions": [{"partition_index": 0, "offset": 2}]}],
        timeout=5000,
    )
    for offset in (0, 1, 2, 3, 4):
        yield f"{offset} after deletion", peer.fetch("outside", offset)
    yield "wait in vain", peer.fetch("outside", 99, max_wait=200)


@compared
def test_topics_that_are_not_there(peer: Peer) -> Observations:
    fill(peer, "here", 1)
    for version in (4, 11, 12):
        yield f"topic {version}", peer.fetch("not-here", 0, version=version)
        yield f"partition {version}", peer.fetch("here", 0, partition=1, version=version)
        yield f"negative partition {version}", peer.fetch("here", 0, partition=-1, version=version)
    for version in (13, 16, 17):
        yield f"id {version}", peer.fetch(uuid.UUID(int=77), 0, version=version)
        yield f"zero id {version}", peer.fetch(NO_TOPIC, 0, version=version)
        yield f"partition by id {version}", peer.fetch("here", 0, partition=9, version=version)
    yield "empty name", peer.fetch("", 0)
    yield "no topics", peer.call("fetch", 12, topics=[], session_epoch=-1, max_wait=0)
    yield "no topics, waits", peer.call("fetch", 12, topics=[], session_epoch=-1, max_wait=300)


@replicated_only("it names leader epochs, which begin with another one")
@compared
def test_leader_epochs_that_are_not_the_leaders_are_refused(peer: Peer) -> Observations:
    fill(peer, "epochs", 1)
    for epoch in (-1, 0, 1, 99, -2):
        yield f"current {epoch}", peer.fetch("epochs", 0, leader_epoch=epoch)
    for epoch in (-1, 0, 1, 99):
        yield f"last fetched {epoch}", peer.fetch("epochs", 1, last_fetched_epoch=epoch)
    yield "last fetched, past the end", peer.fetch("epochs", 7, last_fetched_epoch=0)


@compared
def test_the_first_batch_comes_whole_and_limits_hold_for_the_rest(peer: Peer) -> Observations:
    fill(peer, "limits", 5000, 10, 10, 5000)
    for limit in (0, 1, 100, 5000, 5200, 6000):
        yield f"partition {limit}", peer.fetch("limits", 0, partition_max_bytes=limit)
        yield f"request {limit}", peer.fetch("limits", 0, max_bytes=limit)
        yield f"old {limit}", peer.fetch("limits", 0, partition_max_bytes=limit, version=4)
    yield "negative", peer.fetch("limits", 0, partition_max_bytes=-1)
    yield "negative request", peer.fetch("limits", 0, max_bytes=-1)


@compared
def test_limits_hold_over_partitions(peer: Peer) -> Observations:
    fill(peer, "first", 3000, 10)
    fill(peer, "second", 3000, 10)
    for max_bytes in (1, 100, 3100, 3500, 6300, 100_000):
        part = {
            "partition": 0,
            "fetch_offset": 0,
            "partition_max_bytes": 1_000_000,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
        }
        yield (
            str(max_bytes),
            peer.call(
                "fetch",
                12,
                replica_id=-1,
                session_epoch=-1,
                min_bytes=1,
                max_bytes=max_bytes,
                max_wait=0,
                topics=[{"topic": topic, "partitions": [part]} for topic in ("first", "second")],
            ),
        )


@compared
def test_waiting_ends_with_enough_bytes_or_time(peer: Peer) -> Observations:
    fill(peer, "waiting", 10)
    for label, offset, wait_ms, min_bytes in (
        ("bytes are there", 0, LONG_WAIT_MS, 1),
        ("no bytes wanted", 1, LONG_WAIT_MS, 0),
        ("time is up", 1, SHORT_WAIT_MS, 1),
        ("too few bytes", 0, SHORT_WAIT_MS, 10_000),
        ("refused at once", 5, LONG_WAIT_MS, 1),
    ):
        ask = partial(peer.fetch, "waiting", offset, max_wait=wait_ms, min_bytes=min_bytes)
        yield label, timed(ask, wait_ms)


@compared
def test_sessions_that_the_broker_does_not_have(peer: Peer) -> Observations:
    fill(peer, "sessions", 10)
    for session_id, epoch in ((0, 0), (0, -1), (0, 1), (5, 0), (5, -1), (5, 1), (5, 7), (0, 9)):
        yield (
            f"{session_id} {epoch}",
            peer.fetch("sessions", 0, session_id=session_id, session_epoch=epoch),
        )


@compared
def test_isolation_levels(peer: Peer) -> Observations:
    fill(peer, "isolation", 10)
    for level in (0, 1, 2, -1):
        yield str(level), peer.fetch("isolation", 0, isolation_level=level)


@compared
def test_only_brokers_may_fetch_as_replicas(peer: Peer) -> Observations:
    """Kafka has no authorizer here, and takes any client's word."""
    fill(peer, "replicas", 10)
    for replica_id in (-1, -2, 1, 5):
        yield str(replica_id), peer.fetch("replicas", 0, replica_id=replica_id)


@compared
def test_what_was_stored_is_what_is_read(peer: Peer) -> Observations:
    peer.create_topic("round-trip", compression_type="zstd")
    good = good_batch(b"one", b"two", key=b"key")
    peer.produce("round-trip", good)
    answer = peer.fetch("round-trip", 0)
    records = answer["responses"][0]["partitions"][0].pop("records")
    yield "answer", answer
    yield "codec", records[22] & 7
    yield "header", records[:8] + records[16:17] + records[23:61]
    peer.create_topic("future-attributes")
    yield "unknown attribute bit", peer.produce("future-attributes", edited(good, attributes=0x80))
    yield "read back", peer.fetch("future-attributes", 0)


@replicated_only("it names leader epochs, which begin with another one")
@compared
def test_offsets_for_leader_epochs(peer: Peer) -> Observations:
    fill(peer, "ends", 1, 1)
    for version in (2, 3, 4):
        for current, asked in ((-1, 0), (-1, 5), (-1, -1), (0, 0), (3, 0), (-2, 0)):
            wanted = {"partition": 0, "current_leader_epoch": current, "leader_epoch": asked}
            fields: dict[str, Any] = {"topics": [{"topic": "ends", "partitions": [wanted]}]}
            if version >= 3:
                fields["replica_id"] = -1
            yield (
                f"{version}: {current} {asked}",
                peer.call("offset_for_leader_epoch", version, **fields),
            )
    for topic, partition in (("ends", 4), ("ends", -1), ("no-such-topic", 0), ("", 0)):
        wanted = {"partition": partition, "current_leader_epoch": -1, "leader_epoch": 0}
        yield (
            f"{topic}-{partition}",
            peer.call(
                "offset_for_leader_epoch",
                4,
                replica_id=-1,
                topics=[{"topic": topic, "partitions": [wanted]}],
            ),
        )
    yield "nothing", peer.call("offset_for_leader_epoch", 4, replica_id=-1, topics=[])
