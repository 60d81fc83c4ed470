"""A node that tiers, evicts, reads back, and loses its disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.records.batch import iter_headers

from tests.support.node_process import NodeProcess
from tests.support.outside_stores import node_with_outside_stores
from tests.support.wire_client import TIMEOUT_SECONDS, WireClient

SEGMENT_BYTES = 100_000
RECORD_COUNT = 2_000
DEADLINE_SECONDS = 120.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node whose stores outlive its data directory."""
    config = {"remote.task.interval.ms": "100"}
    with node_with_outside_stores(tmp_path, config) as process:
        yield process


def value_of(index: int) -> bytes:
    return b"%06d" % index + b"x" * 494


def fill(node: NodeProcess, partition_count: int = 1) -> None:
    """Produce twenty segments' worth and wait until all but the newest are evicted."""
    admin = AdminClient({"bootstrap.servers": node.address})
    config = {"segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"}
    admin.create_topics([NewTopic("t", partition_count, 1, config=config)])["t"].result(60)
    producer = Producer({"bootstrap.servers": node.address, "batch.size": 20_000})
    for index in range(RECORD_COUNT):
        producer.produce("t", value_of(index), partition=index % partition_count)
    assert producer.flush(60) == 0
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(list(node.data_dir.glob("t-*/*.log"))) > partition_count:
        assert time.monotonic() < deadline, f"segments are not evicted:\n{node.log[-3000:]}"
        time.sleep(0.05)


def read(node: NodeProcess, count: int, offset: int = 0) -> list[tuple[int, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "readers",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition("t", 0, offset)])
    found: list[tuple[int, bytes | None]] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count, timeout=60)
            assert messages, f"only {len(found)} records came:\n{node.log[-3000:]}"
            for message in messages:
                assert message.error() is None, message.error()
                found.append((message.offset() or 0, message.value()))
    finally:
        consumer.close()
    return found


def test_evicted_records_are_read_back_from_the_tier(node: NodeProcess) -> None:
    fill(node)
    expected = [(index, value_of(index)) for index in range(RECORD_COUNT)]
    assert read(node, RECORD_COUNT) == expected
    assert read(node, 100, offset=777)[:100] == expected[777:877]


def test_a_fetch_of_evicted_records_never_waits_for_new_ones(node: NodeProcess) -> None:
    """Also where it goes on in a chunk that has fewer bytes left than it wants at least."""
    fill(node)
    with WireClient(node.port) as client:
        offset = 0
        for _ in range(8):
            answer = client.fetch(
                "t",
                offset,
                max_wait_ms=int(2000 * TIMEOUT_SECONDS),
                min_bytes=50_000_000,
                partition_max_bytes=40_000,
            )
            headers = [header for _, header in iter_headers(answer.records)]
            assert headers[0].base_offset == offset
            offset = headers[-1].next_offset


def test_a_fetch_of_several_evicted_partitions_has_records_of_each(node: NodeProcess) -> None:
    """Though the first ones could take all bytes: no read returns more than a chunk."""
    fill(node, partition_count=4)
    with WireClient(node.port) as client:
        answer = client.fetch_response(
            "t", 0, partition=range(4), max_bytes=40 << 20, partition_max_bytes=32 << 20
        )
        found = {one.partition_index: one for one in answer.responses[0].partitions}
        sizes = [len(found[number].records or b"") for number in range(4)]
        assert min(sizes) > SEGMENT_BYTES // 2
        assert all(
            next(iter_headers(found[number].records))[1].base_offset == 0 for number in range(4)
        )


def test_evicted_records_are_read_back_after_kill_9(node: NodeProcess) -> None:
    fill(node)
    node.kill()
    node.start()
    assert read(node, RECORD_COUNT)[-1] == (RECORD_COUNT - 1, value_of(RECORD_COUNT - 1))


def test_a_node_that_lost_its_disk_goes_on_where_the_tier_ends(node: NodeProcess) -> None:
    fill(node)
    node.kill()
    first_lost = int(next((node.data_dir / "t-0").glob("*.log")).stem)
    while node.data_dir.exists():  # the tier worker tidies up for a moment longer
        shutil.rmtree(node.data_dir, ignore_errors=True)
    node.start()
    expected = [(index, value_of(index)) for index in range(first_lost)]
    assert read(node, first_lost) == expected
    producer = Producer({"bootstrap.servers": node.address})
    offsets: list[int] = []
    producer.produce("t", b"after", on_delivery=lambda _, message: offsets.append(message.offset()))
    assert producer.flush(60) == 0
    assert offsets == [first_lost]
