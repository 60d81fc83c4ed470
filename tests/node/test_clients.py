"""The stock clients against a real node process: produce, read back, survive kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_process import NodeProcess

RECORD_COUNT = 200
CRASH_EVERY = 20_000


def create_topic(node: NodeProcess, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)


def produce(node: NodeProcess, topic: str, count: int, **config: object) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": node.address, "linger.ms": 5, **config})
    for index in range(count):
        producer.produce(
            topic,
            f"value-{index}".encode(),
            key=f"{index}".encode(),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failures == []


def read_values(node: NodeProcess, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": node.address, "group.id": "readers", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    try:
        while len(values) < count:
            messages = consumer.consume(count, timeout=60)
            assert messages, f"only {len(values)} of {count} records came"
            for message in messages:
                assert message.error() is None
                assert message.offset() == len(values)
                values.append(message.value())
    finally:
        consumer.close()
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_back_what_it_wrote(node: NodeProcess, codec: str) -> None:
    create_topic(node, "t")
    produce(node, "t", RECORD_COUNT, **{"compression.type": codec, "enable.idempotence": True})
    assert read_values(node, "t", RECORD_COUNT) == [b"value-%d" % i for i in range(RECORD_COUNT)]


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
def test_kafka_python_reads_back_what_it_wrote(node: NodeProcess) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    create_topic(node, "t")
    producer = KafkaProducer(bootstrap_servers=node.address)
    sent = [producer.send("t", b"value-%d" % index) for index in range(RECORD_COUNT)]
    assert [future.get(10).offset for future in sent] == list(range(RECORD_COUNT))
    producer.close()
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=node.address,
        group_id="g",
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    values = []
    with contextlib.closing(consumer):
        for record in consumer:
            values.append(record.value)
            if len(values) == RECORD_COUNT:
                break
    assert values == [b"value-%d" % index for index in range(RECORD_COUNT)]


async def test_aiokafka_reads_back_what_it_wrote(node: NodeProcess) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    create_topic(node, "t")

    producer = AIOKafkaProducer(bootstrap_servers=node.address)
    await producer.start()
    for index in range(RECORD_COUNT):
        await producer.send("t", b"value-%d" % index)
    await producer.stop()
    consumer = AIOKafkaConsumer(
        "t", bootstrap_servers=node.address, group_id="g", auto_offset_reset="earliest"
    )
    await consumer.start()
    values: list[bytes | None] = []
    try:
        async with asyncio.timeout(60):
            while len(values) < RECORD_COUNT:
                found = await consumer.getmany(timeout_ms=1000)
                values += [record.value for records in found.values() for record in records]
    finally:
        await consumer.stop()
    assert values == [b"value-%d" % index for index in range(RECORD_COUNT)]


def test_acknowledged_records_survive_kill_9(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node").start()
    try:
        create_topic(node, "t")
        produce(node, "t", RECORD_COUNT)
        node.kill()
        node.start()
        produce(node, "t", RECORD_COUNT)
        expected = [b"value-%d" % index for index in range(RECORD_COUNT)]
        assert read_values(node, "t", 2 * RECORD_COUNT) == expected * 2
    finally:
        if node.process is not None:
            assert node.stop() == 0


def test_a_stopped_node_comes_back_without_recovery(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node").start()
    create_topic(node, "t")
    produce(node, "t", RECORD_COUNT)
    assert node.stop() == 0
    assert (tmp_path / "node" / "clean-shutdown").exists()
    with node:
        expected = [b"value-%d" % index for index in range(RECORD_COUNT)]
        assert read_values(node, "t", RECORD_COUNT) == expected


def test_no_acknowledged_record_is_lost_or_doubled_by_kill_9_under_load(tmp_path: Path) -> None:
    """Idempotent producers go on over the crash; what they were told is what is there."""
    node = NodeProcess(tmp_path / "node").start()
    try:
        create_topic(node, "t")
        acknowledged: dict[int, bytes] = {}
        config = {"bootstrap.servers": node.address, "enable.idempotence": True, "linger.ms": 1}
        producer = Producer({**config, "reconnect.backoff.max.ms": 200, "log_level": 0})

        def delivered(error: object, message: Message) -> None:
            assert error is None
            acknowledged[message.offset() or 0] = message.value() or b""

        for index in range(3 * CRASH_EVERY):
            producer.produce("t", b"%d" % index, on_delivery=delivered)
            producer.poll(0)
            if index % CRASH_EVERY == CRASH_EVERY // 2:
                time.sleep(0.05)
                node.kill()
                node.start()
        assert producer.flush(60) == 0
        assert sorted(acknowledged) == list(range(3 * CRASH_EVERY))
        values = read_values(node, "t", 3 * CRASH_EVERY)
        assert values == [acknowledged[offset] for offset in range(3 * CRASH_EVERY)]
        assert values == [b"%d" % index for index in range(3 * CRASH_EVERY)]
    finally:
        if node.process is not None:
            node.stop()
