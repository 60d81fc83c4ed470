"""Transactions of the SDK while nodes die: what is transformed is so once, and whole."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tidelog import Consumer, Producer
from tidelog.errors import CommitFailed, TransactionAborted, TransactionOutcomeUnknown

from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster

COUNT = 900
PARTITIONS = 3
QUICK: dict[str, Any] = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 200}


OF_PROTOCOL: dict[str, dict[str, Any]] = {
    "classic": {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500},
    "consumer": {"group_protocol": "consumer"},
}


async def transform(
    cluster: ReplicatedCluster, name: str, done: asyncio.Event, protocol: str
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    async with (
        Consumer(
            cluster.addresses,
            topics="in",
            group_id="transformers",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **OF_PROTOCOL[protocol],
            **QUICK,
        ) as consumer,
        Producer(cluster.addresses, transactional_id=name, **QUICK) as producer,
    ):
        while not done.is_set():
            records = await consumer.poll(max_records=20, timeout_ms=300)
            if not records:
                continue
            try:
                async with producer.transaction() as transaction:
                    for record in records:
                        await producer.send("out", record.value, key=record.value)
                    await transaction.send_offsets(consumer.positions(), consumer.group_metadata())
                outcomes["committed"] += 1
            except (TransactionAborted, CommitFailed):
                outcomes["aborted"] += 1
                consumer.seek_to_committed()
            except TransactionOutcomeUnknown:
                outcomes["unknown"] += 1
                consumer.seek_to_committed()
    return outcomes


async def count_out(cluster: ReplicatedCluster, done: asyncio.Event) -> Counter[int]:
    """Read committed records until all are there, and then to the end."""
    seen: Counter[int] = Counter()
    partitions = [("out", n) for n in range(PARTITIONS)]
    async with Consumer(
        cluster.addresses, isolation_level="read_committed", auto_offset_reset="earliest", **QUICK
    ) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while len(seen) < COUNT:
            seen.update(int(r.value or b"") for r in await consumer.poll(timeout_ms=300))
        done.set()
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(p) < end for p, end in ends.items()]):
            seen.update(int(r.value or b"") for r in await consumer.poll(timeout_ms=300))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("protocol", OF_PROTOCOL)
async def test_records_are_transformed_once_though_nodes_are_killed(
    tmp_path: Path, protocol: str
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)

    async def kill_nodes(cluster: ReplicatedCluster, done: asyncio.Event) -> int:
        kill_count = 0
        while not done.is_set():
            node = draw.choice(list(cluster.nodes.values()))
            await asyncio.to_thread(node.kill)
            kill_count += 1
            await asyncio.sleep(draw.uniform(0.5, 3.0))
            await asyncio.to_thread(node.start)
            await asyncio.sleep(draw.uniform(1.0, 3.0))
        return kill_count

    with replicated_cluster(tmp_path) as cluster:
        for topic in ("in", "out"):
            cluster.create(topic, partitions=PARTITIONS, min_insync_replicas="2")
        done = asyncio.Event()

        async def write() -> None:
            async with Producer(cluster.addresses, **QUICK) as producer:
                for n in range(COUNT):
                    await producer.send("in", b"%d" % n, key=b"%d" % n)
                    await asyncio.sleep(0.01)

        async with asyncio.timeout(150), asyncio.TaskGroup() as group:
            group.create_task(write())
            kills = group.create_task(kill_nodes(cluster, done))
            workers = [
                group.create_task(transform(cluster, f"worker-{n}", done, protocol))
                for n in range(2)
            ]
            counted = group.create_task(count_out(cluster, done))
        print(kills.result(), [worker.result() for worker in workers])
        assert {n: c for n, c in counted.result().items() if c != 1} == {}
        assert kills.result() >= 2
