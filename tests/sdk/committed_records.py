"""What consumers see of a topic's transactions, and the topics for it."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog import Admin, Consumer, ConsumerRecord

from tests.support.transactional import ProxiedBroker, TransactionalBroker

Broker = TransactionalBroker | ProxiedBroker


async def make_topic(broker: Broker, topic: str, **configs: str) -> str:
    await make_topics(broker, topic, **configs)
    return topic


async def make_topics(broker: Broker, *topics: str, **configs: str) -> tuple[str, ...]:
    async with Admin(broker.address) as admin:
        for topic in topics:
            await admin.create_topic(topic, partition_count=2, configs=configs)
    return topics


async def await_markers(broker: Broker, topic: str) -> None:
    """Return when no transaction is open: a commit returns before the markers are written."""
    partitions = [(topic, 0), (topic, 1)]
    async with (
        Consumer(broker.address, isolation_level="read_committed") as committed,
        Consumer(broker.address) as uncommitted,
        asyncio.timeout(60),
    ):
        while True:
            stable = await committed.end_offsets(partitions)
            if stable == await uncommitted.end_offsets(partitions):
                return
            await asyncio.sleep(0.02)


async def read_all(broker: Broker, topic: str, **options: Any) -> list[ConsumerRecord]:
    """Return every committed record of the topic, once no transaction is open."""
    await await_markers(broker, topic)
    return await read_to_end(broker, topic, **options)


async def read_to_end(
    broker: Broker, topic: str, *, is_committed: bool = True, **options: Any
) -> list[ConsumerRecord]:
    """Return every record of the topic up to the end that the isolation level gives."""
    level: Any = "read_committed" if is_committed else "read_uncommitted"
    records: list[ConsumerRecord] = []
    async with Consumer(
        broker.address, isolation_level=level, fetch_max_wait_ms=100, **options
    ) as consumer:
        partitions = [(topic, 0), (topic, 1)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any([await consumer.position(p) < end for p, end in ends.items()]):
            records += await consumer.poll(timeout_ms=500, max_records=100_000)
    return records


def values(records: list[ConsumerRecord]) -> list[str]:
    return sorted((record.value or b"").decode() for record in records)
