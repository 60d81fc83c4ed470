"""A real node whose clock jumps days ahead keeps what it has acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.node.clocked_node import DAY_SECONDS, ClockedNode
from tests.support.waiting import eventually

CONFIG = {
    "log.retention.check.interval.ms": "50",
    "remote.task.interval.ms": "50",
}
TOPIC_CONFIG = {
    "segment.bytes": "2000",
    "retention.ms": str(7 * 86_400_000),
    "file.delete.delay.ms": "0",
}
RECORD_COUNT = 60
WARNING = "clock runs ahead"


@contextmanager
def clocked_nodes(folder: Path, count: int) -> Iterator[list[ClockedNode]]:
    nodes = [ClockedNode(folder, config=CONFIG, broker_id=number) for number in range(1, count + 1)]
    with ExitStack() as stack:
        for node in nodes:
            stack.enter_context(node.process)
        yield nodes


def fill(address: str) -> None:
    """Make a topic of several segments, and wait until those that are sealed are tiered."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 1, 1, config=TOPIC_CONFIG)])["t"].result(60)
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    for number in range(RECORD_COUNT):
        producer.produce("t", f"{number:0200}")
        producer.flush(60)


def low_watermark(address: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition("t", 0), 10)[0])
    finally:
        consumer.close()


def index_count(folder: Path) -> int:
    return sum(1 for _ in folder.joinpath("objects").rglob("*.index"))


def test_records_outlive_a_clock_that_is_eight_days_ahead_for_a_while(tmp_path: Path) -> None:
    with clocked_nodes(tmp_path, 1) as (node,):
        fill(node.process.address)
        eventually(lambda: index_count(tmp_path) >= 3, "segments are tiered")
        node.clock.set_off(8 * DAY_SECONDS)
        eventually(lambda: WARNING in node.process.log, "the jump is noticed")
        before = index_count(tmp_path)
        time.sleep(0.3)  # six rounds of retention
        assert low_watermark(node.process.address) == 0
        node.clock.set_off(0)
        eventually(lambda: "clock agrees again" in node.process.log, "the clock is trusted again")
        assert low_watermark(node.process.address) == 0
        assert index_count(tmp_path) >= before


@pytest.mark.slow
def test_records_outlive_a_node_that_starts_with_a_wrong_clock(tmp_path: Path) -> None:
    """It has nothing of its own to go by: the other node's lease tells it the time."""
    with clocked_nodes(tmp_path, 2) as (first, second):
        address = first.process.address
        fill(address)
        eventually(lambda: index_count(tmp_path) >= 3, "segments are tiered")
        assert first.process.stop() == 0
        first.clock.set_off(8 * DAY_SECONDS)
        first.process.start()
        eventually(lambda: WARNING in first.process.log, "the wrong clock is noticed")
        time.sleep(1)
        assert low_watermark(second.process.address) == 0
