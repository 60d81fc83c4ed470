"""Producing to compacted topics, and reading them from files and by clients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.log.checkpoint import read_checkpoint
from tidelog_core.records.batch import Record, decode_records, iter_headers

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

SECONDS_MAX = 60.0
SEGMENT_BYTES = 20_000

Value = tuple[int, bytes | None]  # offset, value


def create(node: NodeProcess, topic: str, **config: str) -> None:
    """Create a compacted topic of one partition; config names have underscores for dots."""
    dotted = {name.replace("_", "."): value for name, value in config.items()}
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01",
        "remote.storage.enable": "false",
        **dotted,
    }
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(60)


def produce(
    address: str, topic: str, count: int, *, keys: int = 20, first: int = 0, **config: Any
) -> dict[bytes, Value]:
    """Produce ``count`` records, keys in turn; return the newest of every key."""
    settings = {"bootstrap.servers": address, "batch.size": 2_000, "linger.ms": 5, **config}
    producer = Producer(settings)
    newest: dict[bytes, Value] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None, error
        newest[message.key()] = message.offset(), message.value()

    for number in range(first, first + count):
        key, value = b"key-%d" % (number % keys), b"%06d" % number + b"x" * 90
        producer.produce(topic, value, key, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(30) == 0
    return newest


def directory_of(node: NodeProcess, topic: str) -> Path:
    return node.data_dir / f"{topic}-0"


def active_base_offset(directory: Path) -> int:
    return max(int(path.stem) for path in directory.glob("*.log"))


def cleaned_up_to(directory: Path) -> int:
    rows = read_checkpoint(directory / "cleaner-offset-checkpoint")
    return rows[0][0] if rows else 0


def wait_compacted(node: NodeProcess, topic: str) -> int:
    """Wait until all but the active segment is compacted; return where that begins."""
    directory = directory_of(node, topic)
    eventually(
        lambda: cleaned_up_to(directory) == active_base_offset(directory) > 0,
        lambda: f"{topic} is not compacted:\n{node.log[-3000:]}",
    )
    return active_base_offset(directory)


def records_on_disk(directory: Path) -> list[Record]:
    """Return the records in the local segment files."""
    content = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    return [
        record
        for position, header in iter_headers(content)
        if not header.is_control
        for record in decode_records(content, position)
    ]


def consume(
    address: str, topic: str, *, offset: int = 0, **config: Any
) -> list[tuple[bytes | None, Value]]:
    """Return key, offset and value of every record from an offset to the log's end."""
    settings = {
        "bootstrap.servers": address,
        "group.id": "readers",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        **config,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[tuple[bytes | None, Value]] = []
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return found
            found.append((message.key(), (message.offset() or 0, message.value())))
    finally:
        consumer.close()
    raise AssertionError(f"the end of {topic} was not reached, {len(found)} records came")


def assert_compacted(
    records: list[tuple[bytes | None, Value]], newest: dict[bytes, Value], active_base: int
) -> None:
    """Assert that each key's newest is there, and nothing older below the active segment."""
    assert dict(records) == newest
    offsets = [offset for _, (offset, _) in records]
    assert offsets == sorted(set(offsets))
    keys = [key for key, (offset, _) in records if offset < active_base]
    assert len(keys) == len(set(keys)), "a key has two records below the active segment"
