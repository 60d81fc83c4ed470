"""What a producer can say of a record whose leader lost its leadership meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from tidelog import Producer
from tidelog.errors import DeliveryTimedOut

from tests.support.replicated_cluster import replicated_cluster, stopped

TOPIC = "t"


async def test_a_record_that_its_leader_appended_before_it_lost_the_partition_may_be_written(
    tmp_path: Path,
) -> None:
    """The leader waits for a replica that does nothing, which is then elected in its place."""
    with replicated_cluster(tmp_path) as cluster:
        cluster.create(TOPIC)
        preferred = cluster.node_leading(TOPIC)
        preferred.kill()
        acting = cluster.nodes[cluster.wait_leader(TOPIC, other_than=preferred.broker_id)]
        preferred.start()
        cluster.wait_isr(TOPIC, {1, 2, 3})
        admin = AdminClient({"bootstrap.servers": acting.address})

        def elect_preferred() -> None:
            partition = ConfluentPartition(TOPIC, 0)
            found = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(60)
            assert found[partition] is None

        async def main() -> None:
            async with Producer(
                acting.address, request_timeout_ms=1_000, delivery_timeout_ms=1_500
            ) as producer:
                await producer.send(TOPIC, b"before", partition=0)
                await producer.flush()
                with stopped(preferred):
                    delivery = await producer.send(TOPIC, b"waits for it", partition=0)
                    await asyncio.sleep(0.2)
                    await asyncio.to_thread(elect_preferred)
                    await delivery.wait()
                with pytest.raises(DeliveryTimedOut) as caught:
                    delivery.result()
                assert caught.value.may_be_written

        await main()
