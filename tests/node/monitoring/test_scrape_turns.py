"""A scrape of a node with many partitions or groups holds up no client, and is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_node.monitoring import group_lag
from tidelog_node.monitoring.partition_source import WATERMARKS_MAX
from tidelog_node.settings import parse_settings
from tidelog_node.wiring import Addresses, run_node

from tests.support.http_pages import get, scrape
from tests.support.loop_turns import loop_turns

SECONDS_MAX = 120.0
TURN_SECONDS_MAX = 0.05
SCRAPE_SECONDS_MAX = 1.0  # of the loop


@asynccontextmanager
async def filled_node(folder: Path, topic_count: int, partitions: int) -> AsyncIterator[Addresses]:
    """Run a node on this loop, with a record in each partition."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    arguments = ["--port=0", "--http-port=0", f"--data-dir={folder / 'node'}"]
    arguments += ["--set=metrics.group.lag.interval.ms=50"]
    settings = parse_settings(arguments, {})
    node = asyncio.create_task(run_node(settings, stop=stop, on_ready=ready.set_result))
    await asyncio.wait([node, ready], return_when=asyncio.FIRST_COMPLETED)
    try:
        addresses = ready.result()
        await asyncio.to_thread(fill, addresses.clients.port, topic_count, partitions)
        yield addresses
    finally:
        stop.set()
        await node


def fill(port: int, topic_count: int, partitions: int) -> None:
    address = {"bootstrap.servers": f"127.0.0.1:{port}"}
    admin = AdminClient(address)
    names = [f"t{number}" for number in range(topic_count)]
    for made in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        made.result(SECONDS_MAX)
    producer = Producer({**address, "linger.ms": 20})
    for name in names:
        for partition in range(partitions):
            producer.produce(name, b"x", partition=partition)
    assert producer.flush(SECONDS_MAX) == 0


@pytest.mark.parametrize(
    ("topic_count", "partitions"), [(10, 30), pytest.param(100, 30, marks=pytest.mark.slow)]
)
async def test_a_scrape_takes_short_turns(
    tmp_path: Path, topic_count: int, partitions: int
) -> None:
    async with filled_node(tmp_path, topic_count, partitions) as addresses:
        assert addresses.http is not None
        scraped = await asyncio.to_thread(scrape, addresses.http)
        led = topic_count * partitions
        assert scraped.value("tidelog_kafka_leaders") == led
        assert len(scraped.values("tidelog_kafka_max_offset")) == min(led, WATERMARKS_MAX)
        assert len(scraped.labels("tidelog_kafka_records_produced_total", "topic")) == topic_count
        with loop_turns() as turns:
            await asyncio.to_thread(get, addresses.http, "/metrics")
        print(turns)
        assert turns.longest_seconds < TURN_SECONDS_MAX, turns.longest
        assert turns.total_seconds < SCRAPE_SECONDS_MAX


async def test_groups_that_are_too_many_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GROUPS_MAX", "POSITIONS_MAX", "LAGS_MAX"):
        monkeypatch.setattr(group_lag, name, {"GROUPS_MAX": 3}.get(name, 2))
    async with filled_node(tmp_path, 1, 2) as addresses:
        assert addresses.http is not None
        await asyncio.to_thread(commit, addresses.clients.port, ("a", "b", "c", "d"))
        lag, left_out = "tidelog_kafka_consumer_group_lag", "tidelog_kafka_consumer_groups_left_out"
        async with asyncio.timeout(SECONDS_MAX):
            scraped = await asyncio.to_thread(scrape, addresses.http)
            while scraped.value(left_out) < 2:
                scraped = await asyncio.to_thread(scrape, addresses.http)
        # Three are followed, and of these the partitions of two.
        assert len(scraped.values(lag)) == 2
        assert scraped.value(left_out) == 2


def commit(port: int, groups: tuple[str, ...]) -> None:
    for group in groups:
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": group})
        consumer.commit(offsets=[TopicPartition("t0", 0, 0)], asynchronous=False)
        consumer.close()
