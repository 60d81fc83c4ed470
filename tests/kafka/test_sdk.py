"""The SDK at both brokers; ``tests/sdk`` has more, at Kafka in the slow suite."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tidelog import Consumer, GroupMetadata, Producer, TopicPartition

from tests.kafka.compare import Pair
from tests.support.peer import Peer

TOPIC = "of-the-sdk"
SECONDS_MAX = 60.0


@pytest.mark.parametrize("name", ["kafka", "tidelog"])
async def test_transactions_are_committed_aborted_and_read(pair: Pair, name: str) -> None:
    peer: Peer = getattr(pair, name)
    await asyncio.to_thread(peer.create_topic, TOPIC)
    address = f"127.0.0.1:{peer.port}"
    async with asyncio.timeout(SECONDS_MAX):
        async with Producer(address, transactional_id="sdk", compression="zstd") as producer:
            async with producer.transaction():
                await producer.send(TOPIC, b"first", key=b"k")
            with suppress(ZeroDivisionError):
                async with producer.transaction():
                    await (await producer.send(TOPIC, b"aborted"))
                    1 / 0  # noqa: B018
            async with producer.transaction() as transaction:
                await producer.send(TOPIC, b"second")
                await transaction.send_offsets(
                    {TopicPartition(TOPIC, 0): 1}, GroupMetadata("sdk-group")
                )
        async with Consumer(
            address,
            topics=[TOPIC],
            group_id="sdk-readers",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            values: list[bytes | None] = []
            while len(values) < 2:
                values += [record.value for record in await consumer.poll(timeout_ms=1_000)]
    assert values == [b"first", b"second"]
