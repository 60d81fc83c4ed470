"""The fixed small workloads that are measured beside the growing dimensions."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Protocol

from kio.schema.offset_commit.v9 import request as offset_commit
from tidelog_core.wire_messages import build

from bench.peers.topics import PRODUCE
from bench.scaling.cluster import HOT, Cluster
from tests.support.batches import batch_of
from tests.support.wire_client import WireClient, encode, fetch_body, frame, produce_body

RECORD = b"v" * 100
COMMITTER = "committer"
WORK_SECONDS_MAX = 20.0
IN_FLIGHT = 5
_RETRY_SECONDS = 0.05
COORDINATOR_LATE = (14, 15, 16)  # loading, not available, not the coordinator
# In a Produce answer after correlation id, topic and partition: error code, base offset.
_PRODUCED, _PRODUCED_AT = struct.Struct(">hq"), 4 + 4 + 2 + 4 + 4
FETCH, _OFFSET_COMMIT = (1, 11), (8, 9)


Latencies = list[float]
"""The duration of each operation in seconds; at least one."""


def p99(latencies: Latencies) -> float:
    """Return the latency that one operation in a hundred exceeds."""
    return sorted(latencies)[len(latencies) * 99 // 100]


class Workload(Protocol):
    """A series of operations."""

    name: str

    def run(self, cluster: Cluster, count: int) -> Latencies:
        """Run the operations, fewer if they take too long. Raises ``RuntimeError`` on any error."""


class ProduceAndFetch:
    """Records of 100 bytes with acks=all, five requests in flight, then the fetches of each.

    With one request in flight, half of the cost would be sleeping and waking up, which varies
    between runs.
    """

    name = "produce with acks=all, and fetch, a record"

    def run(self, cluster: Cluster, count: int) -> Latencies:
        """Run the operations on one connection."""
        produce = frame(*PRODUCE, 1, produce_body(HOT, batch_of(RECORD), acks=-1), tags=b"")
        with cluster.client(cluster.await_record()) as client:

            def some() -> None:
                client.send(produce * IN_FLIGHT)
                offsets = [produced_offset(client.receive(), HOT) for _ in range(IN_FLIGHT)]
                bodies = [fetch_body(HOT, at, partition_max_bytes=1) for at in offsets]
                client.send(b"".join(frame(*FETCH, 1, body, tags=b"") for body in bodies))
                for _ in offsets:
                    require_records(client.receive())

            return repeat(some, count, at_once=IN_FLIGHT)


class Commit:
    """A commit of one offset by a group that has no members."""

    name = "commit of one offset"

    def run(self, cluster: Cluster, count: int) -> Latencies:
        """Repeat a commit, with one in flight."""
        cluster.await_coordinator(COMMITTER)
        request = commit_frame(COMMITTER, HOT)
        with cluster.client() as client:
            await_committed(client, request, HOT)
            return repeat(lambda: require_committed(client, request, HOT), count)


def repeat(some: Callable[[], object], count: int, *, at_once: int = 1) -> Latencies:
    """Run ``count`` operations, fewer if time runs out, but at least ``at_once``.

    ``some`` runs ``at_once`` operations; its duration is the latency of each.
    """
    latencies: Latencies = []
    deadline = time.monotonic() + WORK_SECONDS_MAX
    while len(latencies) < count and (not latencies or time.monotonic() < deadline):
        started = time.perf_counter()
        some()
        latencies += [time.perf_counter() - started] * at_once
    return latencies


def commit_frame(group: str, topic: str, *, member_id: str = "", epoch: int = -1) -> bytes:
    """Return the request that commits an offset of the topic's first partition.

    ``member_id`` and ``epoch`` are those of a member, if the group has members.
    """
    partition = build(
        offset_commit.OffsetCommitRequestPartition,
        partition_index=0,
        committed_offset=7,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    topics = (build(offset_commit.OffsetCommitRequestTopic, name=topic, partitions=(partition,)),)
    request = build(
        offset_commit.OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=topics,
    )
    body = encode(offset_commit.OffsetCommitRequest, request)
    return frame(*_OFFSET_COMMIT, 1, body, tags=b"\x00")


def require_committed(client: WireClient, request: bytes, topic: str) -> None:
    """Send the commit and read its answer. Raises ``RuntimeError`` if it is refused."""
    client.send(request)
    check_committed(client.receive(), topic)


def check_committed(answer: bytes, topic: str) -> None:
    """Raise ``RuntimeError`` if a commit of one partition was refused."""
    if error := commit_error(answer, topic):
        raise RuntimeError(f"a commit was answered with error code {error}")


def await_committed(client: WireClient, request: bytes, topic: str) -> None:
    """Send the commit until its coordinator has loaded. Raises ``RuntimeError`` if refused."""
    deadline = time.monotonic() + WORK_SECONDS_MAX
    while True:
        client.send(request)
        answer = client.receive()
        if not is_coordinator_late(answer, topic) or time.monotonic() > deadline:
            return check_committed(answer, topic)
        time.sleep(_RETRY_SECONDS)


def is_coordinator_late(answer: bytes, topic: str) -> bool:
    """Whether a commit was refused because its group's coordinator is still being loaded.

    Kafka names a coordinator before the coordinator has read its partition of offsets.
    """
    return commit_error(answer, topic) in COORDINATOR_LATE


def commit_error(answer: bytes, topic: str) -> int:
    """Return the error code of an OffsetCommit answer for one partition."""
    # correlation id, tags, throttle time, one topic: name; one partition: index, error code
    return int(struct.unpack_from(">h", answer, 4 + 1 + 4 + 1 + 1 + len(topic) + 1 + 4)[0])


def produced(client: WireClient, request: bytes, topic: str) -> int:
    """Send one batch to one partition; return its offset. Raises ``RuntimeError`` if refused."""
    client.send(request)
    return produced_offset(client.receive(), topic)


def produced_offset(answer: bytes, topic: str) -> int:
    """Return the offset of a Produce answer for one partition. Raises ``RuntimeError``."""
    if error := produce_error(answer, topic):
        raise RuntimeError(f"a produce request was answered with error code {error}")
    return int(_PRODUCED.unpack_from(answer, _PRODUCED_AT + len(topic))[1])


def produce_error(answer: bytes, topic: str) -> int:
    """Return the error code of a Produce answer for one partition."""
    return int(_PRODUCED.unpack_from(answer, _PRODUCED_AT + len(topic))[0])


def require_records(answer: bytes) -> None:
    """Raise ``RuntimeError`` if a fetch of one partition returned an error or no records."""
    # correlation id, throttle time, error code, session id, one topic: name; one partition:
    # index, error code, three offsets, no aborted transactions, preferred replica, records
    (error,) = struct.unpack_from(">h", answer, 8)
    if error or RECORD not in answer:
        raise RuntimeError(f"a fetch brought no record, error code {error}")
