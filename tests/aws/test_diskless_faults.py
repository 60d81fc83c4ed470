"""Diskless topics while S3 and DynamoDB fail, between a real node and real servers.

No record is acknowledged or read before it is in the bucket. No acknowledged record is lost or there
twice. The table may be unreachable, since the chain proves who leads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from tests.aws.credentials import CredentialsEndpoint
from tests.aws.faulty_stores import FaultyNode, faulty_node
from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS
from tests.support.store_proxy import StoreBehaviour
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow  # tests/node/diskless has most of it with a folder

PUTS = frozenset({"PUT"})
LEASE_SECONDS = 3
BUFFER_BYTES = 1_048_576
CONFIG = {
    "broker.session.timeout.ms": str(LEASE_SECONDS * 1000),
    "diskless.append.puts.per.second.max": "0",
    "diskless.buffer.max.bytes": str(BUFFER_BYTES),
}


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory,
    ministack_endpoint: str,
    dynamodb_local_endpoint: str,
    credentials: CredentialsEndpoint,
) -> Iterator[FaultyNode]:
    """A node for all of these tests."""
    with faulty_node(
        tmp_path_factory.mktemp("diskless"),
        s3_endpoint=ministack_endpoint,
        dynamodb_endpoint=dynamodb_local_endpoint,
        config=CONFIG,
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def healed(node: FaultyNode) -> Iterator[None]:
    """Every test begins and ends with stores that work."""
    yield
    node.behave()


def create(node: FaultyNode) -> str:
    """Create a diskless topic and return its name once it is led."""
    topic = node.create(**DISKLESS, **{"segment.bytes": "10000000"})
    node.produce(topic, 1)
    return topic


def write_in_large_batches(node: FaultyNode, topic: str, count: int) -> None:
    """Write records of 2 KiB, more than the buffer at a time; they are known once all are there."""
    failures: list[object] = []
    # librdkafka's idempotent producer would wait for the answer to its first batch.
    settings = {"batch.size": 500_000, "linger.ms": 50, "enable.idempotence": False}
    producer = Producer({"bootstrap.servers": node.process.address, **settings})
    values = [b"%06d" % number + b"x" * 2_048 for number in range(count)]
    for value in values:
        producer.produce(
            topic,
            value,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    if producer.flush(120) == 0 and not failures:
        node.produced[f"{topic}-0"] += values


def test_nothing_is_acknowledged_or_read_while_a_put_has_no_answer(node: FaultyNode) -> None:
    topic = create(node)
    node.behave(s3=StoreBehaviour(delay_s=60.0, methods=PUTS))
    answers = []
    with WireClient(node.process.port) as client, WireClient(node.process.port) as other:
        client.socket.settimeout(60)  # An upload is given up after 20 s, and repeated.
        sending = threading.Thread(
            target=lambda: answers.append(
                client.produce(topic, batch_of(b"a"), acks=-1, timeout_ms=60_000)
            )
        )
        sending.start()
        time.sleep(1.5)
        assert not answers
        assert other.fetch(topic, 1).high_watermark == 1
        node.behave()
        sending.join(60)
        assert answers[0].error_code is ErrorCode.none
        assert other.fetch(topic, 1).high_watermark == 2


def test_a_storm_of_refusals_fills_the_buffer_and_then_all_is_stored(node: FaultyNode) -> None:
    topic = create(node)
    node.behave(s3=StoreBehaviour(throttled_part=1.0, methods=PUTS))
    writing = threading.Thread(target=write_in_large_batches, args=(node, topic, 3_000))
    writing.start()
    folder = node.process.data_dir / f"{topic}-0"

    def log_bytes() -> int:
        return sum(path.stat().st_size for path in folder.glob("*.log"))

    eventually(lambda: log_bytes() >= BUFFER_BYTES, "the buffer is full")
    time.sleep(2)
    assert log_bytes() < 4 * BUFFER_BYTES
    with WireClient(node.process.port) as client:
        assert client.fetch(topic, 0).high_watermark == 1
    node.behave()
    writing.join(120)
    assert not writing.is_alive()
    assert len(node.produced[f"{topic}-0"]) == 3_001
    node.consume(topic)


def test_what_was_acknowledged_is_there_once_whatever_becomes_of_puts(node: FaultyNode) -> None:
    topic = create(node)
    for behaviour in (
        StoreBehaviour(throttled_part=0.3, reset_part=0.3),
        StoreBehaviour(lost_part=0.3, hold_s=0.3, methods=PUTS),
        StoreBehaviour(truncated_part=0.3, delay_s=0.1),
    ):
        node.behave(s3=behaviour)
        node.produce(topic, 300)
    node.behave()
    node.consume(topic)


def test_led_partitions_go_on_while_the_table_is_away(node: FaultyNode) -> None:
    topic, replicated = create(node), node.create()
    node.produce(replicated, 1)
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": node.process.address, "enable.idempotence": True})
    count, stop = 0, threading.Event()

    def write() -> None:
        nonlocal count
        while not stop.is_set():
            producer.produce(
                topic,
                b"%d" % count,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            count += 1
            producer.poll(0.01)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        time.sleep(1)
        node.behave(dynamodb=StoreBehaviour(is_cut=True))
        with WireClient(node.process.port) as client:
            eventually(
                lambda: (
                    client.produce(replicated, batch_of(b"a"), acks=-1).error_code
                    is ErrorCode.not_leader_or_follower
                ),
                "the lease has lapsed",
            )
            end = client.fetch(topic, 0).high_watermark
            time.sleep(2 * LEASE_SECONDS)
            assert client.fetch(topic, 0).high_watermark > end
            # A client that connects now finds the leader, too.
            newcomer = Producer({"bootstrap.servers": node.process.address, "acks": "all"})
            newcomer.produce(topic, b"newcomer")
            assert newcomer.flush(30) == 0
        node.behave()
        with WireClient(node.process.port) as client:
            eventually(
                lambda: (
                    client.produce(replicated, batch_of(b"a"), acks=-1).error_code is ErrorCode.none
                ),
                "the lease is renewed",
            )
    finally:
        stop.set()
        writing.join()
    assert producer.flush(60) == 0
    assert failures == []
    with WireClient(node.process.port) as client:
        # The first record, the newcomer's, and each of the producer's once.
        assert client.fetch(topic, 0).high_watermark == count + 2
    assert "chain has ended" not in node.process.log
