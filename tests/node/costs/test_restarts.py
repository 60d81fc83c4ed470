"""A real node that is killed and stopped: its ledger has its time once, and its objects once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest
from tidelog import Producer
from tidelog_core.cost.ledger import read_hours
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.http_pages import scrape
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # test_recorder has the same without processes

CONFIG = {
    "remote.task.interval.ms": "50",
    "log.segment.bytes": "4096",
    "cost.ledger.interval.ms": "200",
    "cost.machine.nodes": "1",
}
MACHINE = "machine:i4i.large"
PUTS = "tidelog_cloud_storage_requests_total"


async def produce(bootstrap: str) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(24):
            await producer.send("orders", b"%03d" % number + b"x" * 900)
            if number % 4 == 3:
                await producer.flush()


def ledger(data_dir: Path) -> Counter[str]:
    async def read() -> Counter[str]:
        store = SqliteMetadataStore(data_dir / "metadata.db")
        try:
            hours = await read_hours(store, first_hour=0)
        finally:
            await store.close()
        return sum((Counter(hour.counts) for hour in hours), Counter())

    return asyncio.run(read())


def wait_for_an_addition(data_dir: Path) -> None:
    before = ledger(data_dir)[MACHINE]
    eventually(lambda: ledger(data_dir)[MACHINE] > before, "it writes to the ledger")


def sent(node: NodeProcess) -> float:
    return scrape(node.http_address).value(PUTS, method="put", outcome="ok")


def test_time_and_requests_are_counted_once_over_kills_and_stops(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", config=CONFIG, arguments=("--http-port", "0"))
    begun, puts = time.monotonic(), 0.0
    for number in range(4):
        node.start()
        asyncio.run(produce(node.address))
        eventually(lambda: sent(node) >= 2, "segments are tiered")
        wait_for_an_addition(node.data_dir)
        if number % 2:
            puts += sent(node)  # Others may follow until it has stopped.
            node.stop()
        else:
            node.kill()
    elapsed_ms = (time.monotonic() - begun) * 1000
    counted = ledger(node.data_dir)
    assert 0 < counted[MACHINE] <= elapsed_ms
    assert counted[MACHINE] == counted["machine-volume"]
    assert counted["object-put"] >= puts
    # Every PUT made an object, or replaced one that is there: the cluster's and the topic's.
    objects = [path for path in (node.data_dir / "objects").rglob("*") if path.is_file()]
    assert counted["object-put"] <= len(objects) + 8
