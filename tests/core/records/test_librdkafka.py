"""Batches to and from librdkafka, by way of the mock broker that it carries.

The mock stores and returns batches as they came, so that what one side made is
what the other decodes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, Producer, TopicPartition
from tidelog_core.records.batch import (
    CompressionType,
    Record,
    build_batch,
    decode_records,
    iter_headers,
    validate_produced,
    validate_records,
)

from tests.core.records.samples import CODECS, sample_records

_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class MockBroker:
    """librdkafka's mock cluster of one broker, alive as long as its producer is."""

    owner: Producer
    host: str
    port: int

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def create_topic(self, topic: str) -> None:
        self.owner.list_topics(topic, timeout=_TIMEOUT_S)

    def produce(self, topic: str, batch: bytes) -> None:
        """Send a Produce request (version 7) of one batch for partition 0."""
        body = struct.pack(">hhii", -1, -1, 10_000, 1) + _string(topic)
        body += struct.pack(">iii", 1, 0, len(batch)) + batch
        answer = self._call(api_key=0, version=7, body=body)
        (error,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)
        assert error == 0

    def fetch(self, topic: str, offset: int) -> bytes:
        """Return batches of partition 0 from the offset on, by a Fetch request (version 4)."""
        body = struct.pack(">iiiibi", -1, 1000, 1, 1 << 30, 0, 1) + _string(topic)
        body += struct.pack(">iiqi", 1, 0, offset, 1 << 30)
        answer = self._call(api_key=1, version=4, body=body)
        position = 4 + 4 + 2 + len(topic) + 4 + 4
        (error,) = struct.unpack_from(">h", answer, position)
        assert error == 0
        (aborted_count,) = struct.unpack_from(">i", answer, position + 18)
        assert aborted_count <= 0
        (size,) = struct.unpack_from(">i", answer, position + 22)
        return answer[position + 26 :][:size]

    def _call(self, *, api_key: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhi", api_key, version, 1) + _string("test") + body
        with socket.create_connection((self.host, self.port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as stream:
                (size,) = struct.unpack(">i", stream.read(4))
                return stream.read(size)[4:]  # behind the correlation id


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@pytest.fixture(scope="module")
def mock_broker() -> Iterator[MockBroker]:
    owner = Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1})
    (broker,) = owner.list_topics(timeout=_TIMEOUT_S).brokers.values()
    yield MockBroker(owner, broker.host, broker.port)
    owner.flush(_TIMEOUT_S)


def _consume(broker: MockBroker, topic: str, count: int) -> list[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "any",
            "check.crcs": True,
            "enable.auto.commit": False,
        }
    )
    records = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(count):
            message = consumer.poll(_TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            kind, timestamp = message.timestamp()
            assert kind != TIMESTAMP_NOT_AVAILABLE
            headers = tuple(message.headers() or ())
            records.append(
                Record(message.offset(), timestamp, message.key(), message.value(), headers)
            )
    finally:
        consumer.close()
    return records


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_we_build(mock_broker: MockBroker, codec: CompressionType) -> None:
    topic = f"ours-{codec.name}"
    mock_broker.create_topic(topic)
    records = sample_records(500)
    records[7] = records[7]._replace(value=b"several blocks " * 30_000)
    mock_broker.produce(topic, build_batch(records, compression=codec))
    assert _consume(mock_broker, topic, len(records)) == records


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_what_librdkafka_builds(mock_broker: MockBroker, codec: CompressionType) -> None:
    topic = f"theirs-{codec.name}"
    mock_broker.create_topic(topic)
    records = sample_records(500)
    records[7] = records[7]._replace(value=b"several blocks " * 30_000)
    producer = Producer(
        {
            "bootstrap.servers": mock_broker.bootstrap,
            "compression.type": codec.name.lower(),
            "linger.ms": 60_000,  # one batch: only the flush sends
            "acks": "all",
        }
    )
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
            partition=0,
        )
    assert producer.flush(_TIMEOUT_S) == 0

    read: list[Record] = []
    codecs = set()
    while len(read) < len(records):
        fetched = mock_broker.fetch(topic, len(read))
        assert fetched, f"{len(read)} of {len(records)} records arrived"
        for position, header in iter_headers(fetched):
            codecs.add(header.compression)
            validate_produced(header._replace(base_offset=0), fetched, position)
            validate_records(fetched, position, header, requires_keys=False)
            read.extend(decode_records(fetched, position))
    assert read == records
    # It leaves a batch uncompressed that compression would not make smaller.
    assert codec in codecs
    assert codecs <= {codec, CompressionType.NONE}
