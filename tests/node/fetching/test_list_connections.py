"""A consumer of librdkafka, whose full lists a running node keeps."""

from __future__ import annotations

import random
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_process import NodeProcess

PARTITION_COUNT = 64
ROUND_COUNT = 6
SECONDS_MAX = 30.0


def test_a_consumer_of_many_partitions_gets_each_record_once_and_in_order(
    node: NodeProcess,
) -> None:
    """Also of partitions that it pauses, resumes and goes back in."""
    rng = random.Random(5)
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("wide", PARTITION_COUNT, 1)])["wide"].result(30)
    producer = Producer({"bootstrap.servers": node.address, "linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "g",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition("wide", index, 0) for index in range(PARTITION_COUNT)])
    ends, positions = [0] * PARTITION_COUNT, [0] * PARTITION_COUNT
    for _ in range(ROUND_COUNT):
        for index in rng.sample(range(PARTITION_COUNT), rng.choice([1, 3, 40])):
            producer.produce("wide", b"%d" % ends[index], partition=index)
            ends[index] += 1
        producer.flush(30)
        positions = read_to(consumer, ends, positions)
        paused = [TopicPartition("wide", index) for index in rng.sample(range(PARTITION_COUNT), 5)]
        consumer.pause(paused)
        consumer.poll(0.05)
        consumer.resume(paused)
        index = rng.randrange(PARTITION_COUNT)
        consumer.seek(TopicPartition("wide", index, 0))
        positions[index] = 0
    assert read_to(consumer, ends, positions) == ends
    consumer.close()


def read_to(consumer: Consumer, ends: list[int], positions: list[int]) -> list[int]:
    """Read up to these offsets and return them."""
    positions, until = list(positions), time.monotonic() + SECONDS_MAX
    while positions != ends:
        assert time.monotonic() < until, (positions, ends)
        record = consumer.poll(1)
        if record is None:
            continue
        assert record.error() is None
        index, offset = record.partition(), record.offset()
        assert index is not None
        assert offset == positions[index]
        assert record.value() == b"%d" % offset
        positions[index] += 1
    return positions
