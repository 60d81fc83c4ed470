"""The producer against a real node."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog import Admin, Consumer, ConsumerRecord, Delivery, Producer
from tidelog.errors import (
    BufferExhausted,
    ClientClosed,
    ConnectionFailed,
    DeliveryTimedOut,
    InvalidRequest,
    InvalidTimestamp,
    InvalidTopic,
    MessageTooLarge,
    PartitionNotKnown,
    TidelogError,
    UnknownTopicOrPartition,
)

from tests.sdk.conftest import make_topic
from tests.support.flaky_proxy import FlakyProxy
from tests.support.node_process import NodeProcess

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


async def read_all(address: str, topic: str, partition_count: int = 1) -> list[ConsumerRecord]:
    """Return every record of the topic, partition by partition."""
    records: list[ConsumerRecord] = []
    async with Consumer(address) as consumer:
        partitions = [(topic, n) for n in range(partition_count)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any([await consumer.position(p) < end for p, end in ends.items()]):
            records += await consumer.poll(timeout_ms=5000, max_records=100_000)
    return sorted(records, key=lambda record: (record.partition, record.offset))


@pytest.mark.parametrize("codec", CODECS)
async def test_records_come_back_as_they_were_sent(
    node: NodeProcess, topic: str, codec: str
) -> None:
    sent = [
        (b"key", b"value", (("h", b"1"), ("h", b"2"), ("ü", None))),
        (None, b"no key", ()),
        (b"no value", None, ()),
        (b"", b"", (("", b""),)),
        (None, None, ()),
        (b"k" * 300, b"v" * 70_000, ()),
    ]
    async with Producer(node.address, compression=codec) as producer:  # type: ignore[arg-type]
        deliveries = [
            await producer.send(topic, value, key=key, headers=headers, timestamp_ms=1000 + n)
            for n, (key, value, headers) in enumerate(sent)
        ]
        metadata = [await delivery for delivery in deliveries]
    assert [m.offset for m in metadata] == list(range(len(sent)))
    assert [m.timestamp_ms for m in metadata] == [1000 + n for n in range(len(sent))]
    got = await read_all(node.address, topic)
    assert [(r.key, r.value, r.headers) for r in got] == sent
    assert [r.timestamp_ms for r in got] == [1000 + n for n in range(len(sent))]


async def test_records_get_the_time_they_were_sent_at(node: NodeProcess, topic: str) -> None:
    before = time.time_ns() // 1_000_000
    async with Producer(node.address) as producer:
        metadata = await producer.send_and_wait(topic, b"v")
    assert before <= metadata.timestamp_ms <= time.time_ns() // 1_000_000


async def test_topics_with_log_append_time_say_when_the_node_took_the_record(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    async with Producer(node.address) as producer:
        metadata = await producer.send_and_wait(topic, b"v", timestamp_ms=1)
    assert abs(metadata.timestamp_ms - time.time() * 1000) < 60_000
    (record,) = await read_all(node.address, topic)
    assert record.is_log_append_time
    assert record.timestamp_ms == metadata.timestamp_ms


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_kind_of_acknowledgement_delivers(
    node: NodeProcess, topic: str, acks: int | str
) -> None:
    async with Producer(node.address, acks=acks) as producer:
        deliveries = [await producer.send(topic, b"%d" % n) for n in range(500)]
        metadata = [await delivery for delivery in deliveries]
    expected = [-1] * 500 if acks == 0 else list(range(500))
    assert [m.offset for m in metadata] == expected
    for _ in range(50):  # Without acknowledgements the last may still be under way.
        got = await read_all(node.address, topic)
        if len(got) == 500:
            break
        await asyncio.sleep(0.1)
    assert [record.value for record in got] == [b"%d" % n for n in range(500)]


async def test_partitioners_and_partitions_named_by_hand(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    last = lambda topic, key, value, count: count - 1  # noqa: E731
    async with Producer(node.address, partitioner=last) as producer:
        assert (await producer.send_and_wait(topic, b"v")).partition == 3
        assert (await producer.send_and_wait(topic, b"v", partition=1)).partition == 1
        with pytest.raises(InvalidRequest, match="from 0 on, not -1"):
            await producer.send(topic, b"v", partition=-1)
        assert await producer.partitions_for(topic) == 4
    async with Producer(node.address, partitioner="round-robin") as producer:
        sent = [await producer.send(topic, b"v") for _ in range(40)]
        counts = Counter([(await delivery).partition for delivery in sent])
    assert counts == {0: 10, 1: 10, 2: 10, 3: 10}


async def test_a_partition_that_was_just_added_can_be_written_at_once(
    node: NodeProcess, topic: str
) -> None:
    async with Producer(node.address) as producer, Admin(node.address) as admin:
        assert (await producer.send_and_wait(topic, b"old", partition=0)).offset == 0
        await admin.create_partitions({topic: 3})
        sent = await producer.send_and_wait(topic, b"new", partition=2)
        assert (sent.partition, sent.offset) == (2, 0)
        assert await producer.partitions_for(topic) == 3
    got = await read_all(node.address, topic, 3)
    assert [(r.partition, r.value) for r in got] == [(0, b"old"), (2, b"new")]


async def test_a_partition_is_waited_for_until_it_is_added(node: NodeProcess, topic: str) -> None:
    async with Producer(node.address) as producer, Admin(node.address) as admin:
        waiting = asyncio.create_task(producer.send_and_wait(topic, b"v", partition=1))
        await producer.send_and_wait(topic, b"others do not wait", partition=0)
        assert not waiting.done()
        await admin.create_partitions({topic: 2})
        assert (await waiting).partition == 1


async def test_a_partition_that_does_not_come_is_refused_in_time(
    node: NodeProcess, topic: str
) -> None:
    async with Producer(node.address, max_block_ms=300) as producer:
        with pytest.raises(PartitionNotKnown, match=f"{topic}.* did not get 4 within") as caught:
            await producer.send(topic, b"v", partition=4)
        error = caught.value
        assert (error.topic, error.partition, error.partition_count) == (topic, 4, 1)
    assert await read_all(node.address, topic) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"value": "text"}, "value is str"),
        ({"value": b"v", "key": 5}, "key is int"),
        ({"value": bytearray(b"v")}, "value is bytearray"),
        ({"value": b"v", "headers": [("k", "v")]}, "str and str"),
        ({"value": b"v", "headers": [(b"k", b"v")]}, "bytes and bytes"),
        ({"value": b"v", "headers": [("k", b"v", 1)]}, "too many values"),
        ({"value": b"v", "headers": 5}, "not iterable"),
        ({"value": b"v", "timestamp_ms": -1}, "timestamp_ms"),
        ({"value": b"v", "timestamp_ms": 2**63}, "timestamp_ms"),
        ({"value": b"v", "timestamp_ms": time.time() * 1000}, "timestamp_ms must be an int"),
    ],
)
async def test_arguments_that_cannot_be_are_refused(
    node: NodeProcess, topic: str, arguments: dict[str, object], said: str
) -> None:
    """They refuse their own record, and leave those beside it and behind it alone."""
    async with Producer(node.address) as producer:
        before = await producer.send(topic, b"before")
        with pytest.raises(InvalidRequest, match=said):
            await producer.send(topic, **arguments)  # type: ignore[arg-type]
        behind = await producer.send(topic, b"behind")
        assert [(await one).offset for one in (before, behind)] == [0, 1]
    assert [one.value for one in await read_all(node.address, topic)] == [b"before", b"behind"]


async def test_a_topic_that_is_no_text_is_refused(node: NodeProcess, topic: str) -> None:
    async with Producer(node.address) as producer:
        with pytest.raises(InvalidRequest, match="a topic must be a str, is bytes"):
            await producer.send(topic.encode(), b"v")  # type: ignore[arg-type]
        await producer.send_and_wait(topic, b"v")


async def test_a_list_of_headers_may_be_changed_once_it_is_sent(
    node: NodeProcess, topic: str
) -> None:
    headers: list[tuple[str, bytes]] = []
    async with Producer(node.address, linger_ms=60_000) as producer:
        for number in range(3):
            await producer.send(topic, b"v", headers=headers)
            headers.append((f"h{number}", b"%d" % number))
        headers.append(("none", 5))  # type: ignore[arg-type]
        await producer.flush()
    expected = (("h0", b"0"), ("h1", b"1"))
    found = [one.headers for one in await read_all(node.address, topic)]
    assert found == [expected[:count] for count in range(3)]


async def test_a_topic_that_does_not_exist_is_said_so(node: NodeProcess) -> None:
    async with Producer(node.address, max_block_ms=300) as producer:
        with pytest.raises(InvalidTopic):
            await producer.send("no/topic", b"v")


async def test_without_auto_creation_an_unknown_topic_is_waited_for_and_then_refused(
    tmp_path: Path,
) -> None:
    with NodeProcess(tmp_path / "node", config={"auto.create.topics.enable": "false"}) as node:
        async with Producer(node.address, max_block_ms=500) as producer:
            with pytest.raises(UnknownTopicOrPartition, match="'absent'"):
                await producer.send("absent", b"v")


async def test_a_record_larger_than_a_request_is_refused(node: NodeProcess, topic: str) -> None:
    async with Producer(node.address, request_size_bytes_max=1000) as producer:
        with pytest.raises(MessageTooLarge, match="request_size_bytes_max"):
            await producer.send(topic, b"v" * 1000)
        await producer.send_and_wait(topic, b"v" * 800)


async def test_batches_larger_than_the_topic_allows_are_split(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(max_message_bytes="2000")
    async with Producer(node.address, linger_ms=50) as producer:
        deliveries = [await producer.send(topic, b"%04d" % n + b"x" * 496) for n in range(40)]
        called: list[Delivery] = []
        deliveries[7].add_done_callback(called.append)
        too_large = await producer.send(topic, b"y" * 5000)
        after = await producer.send(topic, b"after")
        offsets = [(await delivery).offset for delivery in deliveries]
        with pytest.raises(MessageTooLarge):
            await too_large
        assert (await after).offset == 40
        assert called == [deliveries[7]]
    assert offsets == list(range(40))
    got = await read_all(node.address, topic)
    assert [r.value[:4] for r in got if r.value] == [b"%04d" % n for n in range(40)] + [b"afte"]


async def test_a_refused_record_fails_alone_and_the_partition_goes_on(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """The refused batch leaves a gap in the sequences, which must not stop what follows."""
    topic = new_topic(
        message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="99999999999999"
    )
    async with Producer(node.address, linger_ms=0) as producer:
        await producer.send_and_wait(topic, b"first")
        future_ms = time.time_ns() // 1_000_000 + 3_600_000
        refused = await producer.send(topic, b"late", timestamp_ms=future_ms)
        await asyncio.sleep(0.05)
        rest = [await producer.send(topic, b"%d" % n) for n in range(100)]
        with pytest.raises(InvalidTimestamp):
            await refused
        assert isinstance(refused.exception(), InvalidTimestamp)
        for delivery in rest:
            await delivery
    got = await read_all(node.address, topic)
    assert [r.value for r in got] == [b"first"] + [b"%d" % n for n in range(100)]


async def test_flush_waits_for_what_was_sent_without_lingering(
    node: NodeProcess, topic: str
) -> None:
    async with Producer(node.address, linger_ms=120_000, delivery_timeout_ms=300_000) as producer:
        deliveries = [await producer.send(topic, b"v") for _ in range(10)]
        started = time.monotonic()
        assert not any(delivery.done() for delivery in deliveries)
        await producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        assert time.monotonic() - started < 60


async def test_close_delivers_what_is_buffered_and_then_takes_nothing(
    node: NodeProcess, topic: str
) -> None:
    producer = Producer(node.address, linger_ms=20_000)
    delivery = await producer.send(topic, b"v")  # Starts by itself.
    await producer.close()
    await producer.close()
    assert delivery.result().offset == 0
    with pytest.raises(ClientClosed):
        await producer.send(topic, b"v")


async def test_nothing_is_taken_while_the_producer_closes(node: NodeProcess, topic: str) -> None:
    """It might be neither sent nor failed: its delivery would have no outcome."""
    producer = Producer(node.address)
    await producer.send_and_wait(topic, b"first")
    before = await producer.send(topic, b"before")
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    with pytest.raises(ClientClosed):
        await producer.send(topic, b"late")
    await closing
    assert before.result().offset == 1


async def test_no_node_at_the_address_is_said_so() -> None:
    producer = Producer("127.0.0.1:1", request_timeout_ms=300, delivery_timeout_ms=1000)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        await producer.start()
    await producer.close()


async def test_a_full_buffer_makes_senders_wait_and_then_refuses(
    own_node: NodeProcess,
) -> None:
    topic = make_topic(own_node, "full")
    async with Producer(
        own_node.address,
        buffer_memory_bytes=20_000,
        batch_size_bytes=4_000,
        max_block_ms=1_000,
        request_timeout_ms=500,
        delivery_timeout_ms=60_000,
    ) as producer:
        await producer.send_and_wait(topic, b"first")
        own_node.kill()
        sent: list[Delivery] = []
        started = time.monotonic()

        async def send_until_refused() -> None:
            while True:
                sent.append(await producer.send(topic, b"v" * 900))

        with pytest.raises(BufferExhausted, match="of 20000 are taken"):
            await send_until_refused()
        assert time.monotonic() - started >= 1.0
        assert 15 <= len(sent) <= 22
        own_node.start()
        await sent[0]  # How long the producer takes to find the node again is not the question.
        # Room comes back as batches are acknowledged, first come first served.
        values = [b"%900d" % n for n in range(50)]
        waiting = [asyncio.create_task(producer.send(topic, value)) for value in values]
        await producer.flush()
        for delivery in [*sent, *[await task for task in waiting]]:
            await delivery
        assert producer._accumulator.used_size_bytes == 0
    got = await read_all(own_node.address, topic)
    assert [r.value for r in got[-50:]] == values


async def test_deliveries_fail_when_their_time_is_up(own_node: NodeProcess) -> None:
    topic = make_topic(own_node, "expiring")
    async with Producer(
        own_node.address, request_timeout_ms=300, delivery_timeout_ms=600, linger_ms=0
    ) as producer:
        await send_until_written(producer, topic, b"v")
        own_node.kill()
        started = time.monotonic()
        with pytest.raises(DeliveryTimedOut) as caught:
            await producer.send_and_wait(topic, b"lost")
        assert 0.5 < time.monotonic() - started < 60
        assert caught.value.code.name == "request_timed_out"
        own_node.start()
        await send_until_written(producer, topic, b"after")
    got = [record.value for record in await read_all(own_node.address, topic)]
    assert set(got) <= {b"v", b"lost", b"after"}
    assert (got[0], got[-1]) == (b"v", b"after")


async def send_until_written(producer: Producer, topic: str, value: bytes) -> None:
    """A busy node may not write it in the short time that the producer has."""
    while True:
        try:
            await producer.send_and_wait(topic, value)
        except TidelogError:
            continue
        return


@pytest.mark.parametrize("share_lost", [0.3, 0.1])
async def test_lost_answers_neither_lose_nor_repeat_nor_reorder_records(
    own_node: NodeProcess, share_lost: float
) -> None:
    """Now and then the connection breaks after the node has written the batch."""
    async with FlakyProxy(own_node.port) as proxy:
        own_node.stop()
        own_node.arguments = ("--advertised-port", str(proxy.port))
        own_node.start()
        topic = make_topic(own_node, "flaky", 3)
        seed = random.randrange(1 << 30)
        print("seed", seed)
        chance = random.Random(seed)
        # Some are lost for sure, whatever the seed and the size of the batches.
        proxy.loses_answer = lambda *_: proxy.lost_count < 6 or chance.random() < share_lost
        async with Producer(
            f"127.0.0.1:{proxy.port}",
            delivery_timeout_ms=60_000,
            batch_size_bytes=2_000,
            linger_ms=1,
            retry_backoff_ms=10,
            retry_backoff_max_ms=50,
            reconnect_backoff_ms=5,
            reconnect_backoff_max_ms=20,
        ) as producer:
            deliveries = []
            for n in range(1_500):
                deliveries.append(await producer.send(topic, b"%d" % n, partition=n % 3))
                if n % 10 == 0:
                    await asyncio.sleep(0.002)
            await producer.flush()
            proxy.loses_answer = lambda *_: False
            for delivery in deliveries:
                await delivery
        assert proxy.lost_count > 5
        got = await read_all(f"127.0.0.1:{proxy.port}", topic, 3)
    for partition in range(3):
        values = [int(r.value or b"") for r in got if r.partition == partition]
        assert values == list(range(partition, 1_500, 3))
    # What the deliveries said is where the records are.
    where = {(r.partition, r.offset): r.value for r in got}
    for n, delivery in enumerate(deliveries):
        metadata = delivery.result()
        if metadata.offset >= 0:
            assert where[metadata.partition, metadata.offset] == b"%d" % n


async def test_a_node_killed_again_and_again_costs_nothing(own_node: NodeProcess) -> None:
    """kill -9 in the middle of producing: nothing acknowledged is lost, nothing written twice."""
    topic = make_topic(own_node, "killed", 2)
    async with Producer(
        own_node.address,
        batch_size_bytes=4_000,
        linger_ms=2,
        compression="lz4",
        retry_backoff_ms=20,
        retry_backoff_max_ms=100,
    ) as producer:
        stop = asyncio.Event()
        deliveries: list[Delivery] = []

        async def produce() -> None:
            while not stop.is_set():
                n = len(deliveries)
                deliveries.append(await producer.send(topic, b"%d" % n, partition=n % 2))
                if n % 50 == 0:
                    await asyncio.sleep(0.003)

        producing = asyncio.create_task(produce())
        for _ in range(3):
            await asyncio.sleep(0.7)
            await asyncio.to_thread(own_node.kill)
            await asyncio.sleep(0.1)
            await asyncio.to_thread(own_node.start)
        await asyncio.sleep(0.3)
        stop.set()
        await producing
        await producer.flush()
        for delivery in deliveries:
            await delivery
    assert len(deliveries) > 1_000
    got = await read_all(own_node.address, topic, 2)
    for partition in range(2):
        values = [int(r.value or b"") for r in got if r.partition == partition]
        assert values == list(range(partition, len(deliveries), 2))


async def test_a_topic_that_grows_gets_records_in_its_new_partitions(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    async with Producer(
        node.address, partitioner="round-robin", metadata_max_age_ms=200
    ) as producer:
        await producer.send_and_wait(topic, b"v")
        from tidelog import Admin

        async with Admin(node.address) as admin:
            await admin.create_partitions({topic: 3})
        deadline = time.monotonic() + 60
        while await producer.partitions_for(topic) < 3:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        partitions = {(await producer.send_and_wait(topic, b"v")).partition for _ in range(6)}
        assert partitions == {0, 1, 2}
