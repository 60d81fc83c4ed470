"""Topics that are deleted and created again while consumers read them: the name is the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidelog import Admin, Consumer, Producer, TopicPartition

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async

WAITED_S = 60.0
OPTIONS: dict[str, dict[str, Any]] = {
    "by hand": {},
    "classic": {"heartbeat_interval_ms": 100},
    "consumer": {"group_protocol": "consumer"},
}


async def read(consumer: Consumer, count: int) -> list[bytes | None]:
    """Poll until there are so many records."""
    found: list[bytes | None] = []
    async with asyncio.timeout(WAITED_S):
        while len(found) < count:
            found += [record.value for record in await consumer.poll(timeout_ms=100)]
    return found


@pytest.mark.parametrize("kind", OPTIONS)
async def test_a_topic_that_replaces_another_is_read_from_its_beginning(
    node: NodeProcess, topic: str, name: str, kind: str
) -> None:
    """As many records of it were passed over as had been read of the other."""
    options = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 300, **OPTIONS[kind]}
    group = {} if kind == "by hand" else {"group_id": name}
    async with (
        Admin(node.address) as admin,
        Consumer(node.address, **options, **group) as consumer,
    ):
        if kind == "by hand":
            consumer.assign([(topic, 0)])
        else:
            consumer.subscribe([topic])
        for number in range(3):
            # A producer of its own: an open one would have the topic created.
            values = [b"%d" % number] * 5
            async with Producer(node.address) as producer:
                for value in values:
                    await producer.send(topic, value)
            assert await read(consumer, 5) == values
            await admin.delete_topics([topic])

            async def is_created() -> bool:
                await admin.create_topic(topic, partition_count=1)
                return True

            await eventually_async(is_created, "it is created again")


async def test_what_is_read_of_a_topic_that_replaces_another_is_committed(
    node: NodeProcess, topic: str, name: str
) -> None:
    """The offset was that of the last commit, which was another topic's."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 300}
    consumer = Consumer(node.address, group_id=name, **options)
    consumer.assign([(topic, 0)])
    async with Admin(node.address) as admin, consumer:
        for number in range(2):
            async with Producer(node.address) as producer:
                await producer.send_and_wait(topic, b"%d" % number)
            assert await read(consumer, 1) == [b"%d" % number]
            if number == 0:
                await consumer.commit()
                await admin.delete_topics([topic])
                await admin.create_topic(topic, partition_count=1)
    async with Consumer(node.address, group_id=name) as other:
        found = await other.committed([(topic, 0)])
        committed = found[TopicPartition(topic, 0)]
        assert committed is not None
        assert committed.offset == 1
