"""What tests of the sink share: topics on a node, and what readers of committed data see."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from tidelog import Admin, Consumer, ConsumerRecord

from tests.support.waiting import SECONDS_MAX

_numbers = itertools.count(1)


def make_topic(address: str, partition_count: int = 3, **configs: str) -> str:
    """Create a topic of a name that no other test uses."""
    name = f"sink-{next(_numbers)}"
    with Admin(address).sync() as admin:
        admin.create_topic(name, partition_count=partition_count, configs=configs)
    return name


def committed(address: str, topic: str) -> list[ConsumerRecord]:
    """Return the committed records of the topic, once no transaction is open in it."""
    return asyncio.run(_committed(address, topic))


def values(address: str, topic: str) -> list[int]:
    """Return the committed values, which are numbers, sorted."""
    return sorted(int(record.value or b"-1") for record in committed(address, topic))


async def _committed(address: str, topic: str) -> list[ConsumerRecord]:
    options: dict[str, Any] = {"fetch_max_wait_ms": 100}
    records: list[ConsumerRecord] = []
    async with (
        Admin(address) as admin,
        Consumer(address, isolation_level="read_committed", **options) as consumer,
        Consumer(address) as everything,
        asyncio.timeout(SECONDS_MAX),
    ):
        count = (await admin.describe_topics([topic]))[topic].partitions
        partitions = [(topic, number) for number in range(len(count))]
        while True:
            ends = await everything.end_offsets(partitions)
            if await consumer.end_offsets(partitions) == ends:
                break
            await asyncio.sleep(0.02)  # An end returns before the markers are written.
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any([await consumer.position(p) < end for p, end in ends.items()]):
            records += await consumer.poll(timeout_ms=500, max_records=100_000)
    return records


def open_transactions(address: str) -> list[str]:
    """Return the transactional ids that have a transaction open."""
    with Admin(address).sync() as admin:
        return [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]
