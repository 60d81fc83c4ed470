"""Batches encoded elsewhere, and transactions that another producer ends."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tidelog import Admin, Producer
from tidelog.errors import InvalidRequest, MessageTooLarge, PartitionNotKnown, TransactionAborted
from tidelog.producing.encoded import EncodedRecords
from tidelog.producing.prepared import PreparedTransaction
from tidelog_core.records.batch import HEADER_SIZE, CompressionType, Record, build_batch

from tests.sdk.committed_records import read_all
from tests.support.transactional import TransactionalBroker, on_every_broker


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def broker(transactional_broker: TransactionalBroker) -> TransactionalBroker:
    return transactional_broker


async def make_topic(broker: TransactionalBroker, name: str, **configs: str) -> str:
    async with Admin(broker.address) as admin:
        await admin.create_topic(f"{name}-t", partition_count=2, configs=configs)
    return f"{name}-t"


def encode(*values: bytes, codec: CompressionType = CompressionType.LZ4) -> EncodedRecords:
    records = [Record(0, 1000 + i, None, value) for i, value in enumerate(values)]
    body = build_batch(records, compression=codec)[HEADER_SIZE:]
    return EncodedRecords(body, codec, len(values), 1000, 1000 + len(values) - 1)


async def committed(broker: TransactionalBroker, topic: str) -> list[list[bytes | None]]:
    """Return the values of each partition, once none has an open transaction."""
    found: list[list[bytes | None]] = [[], []]
    for record in await read_all(broker, topic):
        found[record.partition].append(record.value)
    return found


async def prepare(
    broker: TransactionalBroker, transactional_id: str, topic: str, *values: bytes
) -> PreparedTransaction:
    async with (
        Producer(broker.address, transactional_id=transactional_id) as producer,
        producer.transaction() as transaction,
    ):
        for number, value in enumerate(values):
            await producer.send_encoded((topic, number % 2), encode(value))
        prepared = await transaction.prepare()
    assert prepared is not None
    handed_over: PreparedTransaction = pickle.loads(pickle.dumps(prepared))
    return handed_over


@in_a_loop
async def test_encoded_batches_arrive_in_order_among_records(broker, name):
    topic = await make_topic(broker, name)
    async with Producer(broker.address, linger_ms=1000) as producer:
        await producer.send(topic, b"1", partition=0)
        delivery = await producer.send_encoded((topic, 0), encode(b"2", b"3"))
        for codec in CompressionType:
            await producer.send_encoded((topic, 0), encode(b"%d" % codec, codec=codec))
        await producer.send(topic, b"last", partition=0)
        await producer.flush()
        assert (await delivery).offset == 1
    assert (await committed(broker, topic))[0] == [
        b"1", b"2", b"3", b"0", b"1", b"2", b"3", b"4", b"last",
    ]  # fmt: skip


@in_a_loop
async def test_encoded_batches_that_cannot_be_are_refused(broker, name):
    topic = await make_topic(broker, name, **{"max.message.bytes": "1000"})
    large = encode(bytes(5000), codec=CompressionType.NONE)
    async with Producer(broker.address, request_size_bytes_max=4000, max_block_ms=200) as producer:
        with pytest.raises(MessageTooLarge):
            await producer.send_encoded((topic, 0), large)
        with pytest.raises(PartitionNotKnown):
            await producer.send_encoded((topic, 7), encode(b"v"))
    async with Producer(broker.address) as producer:
        with pytest.raises(MessageTooLarge):
            await (await producer.send_encoded((topic, 0), large))
    async with Producer(broker.address, transactional_id=name) as producer:
        with pytest.raises(InvalidRequest):
            await producer.send_encoded((topic, 0), encode(b"v"))


@on_every_broker
@in_a_loop
async def test_another_producer_commits_what_was_prepared_as_often_as_it_likes(broker, name):
    topic = await make_topic(broker, name)
    prepared = await prepare(broker, name, topic, b"a", b"b", b"c")
    for _ in range(2):
        async with Producer(broker.address) as other:
            await other.complete(prepared)
            await other.complete(prepared)
    assert await committed(broker, topic) == [[b"a", b"c"], [b"b"]]


@on_every_broker
@in_a_loop
async def test_a_prepared_transaction_is_aborted_and_then_cannot_be_committed(broker, name):
    topic = await make_topic(broker, name)
    async with Producer(broker.address) as other:
        first = await prepare(broker, name, topic, b"a")
        await other.complete(first, is_commit=False)
        await other.complete(first, is_commit=False)
        with pytest.raises(TransactionAborted):
            await other.complete(first)
        second = await prepare(broker, name, topic, b"b")
        third = await prepare(broker, name, topic, b"c")  # It fences the second off.
        with pytest.raises(TransactionAborted):
            await other.complete(second)
        await other.complete(second, is_commit=False)
        await other.complete(third)
    assert await committed(broker, topic) == [[b"c"], []]


@in_a_loop
async def test_nothing_is_prepared_where_nothing_was_written(broker, name):
    async with (
        Producer(broker.address, transactional_id=name) as producer,
        producer.transaction() as transaction,
    ):
        assert await transaction.prepare() is None


@in_a_loop
async def test_a_producer_that_has_prepared_begins_no_other_transaction(broker, name):
    topic = await make_topic(broker, name)
    async with Producer(broker.address, transactional_id=name) as producer:
        async with producer.transaction() as transaction:
            await producer.send(topic, b"v", partition=0)
            prepared = await transaction.prepare()
        with pytest.raises(InvalidRequest, match="has prepared its transaction"):
            async with producer.transaction():
                pytest.fail("a transaction has begun")
        assert prepared is not None
        await producer.complete(prepared)
    assert await committed(broker, topic) == [[b"v"], []]


@on_every_broker
@in_a_loop
async def test_a_producer_can_see_that_another_one_has_taken_its_place(broker, name):
    topic = await make_topic(broker, name)

    async def is_current(producer: Producer) -> bool:
        found = (await admin.describe_transactions([name]))[name]
        identity = producer.transactional_identity
        return (found.producer_id, found.producer_epoch) == (identity.producer_id, identity.epoch)

    async with (
        Admin(broker.address) as admin,
        Producer(broker.address, transactional_id=name) as producer,
    ):
        for value in (b"a", b"b"):
            async with producer.transaction():
                await producer.send(topic, value)
            assert await is_current(producer)
        async with Producer(broker.address, transactional_id=name) as other:
            assert not await is_current(producer)
            assert await is_current(other)
        async with Producer(broker.address) as plain:
            with pytest.raises(InvalidRequest, match="transactional ids"):
                assert plain.transactional_identity
