"""Measures the joins of a group of thousands; writes bench/results/group_joins.json.

One real node on SQLite. Members of KIP-848 join within ``--ramp-seconds``, as a deployment
starts them (0: all at once), each over its own connection. They continue as librdkafka does: a
heartbeat immediately after a change of the assignment, else one in every interval that the node
requests. A producer in another process sends a small record every 20 ms; its latencies show the
effect on other clients. At the end the size of the group's record is measured, and the cost of
its check in every commit of offsets.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import multiprocessing
import struct
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.metadata.coordination.groups import group_collection, shard_of_group
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.store import ItemKey
from tidelog_core.metadata.stores import dynamodb_units as units

from bench.process import Node, running_node
from tests.support.batches import batch_of
from tests.support.wire_client import WireClient, frame, produce_body

GROUP, TOPIC, OTHER_TOPIC = "many", "assigned", "other"
SHARD_COUNT = 50  # offsets.topic.num.partitions
CONNECTIONS_MAX = 8_000  # beyond it members share them; a process may not open more files
PROBE_INTERVAL_SECONDS = 0.02
RAMP_SECONDS = 20.0
SETTLE_SECONDS_MAX = 120.0
HEARTBEAT_KEY, HEARTBEAT_VERSION = 68, 1
MEMBER_COUNTS = (1_000, 10_000)
RESULTS = Path(__file__).parent / "results" / "group_joins.json"


@dataclass
class Member:
    """One member, and the time of its next heartbeat."""

    name: bytes
    epoch: int = 0
    owned: bytes = b"\x01"  # a compact array of topics, as on the wire
    says_owned: bool = True


@dataclass
class Crowd:
    """All members, and their results."""

    members: list[Member]
    joined_at: list[float] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    heartbeat_count: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether all members are in the same epoch."""
        return len({member.epoch for member in self.members}) == 1


