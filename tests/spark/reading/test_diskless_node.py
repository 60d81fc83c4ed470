"""What a real node acknowledged of diskless topics is read without it, also once it is killed."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog import BucketReader

from tests.spark.micro_batches import MicroBatches
from tests.support.node_process import NodeProcess
from tests.support.outside_stores import node_with_outside_stores
from tools.places import ROOT

pytestmark = pytest.mark.slow  # ``test_chain_tail`` and ``test_bucket_reader`` are the small twins
TOPIC = "t"
Rows = list[tuple[int, bytes | None]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node whose stores outlive its data directory."""
    config = {
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": "2",
        "remote.task.interval.ms": "50",
        "log.retention.check.interval.ms": "200",
    }
    with node_with_outside_stores(tmp_path, config) as process:
        yield process


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, str]:
    return {"metadata": f"sqlite://{tmp_path}/metadata.db", "objects": f"file://{tmp_path}/objects"}


def create(node: NodeProcess, **config: str) -> None:
    settings = {"diskless.enable": "true"} | {k.replace("_", "."): v for k, v in config.items()}
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(30)


def read(stores: dict[str, str], start: int = 0, **given: str) -> Rows:
    async def rows() -> Rows:
        async with BucketReader(**stores, **given) as bucket:  # type: ignore[arg-type]
            found = bucket.read((TOPIC, 0), start_offset=start)
            return [(record.offset, record.value) async for record in found]

    return asyncio.run(rows())


def read_by_format(stores: dict[str, str]) -> Rows:
    """Return the committed records as the reader of ``docs/format.md`` finds them."""
    script = ROOT / "docs" / "read_segments.py"
    ended = subprocess.run(
        [sys.executable, str(script), stores["objects"], TOPIC, "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = map(json.loads, ended.stdout.splitlines())
    return [(record["offset"], base64.b64decode(record["value"])) for record in found]


class Sent:
    """What a client had acknowledged, in order."""

    def __init__(self, node: NodeProcess) -> None:
        self._producer = Producer(
            {"bootstrap.servers": node.address, "acks": "all", "enable.idempotence": True}
        )
        self.rows: Rows = []

    def send(self, *values: bytes) -> None:
        """Send the values, and wait until they are acknowledged."""
        for value in values:
            self._producer.produce(TOPIC, value, partition=0, on_delivery=self._on_delivery)
        assert self._producer.flush(60) == 0

    def _on_delivery(self, error, message) -> None:
        assert error is None, error
        self.rows.append((message.offset(), message.value()))


def test_each_record_is_in_the_bucket_when_it_is_acknowledged(node, stores):
    create(node)
    sent = Sent(node)
    stream = MicroBatches({**stores, "subscribe": TOPIC, "startingOffsets": "earliest"})
    try:
        streamed: Rows = []
        for number in range(10):
            sent.send(*(b"%d-%d" % (number, n) for n in range(number + 1)))
            streamed += (stream.next_rows() or {}).get((TOPIC, 0), [])
            assert streamed == sent.rows
            assert read(stores) == sent.rows
        node.kill()
        sent_before = list(sent.rows)
        assert read(stores) == sent_before
        assert read_by_format(stores) == sent_before
        node.start()
        sent.send(b"after the restart")
        assert read(stores) == sent.rows
        assert (stream.next_rows() or {})[TOPIC, 0] == sent.rows[len(sent_before) :]
    finally:
        stream.stop()


def test_segments_that_are_tiered_meanwhile_change_nothing(node, stores, tmp_path):
    create(node, segment_bytes="20000", local_retention_ms="-2")
    sent = Sent(node)
    stream = MicroBatches({**stores, "subscribe": TOPIC, "startingOffsets": "earliest"})
    try:
        streamed: Rows = []
        draw = random.Random(1)
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("objects/*/t-*/0/*.index"))) < 5:
            assert time.monotonic() < deadline
            sent.send(*(draw.randbytes(500) for _ in range(draw.randint(1, 20))))
            streamed += (stream.next_rows() or {}).get((TOPIC, 0), [])
            assert streamed == sent.rows
            start = draw.choice(sent.rows)[0]
            assert read(stores, start) == [row for row in sent.rows if row[0] >= start]
        assert read(stores) == read_by_format(stores) == sent.rows
        assert 0 < len(read(stores, diskless_tail=False)) < len(sent.rows)
    finally:
        stream.stop()


def test_transactions_are_read_whole_and_only_when_they_are_committed(node, stores):
    create(node)
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": "x"})
    producer.init_transactions(60)
    committed: list[bytes] = []
    every: list[bytes] = []
    draw = random.Random(2)
    for number in range(12):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, n) for n in range(draw.randint(1, 5))]
        for value in values:
            producer.produce(TOPIC, value, partition=0)
        assert producer.flush(60) == 0
        every += values
        assert [value for _, value in read(stores)] == every
        visible = [value for _, value in read(stores, isolation_level="read_committed")]
        assert visible == committed
        if draw.random() < 0.5:
            producer.commit_transaction(60)
            committed += values
        else:
            producer.abort_transaction(60)
    node.kill()
    visible = read(stores, isolation_level="read_committed")
    assert [value for _, value in visible] == committed
    assert read_by_format(stores) == visible
