"""Transactions as an administrator sees them, and ends them."""

from __future__ import annotations

import asyncio
import time

import pytest
from tidelog import Admin, Consumer, Producer, ProducerDescription, TopicPartition
from tidelog.errors import (
    InvalidRegularExpression,
    InvalidTxnState,
    TidelogError,
    UnknownTopicOrPartition,
)

from tests.support.transactional import TransactionalBroker, on_every_broker


@pytest.fixture
def broker(transactional_broker: TransactionalBroker) -> TransactionalBroker:
    return transactional_broker


async def until_known(admin: Admin, name: str) -> None:
    """Wait for a new topic: Kafka's broker may learn of it after its controller has answered."""
    async with asyncio.timeout(60):
        while name not in {topic.name for topic in await admin.list_topics()}:  # noqa: ASYNC110 - nothing tells when it is
            await asyncio.sleep(0.02)


@on_every_broker
async def test_transactions_are_listed_and_described(
    broker: TransactionalBroker, name: str
) -> None:
    async with (
        Admin(broker.address, timeout_ms=10_000) as admin,
        Producer(broker.address, transactional_id=name, transaction_timeout_ms=7_000) as one,
    ):
        await admin.create_topic(name, partition_count=2)
        described = (await admin.describe_transactions([name]))[name]
        assert (described.state, described.start_time_ms) == ("Empty", None)
        before_ms = time.time_ns() // 1_000_000
        async with one.transaction():
            for partition in (1, 0):
                await one.send_and_wait(name, b"v", partition=partition)
            described = (await admin.describe_transactions([name]))[name]
            listed = {each.transactional_id: each for each in await admin.list_transactions()}
            assert listed[name].state == described.state == "Ongoing"
            assert listed[name].producer_id == described.producer_id
            assert described.timeout_ms == 7_000
            assert described.partitions == (TopicPartition(name, 0), TopicPartition(name, 1))
            assert described.start_time_ms is not None
            assert before_ms <= described.start_time_ms <= time.time_ns() // 1_000_000
            ids = [described.producer_id]
            for options, is_there in (
                ({"states": ["Ongoing"], "producer_ids": ids}, True),
                ({"states": ["Empty"], "producer_ids": ids}, False),
                ({"open_longer_than_ms": 600_000}, False),
                ({"id_pattern": f"{name[:-1]}."}, True),
                ({"id_pattern": name[:-1]}, False),
            ):
                found = await admin.list_transactions(**options)
                assert (name in {each.transactional_id for each in found}) == is_there
        with pytest.raises(InvalidRegularExpression):
            await admin.list_transactions(id_pattern="(")
        with pytest.raises(TidelogError, match="transactional id not found"):
            await admin.describe_transactions([f"no-{name}"])


async def test_producers_of_a_partition_are_described(
    broker: TransactionalBroker, name: str
) -> None:
    async with (
        Admin(broker.address, timeout_ms=10_000) as admin,
        Producer(broker.address) as plain,
        Producer(broker.address, transactional_id=name) as transactional,
    ):
        await admin.create_topic(name, partition_count=2)
        for _ in range(3):
            await plain.send_and_wait(name, b"v", partition=0)

        async def described() -> dict[int, ProducerDescription]:
            found = await admin.describe_producers([(name, 0), (name, 1)])
            assert found[TopicPartition(name, 1)] == []
            return {p.transaction_start_offset: p for p in found[TopicPartition(name, 0)]}

        (known,) = (await described()).values()
        assert (known.producer_epoch, known.last_sequence) == (0, 2)
        assert known.transaction_start_offset == known.coordinator_epoch == -1
        async with transactional.transaction():
            await transactional.send_and_wait(name, b"v", partition=0)
            assert set(await described()) == {-1, 3}
        with pytest.raises(UnknownTopicOrPartition):
            await admin.describe_producers([(name, 7)])


@on_every_broker
async def test_transaction_is_ended_by_a_marker_written_by_hand(
    broker: TransactionalBroker, name: str
) -> None:
    async with (
        Admin(broker.address, timeout_ms=10_000) as admin,
        Producer(broker.address, transactional_id=name) as producer,
        Consumer(broker.address, isolation_level="read_committed") as consumer,
    ):
        await admin.create_topic(name)
        await until_known(admin, name)
        partition = (name, 0)
        with pytest.raises(InvalidTxnState):
            await admin.abort_transaction(partition, start_offset=0)

        async def attempt() -> None:
            async with producer.transaction():
                await producer.send_and_wait(name, b"v", partition=0)
                assert await consumer.end_offsets([partition]) == {partition: 0}
                # The coordinator still has it: it does not hang.
                found = await admin.find_hanging_transactions([partition], silent_for_ms=0)
                assert found == []
                with pytest.raises(InvalidTxnState):
                    await admin.abort_transaction(partition, start_offset=1)
                await admin.abort_transaction(partition, start_offset=0)
                async with asyncio.timeout(60):
                    while await consumer.end_offsets([partition]) != {partition: 2}:  # noqa: ASYNC110 - nothing tells when it is
                        await asyncio.sleep(0.02)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await attempt()
        with pytest.raises(InvalidTxnState):
            await admin.abort_transaction(partition, start_offset=0)