def main() -> None:
    """Measure and print a row for each number of members."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("members", type=int, nargs="*", default=list(MEMBER_COUNTS))
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--ramp-seconds", type=float, default=RAMP_SECONDS)
    parser.add_argument("--source", action="store_true", help="run the source, not compiled")
    parser.add_argument("--join-seconds", type=float, default=900.0, help="give up after")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for count in arguments.members:
        rows.append(
            measure(
                count,
                partition_count=arguments.partitions,
                is_compiled=not arguments.source,
                ramp_seconds=arguments.ramp_seconds,
                join_seconds=arguments.join_seconds,
            )
        )
        print(json.dumps(rows[-1]), flush=True)
    if not arguments.source:
        RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


def measure(
    count: int,
    *,
    partition_count: int,
    is_compiled: bool,
    ramp_seconds: float = RAMP_SECONDS,
    join_seconds: float,
) -> dict[str, Any]:
    """Have ``count`` members join a group on a new node; return the figures.

    Members that have not joined after ``join_seconds`` are not waited for.
    """
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite://{folder}/metadata.db"
        options = ["--metadata-store", url]
        with running_node(Path(folder) / "node", *options, is_compiled=is_compiled) as node:
            _create_topics(node, partition_count)
            _find_coordinator(node)
            row = _run(node, count, ramp_seconds, join_seconds)
            row |= asyncio.run(_weigh(url))
    return row


def _create_topics(node: Node, partition_count: int) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    topics = [NewTopic(TOPIC, partition_count, 1), NewTopic(OTHER_TOPIC, 1, 1)]
    for made in admin.create_topics(topics).values():
        made.result(60)


def _find_coordinator(node: Node) -> None:
    """Have __consumer_offsets created, and wait until its shards have leaders."""
    name = GROUP.encode()
    while True:
        with WireClient(node.port) as client:
            client.send(frame(10, 0, 1, struct.pack(">h", len(name)) + name, tags=b""))
            (error,) = struct.unpack_from(">h", client.receive(), 4)
        if error == 0:
            return
        time.sleep(0.2)


def _run(node: Node, count: int, ramp_seconds: float, join_seconds: float) -> dict[str, Any]:
    here, there = multiprocessing.Pipe()
    probe = multiprocessing.Process(target=_probe, args=(node.port, there))
    probe.start()
    time.sleep(1)
    cpu, started = node.cpu_seconds(), time.monotonic()
    crowd = Crowd([Member(b"member-%08d" % number) for number in range(count)])
    asyncio.run(join_all(node.port, crowd, ramp_seconds, join_seconds))
    cpu = node.cpu_seconds() - cpu
    here.send("end")
    latencies = sorted(here.recv())
    probe.join()
    joined = crowd.joined_at
    seconds = max(joined) - started if joined else 0.0
    return {
        "members": count,
        "ramp_seconds": ramp_seconds,
        "joined": len(joined),
        "join_seconds": round(seconds, 1),
        "joined_per_second": round(len(joined) / seconds) if seconds else 0,
        "settled_after_seconds": round(time.monotonic() - started, 1),
        "heartbeats": crowd.heartbeat_count,
        "errors": dict(crowd.errors),
        "heartbeat_p99_ms": _percentile_ms(sorted(crowd.latencies), 0.99),
        "others_p50_ms": _percentile_ms(latencies, 0.5),
        "others_p99_ms": _percentile_ms(latencies, 0.99),
        "others_max_ms": _percentile_ms(latencies, 1.0),
        "node_cpu_seconds": round(cpu, 1),
        "node_rss_mb": round(node.rss_megabytes()),
    }


def _percentile_ms(ordered: list[float], share: float) -> float:
    at = min(int(len(ordered) * share), len(ordered) - 1)
    return round(ordered[at] * 1000, 1) if ordered else 0.0


# -- the other client --


def _probe(port: int, pipe: Connection) -> None:
    """Send a record every interval until stopped; send the latencies back, seconds."""
    latencies: list[float] = []
    request = frame(0, 8, 1, produce_body(OTHER_TOPIC, batch_of(b"x"), acks=1), tags=b"")
    with WireClient(port) as client:
        due = time.perf_counter()
        while not pipe.poll():
            started = time.perf_counter()
            client.send(request)
            client.receive()
            latencies.append(time.perf_counter() - started)
            due = max(due + PROBE_INTERVAL_SECONDS, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
    pipe.recv()
    pipe.send(latencies)


# -- members --


async def join_all(port: int, crowd: Crowd, ramp_seconds: float, seconds_max: float) -> None:
    """Have all members join, and continue until all partitions are assigned."""
    now = time.monotonic()
    end = now + seconds_max
    count = min(CONNECTIONS_MAX, len(crowd.members))
    tasks = [
        asyncio.create_task(
            converse(port, crowd, crowd.members[n::count], now + ramp_seconds * n / count)
        )
        for n in range(count)
    ]
    settle_by = None
    while True:
        await asyncio.sleep(0.2)
        now = time.monotonic()
        if settle_by is None and len(crowd.joined_at) == len(crowd.members):
            settle_by = now + SETTLE_SECONDS_MAX
        is_settled = settle_by is not None and crowd.is_settled
        if is_settled or now > end or (settle_by is not None and now > settle_by):
            break
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [end for end in ends if not isinstance(end, asyncio.CancelledError)]
    if failures:
        print(f"{len(failures)} connections failed, the first with {failures[0]!r}")


async def converse(port: int, crowd: Crowd, members: list[Member], begins_at: float) -> None:
    """Send the heartbeats of some members over one connection, one at a time."""
    await asyncio.sleep(max(0.0, begins_at - time.monotonic()))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    due = [(0.0, number) for number in range(len(members))]
    try:
        while True:
            at, number = heapq.heappop(due)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            wait_seconds = await _beat(crowd, members[number], reader, writer)
            heapq.heappush(due, (time.monotonic() + wait_seconds, number))
    finally:
        writer.close()


async def _beat(
    crowd: Crowd, member: Member, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> float:
    """Send a heartbeat and note its answer; return when the next one is due, seconds."""
    sent_at, was_joining = time.monotonic(), member.epoch == 0
    writer.write(_heartbeat(member))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    answer = await reader.readexactly(size)
    crowd.latencies.append(time.monotonic() - sent_at)
    crowd.heartbeat_count += 1
    wait_seconds, error = _take(member, answer)
    if error:
        crowd.errors[error] += 1
    elif was_joining:
        crowd.joined_at.append(time.monotonic())
    return wait_seconds


def _heartbeat(member: Member) -> bytes:
    """Return a ConsumerGroupHeartbeat request of version 1."""
    joins = member.epoch == 0
    topics = b"\x02" + _compact(TOPIC.encode()) if joins else b"\x00"
    body = (
        _compact(GROUP.encode())
        + _compact(member.name)
        + struct.pack(">i", member.epoch)
        + b"\x00\x00"  # no instance, no rack
        + struct.pack(">i", 300_000 if joins else -1)
        + topics
        + b"\x00\x00"  # no pattern, no assignor
        + (member.owned if joins or member.says_owned else b"\x00")
        + b"\x00"
    )
    return frame(HEARTBEAT_KEY, HEARTBEAT_VERSION, 1, body, tags=b"\x00")


def _take(member: Member, answer: bytes) -> tuple[float, int]:
    """Note the answer; return the time of the next heartbeat, seconds, and the error."""
    (error,) = struct.unpack_from(">h", answer, 9)
    at = 11
    at += max(answer[at] - 1, 0) + 1  # the error's text, shorter than 127
    at += max(answer[at] - 1, 0) + 1
    epoch, interval_ms = struct.unpack_from(">ii", answer, at)
    at += 8
    if error:
        if error in (25, 110):  # unknown or fenced: it joins again
            member.epoch, member.owned = 0, b"\x01"
        return 0.2, error
    member.epoch = epoch
    member.says_owned = False
    if answer[at] == 0xFF:
        return interval_ms / 1000, 0
    owned = answer[at + 1 : -2]
    if owned == member.owned:
        return interval_ms / 1000, 0
    member.owned, member.says_owned = owned, True
    return 0.0, 0


def _compact(data: bytes) -> bytes:
    assert len(data) < 127
    return bytes([len(data) + 1]) + data


# -- the cost of a commit --


async def _weigh(url: str) -> dict[str, float | int]:
    """Return the size of the group's record and the cost of its check in a commit."""
    store = open_metadata_store(url)
    try:
        shard = shard_of_group(GROUP, SHARD_COUNT)
        item = await store.get(ItemKey(group_collection(shard), GROUP))
        assert item is not None
        size_bytes = units.item_size_bytes(item)
    finally:
        await store.close()
    return {
        "record_size_bytes": size_bytes,
        "commit_check_write_units": units.transaction_write_units(size_bytes),
    }


if __name__ == "__main__":
    main()
