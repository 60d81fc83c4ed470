"""An idle node's work does not grow with its partitions: calls are counted, not measured."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_node.settings import parse_settings
from tidelog_node.upkeep.log_changes import UNCHANGED_COUNT
from tidelog_node.wiring import run_node

# Everything that comes round does so several times in the seconds that are counted.
OFTEN = {
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "remote.task.interval.ms": "200",
    "replica.lag.time.max.ms": "800",
    "leader.imbalance.check.interval.seconds": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
COUNTED_SECONDS = 1.0
SETTLE_SECONDS_MAX = 60.0
CALLS_PER_CHECK_MAX = 20  # of one function, for one log that is told in turn
A_PARTITION = (
    *("Replica.", "ReplicaManager.replicas.", "LocalLog.", "LogSegments."),
    *("LeaderCommits.", "LeaderState."),
)


@pytest.mark.parametrize("partition_count", [300, pytest.param(2000, marks=pytest.mark.slow)])
async def test_idle_partitions_are_not_looked_at(tmp_path: Path, partition_count: int) -> None:
    """But for those that are told in turn, so many a second, and by the scrubber."""
    allowed = partition_count / 2 + UNCHANGED_COUNT * CALLS_PER_CHECK_MAX

    async with filled_node(tmp_path, partition_count), asyncio.timeout(SETTLE_SECONDS_MAX):
        while True:  # At first each is looked at, since it has changed.
            busiest = (await count_calls(COUNTED_SECONDS)).most_common(5)
            print(busiest)
            if all(count <= allowed for _, count in busiest):
                return


@asynccontextmanager
async def filled_node(folder: Path, partition_count: int) -> AsyncIterator[None]:
    """Run a node on this loop, with a record in each of so many partitions."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    given = [f"--set={name}={value}" for name, value in OFTEN.items()]
    settings = parse_settings(["--port=0", f"--data-dir={folder / 'node'}", *given], {})
    node = asyncio.create_task(run_node(settings, stop=stop, on_ready=ready.set_result))
    await asyncio.wait([node, ready], return_when=asyncio.FIRST_COMPLETED)
    if node.done():
        node.result()
    try:
        await asyncio.to_thread(fill, ready.result().clients.port, partition_count)
        yield
    finally:
        stop.set()
        await node


def fill(port: int, partition_count: int) -> None:
    address = {"bootstrap.servers": f"127.0.0.1:{port}"}
    admin = AdminClient(address)
    admin.create_topics([NewTopic("t", partition_count, 1)])["t"].result(60)
    producer = Producer({**address, "linger.ms": 20})
    for number in range(partition_count):
        producer.produce("t", b"x", partition=number)
    assert producer.flush(60) == 0


async def count_calls(seconds: float) -> Counter[str]:
    """Return how often each function of the node that works on one partition was called."""
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    sys.setprofile(note)
    try:
        await asyncio.sleep(seconds)
    finally:
        sys.setprofile(None)
    named = Counter({code.co_qualname: count for code, count in calls.items()})
    return Counter({name: n for name, n in named.items() if name.startswith(A_PARTITION)})
