"""A small cluster in real stores that count, for ``measure`` and its parts.

Ids are as long as real ones, and the same in every run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import Broker, Cluster, Partition, Topic

from bench.day.meter import MeteredObjects, MeteredStore, Usage
from bench.day.operations import Cost
from tests.support.clock import Clock

CLUSTER = "0123456789abcdefghij01"  # as long as Kafka's ids
TOPIC = "orders-by-customer-v2"
GROUP = "billing-aggregator"
NOW_MS = 1_760_000_000_000
DAY_MS = 86_400_000
DEAD, LEADER, THIRD = 101, 201, 301
BROKERS = (DEAD, LEADER, THIRD)
PEERS = 120  # number of leases in one reading
CHANGED_TOGETHER = 25  # partitions of the topic, all led by one broker
OFFSET_FIRST = 1_000_000_000
RECORDS_PER_SEGMENT = 1_000_000
GROUP_MEMBERS, MEMBER_PARTITIONS = 15, 4
SEGMENTS = 20


class MeasuredCluster:
    """One cluster, and the measured costs."""

    def __init__(self, store: MeteredStore, objects: MeteredObjects, folder: Path) -> None:
        self.store = store
        self.objects = objects
        self.folder = folder
        self.wall = Clock(NOW_MS)
        self.costs: dict[str, Cost] = {}
        self.topic = Topic(
            name=TOPIC,
            topic_id=UUID(int=7 << 96),
            partition_count=CHANGED_TOGETHER,
            configs={"segment.bytes": "1073741824"},
        )

    async def note(self, name: str, action: Callable[[], Awaitable[object]]) -> None:
        """Run the action and note its cost."""
        self.store.usage = self.objects.usage = Usage()
        await action()
        used = self.store.usage
        self.costs[name] = Cost(
            write_units=dict(used.write_units),
            read_units=dict(used.read_units),
            transactions=used.transactions,
            logged_commits=used.logged_commits,
            requests=dict(used.requests),
        )

    async def found(self) -> None:
        """Register the cluster, its brokers, and a topic that one of them leads."""
        brokers = [
            Broker(
                broker_id=b,
                incarnation=identity(b),
                endpoints=plaintext_endpoints(f"10.0.{b // 100}.17", 9092),
                rack="us-east-1a",
            )
            for b in BROKERS
        ]
        partitions = [
            Partition(
                topic_id=self.topic.topic_id,
                partition=number,
                replicas=BROKERS,
                leader=DEAD,
                leader_epoch=17,
                isr=BROKERS,
                log_start_offset=OFFSET_FIRST,
            )
            for number in range(self.topic.partition_count)
        ]
        found: list[records.Record] = [
            Cluster(cluster_id=CLUSTER),
            self.topic,
            *brokers,
            *partitions,
        ]
        await self.store.commit([records.put(record) for record in found])

    async def partition(self, number: int = 0) -> Partition:
        """Return the stored partition."""
        item = await self.store.get(records.partition_key(self.topic.topic_id, number))
        assert item is not None
        return Partition.from_item(item)


def identity(number: int) -> UUID:
    """Return an id that looks random and is the same in every run."""
    return UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835 + 0x2545F491) % (1 << 128))
