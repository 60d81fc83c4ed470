from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.cost.counts import HOUR_MS
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import add
from tidelog_core.cost.prices import list_prices
from tidelog_core.metadata.location import opened_metadata_store

from tests.support.console import Browser, ConsoleProcess, running_console
from tests.support.node_process import NodeProcess

SECONDS_MAX = 30.0
TOPIC = "orders"
SPENT_PUTS = 2_000_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with a topic of three partitions."""
    folder = tmp_path_factory.mktemp("console")
    with NodeProcess(
        folder / "node",
        metadata_store=f"sqlite://{folder}/metadata.db",
        object_store=f"file://{folder}/objects",
        arguments=("--http-port", "0"),
    ) as running:
        create(running.address, TOPIC, 3)
        asyncio.run(spend(str(running.metadata_store)))
        yield running


@pytest.fixture(scope="module")
def console(node: NodeProcess) -> Iterator[ConsoleProcess]:
    """The console of the node."""
    stores = ("--metadata", str(node.metadata_store), "--objects", str(node.object_store))
    with running_console(node.address, *stores, "--node-http", node.http_address) as running:
        yield running


@pytest.fixture
def browser(console: ConsoleProcess) -> Browser:
    return console.browser()


async def spend(metadata_url: str) -> None:
    """Add to the ledger, as a node does; what is read of it is kept for some seconds."""
    tally = Tally()
    tally.add("object-put", SPENT_PUTS, topic=TOPIC)
    tally.add("machine:x99.metal", 1)
    hour = time.time_ns() // 1_000_000 // HOUR_MS
    async with opened_metadata_store(metadata_url, may_be_new=True) as store:
        addition = Addition("test", hour, "test", tally)
        assert await add(store, addition, Limits(list_prices(), 20), now_hour=hour)


def create(address: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic; ``_`` in names of settings stands for ``.``."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, partitions, 1, config=settings)
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([new])[topic].result(SECONDS_MAX)


def produce(address: str, topic: str, *values: bytes | None, partition: int = 0) -> None:
    """Produce the values."""
    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(SECONDS_MAX) == 0
