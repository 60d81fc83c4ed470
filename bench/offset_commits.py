"""Measures offset commits' metadata costs; writes bench/results/offset_commits.json.

One real node on SQLite and on DynamoDB Local. Each raw client commits as a member with one
commit in flight. Librdkafka (confluent-kafka) commits as a member of a group: one commit after
another, one every few milliseconds, and as fast as it can. An item's version increases by one
with every write, so the versions before and after give the exact number of item writes. The
transactions are counted at the store (``stores``). The figures are compared with one write for
every committed partition. Both stores take two minutes.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.offset_commit.v8 import request as offset_commit
from tidelog_core.metadata.coordination.groups import (
    group_collection,
    offset_collection,
    shard_of_group,
)
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.store import ItemKey
from tidelog_core.wire_messages import build

from bench.command_line import parser_of
from bench.process import Node, running_node
from bench.stores import MeasuredStore, store_named
from tests.support.wire_client import WireClient, encode, frame

TOPIC = "committed"
PARTITION_COUNT = 100
SHARD_COUNT = 50  # offsets.topic.num.partitions
COMMIT_COUNT = {"sqlite": 1000, "dynamodb": 300}  # a transaction of DynamoDB Local takes 5 to 20 ms
ANSWER_SECONDS_MAX = 30.0
RESULTS = Path(__file__).parent / "results" / "offset_commits.json"


@dataclass(frozen=True, slots=True)
class Shape:
    """The groups, members and partitions of a case."""

    name: str
    partitions: int  # in one commit
    groups: Sequence[str]
    client: Callable[[Node, Shape], AbstractContextManager[Callable[[int], None]]]
    members: int = 1  # of each group, of the raw client
    interval_ms: float | None = None  # of librdkafka; None: one after another


def main() -> None:
    """Measure and print a table for each store."""
    parser = parser_of("offset_commits", __doc__)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=", ".join(COMMIT_COUNT))
    wanted: list[str] = parser.parse_args().stores
    if unknown := set(wanted) - set(COMMIT_COUNT):
        parser.error(f"no such store: {', '.join(sorted(unknown))}")
    results: dict[str, list[dict[str, object]]] = {}
    for name in wanted or COMMIT_COUNT:
        with (
            tempfile.TemporaryDirectory() as folder,
            store_named(name, Path(folder)) as store,
        ):
            if store is not None:
                results[store.name] = _measure(store, Path(folder), COMMIT_COUNT[name])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def _measure(store: MeasuredStore, folder: Path, count: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    arguments = ["--metadata-store", store.url, "--set", "group.initial.rebalance.delay.ms=0"]
    with running_node(folder / "node", *arguments) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITION_COUNT, 1)])[TOPIC].result(30)
        # A FindCoordinator request creates __consumer_offsets.
        asking = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "first"})
        asking.committed([TopicPartition(TOPIC, 0)], timeout=ANSWER_SECONDS_MAX)
        asking.close()
        print(f"\n{store.name}: for every 1,000 commits")
        print(f"{'':58}{'one a':>11}{'item':>9}{'trans-':>9}{'less':>9}{'node CPU':>10}")
        print(f"{'':58}{'partition':>11}{'writes':>9}{'actions':>9}{'writes':>9}{'ms':>10}")
        for shape in _shapes():
            rows.append(_measure_shape(store, node, shape, count))
            row = rows[-1]
            print(
                f"{shape.name:58}{row['partition_commits']:>11}{row['item_writes']:>9}"
                f"{row['transactions']:>9}{row['times_fewer']:>8}x{row['node_cpu_ms']:>10}"
            )
    return rows


def _measure_shape(store: MeasuredStore, node: Node, shape: Shape, count: int) -> dict[str, object]:
    with shape.client(node, shape) as commit:
        # The first commits create the items.
        commit(len(shape.groups) * shape.members)
        items, transactions = _item_writes(store, shape.groups), store.transactions()
        lone, cpu = store.lone_writes(), node.cpu_seconds()
        commit(count)
        cpu = node.cpu_seconds() - cpu
        transactions = store.transactions() - transactions - (store.lone_writes() - lone)
        items = _item_writes(store, shape.groups) - items
    return {
        "shape": shape.name,
        "commits": count,
        "partitions": shape.partitions,
        "partition_commits": 1000 * shape.partitions,
        "item_writes": round(items * 1000 / count),
        "transactions": round(transactions * 1000 / count),
        "times_fewer": round(shape.partitions * count / items, 1),
        "node_cpu_ms": round(cpu * 1e6 / count),
    }


def _item_writes(store: MeasuredStore, groups: Sequence[str]) -> int:
    """Return the sum of the versions of the groups' records and offset pages."""

    async def read() -> int:
        opened = open_metadata_store(store.url)
        total = 0
        try:
            for group in groups:
                shard = group_collection(shard_of_group(group, SHARD_COUNT))
                record = await opened.get(ItemKey(shard, group))
                total += 0 if record is None else record.version
                total += sum(item.version for item in await opened.list(offset_collection(group)))
        finally:
            await opened.close()
        return total

    return asyncio.run(read())


