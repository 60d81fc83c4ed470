"""A node whose partitions are tiered, for tests of restoration."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.command import called
from tests.support.node_process import NodeProcess

CONFIG = {"remote.task.interval.ms": "50", "log.retention.check.interval.ms": "200"}
SEGMENT_BYTES = 4000
TOPIC_CONFIG = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
RECORDS = 120  # a partition
DEADLINE_SECONDS = 120.0


def values(partition: int, count: int = RECORDS) -> list[bytes]:
    return [b"%d-%04d" % (partition, number) + b"x" * 100 for number in range(count)]


def produce(address: str, topic: str, partition: int, payload: list[bytes]) -> None:
    producer = Producer(
        {"bootstrap.servers": address, "batch.num.messages": 10, "enable.idempotence": True}
    )
    for value in payload:
        producer.produce(topic, value, key=value[:6], partition=partition)
    assert producer.flush(60) == 0


def seal(node: NodeProcess, partitions: list[tuple[str, int]]) -> None:
    """Produce a record that nearly fills a segment, so that all before it is sealed.

    The record stays in the active segment, which a restoration cannot bring back.
    """
    for topic, partition in partitions:
        produce(node.address, topic, partition, [b"not tiered".ljust(SEGMENT_BYTES - 100)])


def read(node: NodeProcess, topic: str, partition: int, count: int, *, start: int = 0) -> list[Any]:
    """Read ``count`` records from ``start``, and check that no more come."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "readers",
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, start)])
    found: list[Any] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=60)
            assert messages, f"only {len(found)} of {count} records came:\n{node.log[-3000:]}"
            for message in messages:
                assert message.error() is None, message.error()
                found.append(
                    (message.offset(), message.timestamp(), message.key(), message.value())
                )
    finally:
        consumer.close()
    return found


def wait_tiered(node: NodeProcess, ends: dict[tuple[str, int], int]) -> None:
    """Wait until the tier ends there, of each of the partitions."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        rows = called("tier", "status", "--metadata", node.metadata_store, "--json").document
        found = {(row["topic"], row["partition"]): row["tiered_end"] for row in rows}
        if all(found.get(partition) == end for partition, end in ends.items()):
            return
        assert time.monotonic() < deadline, f"{found}:\n{node.log[-3000:]}"
        time.sleep(0.1)
