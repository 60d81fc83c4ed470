"""Operations on brokers: listing them, and draining one of its leaderships."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tidelog_core.admin.partitions.drain import drain_diskless, drain_leader, needs_drain
from tidelog_core.admin.partitions.partition_changes import change_partitions
from tidelog_core.errors import EligibleLeadersNotAvailable
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition
from tidelog_core.replication.change import PartitionChange

from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer

# About 23 transactions, which DynamoDB completes well within one request's time limit.
PARTITIONS_PER_DRAIN_MAX = 2_000


async def list_brokers(cluster: AdminCluster, _: Call) -> HttpAnswer:
    """Return every registered broker with its replicas and leaderships."""
    image = await cluster.view.refresh()
    await cluster.see_peers()
    partitions = [p for some in image.partitions_by_topic.values() for p in some]
    led = Counter(p.leader for p in partitions)
    held = Counter(broker_id for p in partitions for broker_id in p.replicas)
    live = cluster.live(image)
    return HttpAnswer(
        {
            "cluster_id": image.cluster_id,
            "brokers": [
                {
                    "broker_id": broker.broker_id,
                    "host": broker.endpoint.host,
                    "port": broker.endpoint.port,
                    "rack": broker.rack,
                    "is_live": broker.broker_id in live,
                    "leader_count": led[broker.broker_id],
                    "replica_count": held[broker.broker_id],
                }
                for broker in image.brokers.values()
            ],
        }
    )


async def drain_broker(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Move the broker's leaderships to other replicas, as many as one request allows."""
    broker_id = call.parameters["broker_id"]
    await cluster.require_broker(broker_id)
    await cluster.see_peers()
    image = cluster.view.image
    kept: dict[TopicPartition, str] = {}
    wanted: dict[TopicPartition, Callable[[Partition], PartitionChange | None]] = {}

    live = cluster.live(image)

    def decide(partition: Partition) -> PartitionChange | None:
        return drain_leader(partition, broker_id, cluster.peers)

    def decide_diskless(partition: Partition) -> PartitionChange | None:
        return drain_diskless(partition, broker_id, live)

    for topic in image.topics.values():
        for partition in image.partitions(topic.name):
            if not needs_drain(partition, broker_id):
                continue
            decide_one = decide_diskless if partition.is_diskless else decide
            name = TopicPartition(topic.name, partition.partition)
            try:
                decide_one(partition)
            except EligibleLeadersNotAvailable as error:
                kept[name] = str(error)
            else:
                wanted[name] = decide_one
    some = dict(list(wanted.items())[:PARTITIONS_PER_DRAIN_MAX])
    results = await change_partitions(cluster.store, cluster.view, some)
    kept |= {name: str(error) for name, error in results.items() if error is not None}
    return HttpAnswer(
        {
            "broker_id": broker_id,
            "moved_count": sum(error is None for error in results.values()),
            "kept": [
                {"topic": name.topic, "partition": name.partition, "detail": detail}
                for name, detail in sorted(kept.items())
            ],
            "is_complete": len(some) == len(wanted),
        }
    )