# -- raw members, each with a connection and one commit in flight --


@contextmanager
def _raw_members(node: Node, shape: Shape) -> Iterator[Callable[[int], None]]:
    clients: dict[WireClient, bytes] = {}
    for group in shape.groups:
        for member in range(shape.members):
            first = member * shape.partitions % PARTITION_COUNT
            clients[WireClient(node.port)] = _commit_frame(group, first, shape.partitions)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        yield lambda count: _commit_raw(clients, selector, count)
    for client in clients:
        client.socket.close()


def _commit_raw(
    clients: Mapping[WireClient, bytes], selector: selectors.BaseSelector, count: int
) -> None:
    """Have every member send a commit after the answer to its last one."""
    first = list(clients)[:count]
    for client in first:
        client.send(clients[client])
    sent, answered = len(first), 0
    while answered < count:
        ready = selector.select(ANSWER_SECONDS_MAX)
        if not ready:
            raise TimeoutError("a commit was not answered")
        for key, _ in ready:
            client = key.data
            _require_success(client.receive())
            answered += 1
            if sent < count:
                client.send(clients[client])
                sent += 1


def _commit_frame(group: str, first: int, count: int) -> bytes:
    partitions = tuple(
        build(
            offset_commit.OffsetCommitRequestPartition,
            partition_index=(first + number) % PARTITION_COUNT,
            committed_offset=7,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for number in range(count)
    )
    topic = build(offset_commit.OffsetCommitRequestTopic, name=TOPIC, partitions=partitions)
    request = build(
        offset_commit.OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=(topic,),
    )
    return frame(8, 8, 1, encode(offset_commit.OffsetCommitRequest, request), tags=b"\x00")


def _require_success(answer: bytes) -> None:
    """Raise unless every partition of the one topic was committed."""
    # Correlation id, tags, throttle time, one topic: its name; then partitions of 7 bytes.
    at = 4 + 1 + 4 + 1 + 1 + len(TOPIC)
    count = answer[at] - 1
    codes = {answer[at + 1 + 7 * n + 4 : at + 1 + 7 * n + 6] for n in range(count)}
    if codes != {b"\x00\x00"}:
        raise RuntimeError(f"commits were refused: {codes}")


# -- librdkafka as the one member of a group --


@contextmanager
def _librdkafka_member(node: Node, shape: Shape) -> Iterator[Callable[[int], None]]:
    outcomes: list[object] = []
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": shape.groups[0],
            "enable.auto.commit": False,
            "on_commit": lambda error, _: outcomes.append(error),
        }
    )
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while len(consumer.assignment()) < PARTITION_COUNT:
        if time.monotonic() > deadline:
            raise TimeoutError("the group has not become stable")
        consumer.poll(0.05)
    yield lambda count: _commit_librdkafka(consumer, shape, count, outcomes)
    consumer.close()


def _commit_librdkafka(
    consumer: Consumer, shape: Shape, count: int, outcomes: list[object]
) -> None:
    outcomes.clear()
    due = time.perf_counter()
    for number in range(count):
        offsets = [TopicPartition(TOPIC, p, number) for p in range(shape.partitions)]
        if shape.interval_ms is None:
            consumer.commit(offsets=offsets, asynchronous=False)
        else:
            consumer.commit(offsets=offsets, asynchronous=True)
            due += shape.interval_ms / 1000
            consumer.poll(max(0.0, due - time.perf_counter()))
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while shape.interval_ms is not None and len(outcomes) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(outcomes)} of {count} commits were answered")
        consumer.poll(0.05)
    if any(outcomes):
        raise RuntimeError(f"commits were refused: {set(outcomes)}")


def _shapes() -> Iterator[Shape]:
    for partitions in (1, 10, 100):
        yield Shape(
            f"1 member, one commit in flight, partitions: {partitions}",
            partitions,
            [f"raw-{partitions}"],
            _raw_members,
        )
    for members, partitions in ((10, 10), (50, 2)):
        yield Shape(
            f"{members} members of a group, partitions: {partitions} each",
            partitions,
            [f"many-{members}"],
            _raw_members,
            members,
        )
    groups = [f"group-{number}" for number in range(100)]
    yield Shape("100 groups of 1 member, partitions: 10", 10, groups, _raw_members)
    yield Shape(
        "librdkafka, one commit in flight, partitions: 10", 10, ["lr-sync"], _librdkafka_member
    )
    for partitions in (1, 10, 100):
        yield Shape(
            f"librdkafka, one every 5 ms, partitions: {partitions}",
            partitions,
            [f"lr-{partitions}"],
            _librdkafka_member,
            interval_ms=5,
        )
    yield Shape(
        "librdkafka, as fast as it can, partitions: 10",
        10,
        ["lr-fast"],
        _librdkafka_member,
        interval_ms=0,
    )


if __name__ == "__main__":
    main()
