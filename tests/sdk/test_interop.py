"""Records and groups shared with other clients of the protocol."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable

import confluent_kafka
import pytest
from tidelog import Consumer, Producer
from tidelog.options import AssignorName

with warnings.catch_warnings():  # It reads its schemas in an old way.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from tests.support.node_process import NodeProcess

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SENT = [
    (b"key", b"value" * 200, (("h", b"1"), ("n", None))),
    (None, b"", ()),
    (b"", None, ()),
    (b"k", b"x" * 20_000, (("h", b""),)),
]


@pytest.mark.parametrize("codec", CODECS)
async def test_others_read_what_we_write(node: NodeProcess, topic: str, codec: str) -> None:
    async with Producer(node.address, compression=codec, linger_ms=50) as producer:  # type: ignore[arg-type]
        for n, (key, value, headers) in enumerate(SENT):
            await producer.send(topic, value, key=key, headers=headers, timestamp_ms=5_000 + n)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": f"{topic}-c",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    messages = [m for _ in SENT if (m := consumer.poll(10)) is not None]
    consumer.close()
    assert [m.error() for m in messages] == [None] * len(SENT)
    assert [
        (m.key(), m.value(), tuple((k, v) for k, v in m.headers() or [])) for m in messages
    ] == SENT
    assert [m.timestamp()[1] for m in messages] == [5_000 + n for n in range(len(SENT))]

    other = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=node.address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    got = [next(other) for _ in SENT]
    other.close()
    assert [(m.key, m.value, tuple(m.headers)) for m in got] == SENT


@pytest.mark.parametrize("codec", CODECS)
async def test_we_read_what_others_write(node: NodeProcess, topic: str, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.address,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 50,
        }
    )
    for n, (key, value, headers) in enumerate(SENT):
        producer.produce(topic, value=value, key=key, headers=list(headers), timestamp=5_000 + n)
    assert producer.flush(60) == 0
    other = kafka.KafkaProducer(
        bootstrap_servers=node.address,
        compression_type=None if codec == "none" else codec,
        linger_ms=50,
    )
    for n, (key, value, headers) in enumerate(SENT):
        headers = [(k, v) for k, v in headers if v is not None]  # noqa: PLW2901 - it has no null ones
        other.send(topic, value=value, key=key, headers=headers, timestamp_ms=6_000 + n)
    other.flush(60)
    other.close()

    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        records = []
        while len(records) < 2 * len(SENT):
            batch = await consumer.poll(timeout_ms=10_000)
            assert batch
            records += batch
    ours = [(r.key, r.value, r.headers) for r in records]
    assert ours[: len(SENT)] == SENT
    assert ours[len(SENT) :] == [
        (k, v, tuple(h for h in headers if h[1] is not None)) for k, v, headers in SENT
    ]
    times = [r.timestamp_ms for r in records]
    assert times == [5_000 + n for n in range(4)] + [6_000 + n for n in range(4)]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
async def test_one_group_with_members_of_both_kinds(
    node: NodeProcess, new_topic: Callable[..., str], name: str, assignor: AssignorName
) -> None:
    """Whoever leads: we come first, then the other, then we leave."""
    topic = new_topic(4)
    stop = threading.Event()
    theirs: set[int] = set()

    def consume() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": node.address,
                "group.id": name,
                "partition.assignment.strategy": assignor,
                "heartbeat.interval.ms": 100,
            }
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            consumer.poll(0.05)
            theirs.clear()
            theirs.update(p.partition for p in consumer.assignment())
        consumer.close()

    thread = threading.Thread(target=consume)

    async def until(consumer: Consumer | None, ours: int, others: int) -> None:
        async with asyncio.timeout(60):
            while True:
                mine: set[int] = set()
                if consumer is not None:
                    await consumer.poll(timeout_ms=50)
                    mine = {p.partition for p in consumer.assignment()}
                else:
                    await asyncio.sleep(0.05)
                if (len(mine), len(theirs)) == (ours, others) and not mine & set(theirs):
                    return

    try:
        async with Consumer(
            node.address,
            topics=topic,
            group_id=name,
            assignors=assignor,
            heartbeat_interval_ms=100,
        ) as consumer:
            await until(consumer, 4, 0)
            thread.start()
            await until(consumer, 2, 2)
        await until(None, 0, 4)
        async with Consumer(
            node.address,
            topics=topic,
            group_id=name,
            assignors=assignor,
            heartbeat_interval_ms=100,
        ) as consumer:  # Now the other leads.
            await until(consumer, 2, 2)
    finally:
        stop.set()
        if thread.ident is not None:
            thread.join()


async def test_keys_go_to_the_same_partitions_as_with_others(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(7)
    keys = [b"%d" % n for n in range(100)] + [b"x" * n for n in range(20)]
    placed: dict[bytes, int] = {}

    def note(error: object, message: confluent_kafka.Message) -> None:
        assert error is None
        placed[message.key() or b""] = message.partition() or 0

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.address, "partitioner": "murmur2_random"}
    )
    for key in keys:
        producer.produce(topic, key=key, value=b"v", on_delivery=note)
    producer.flush(60)

    async with Producer(node.address) as ours:
        for key in keys:
            if key:
                assert (await ours.send_and_wait(topic, b"v", key=key)).partition == placed[key]
