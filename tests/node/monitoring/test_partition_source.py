"""What the metrics of the cluster say of partitions that nobody leads yet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from uuid import NAMESPACE_OID, UUID, uuid5

from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import AckedBy, Partition, Topic
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.membership.registration import ensure_cluster, register_broker
from tidelog_node.monitoring.partition_source import PartitionSource
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.replicas.replica_manager import ReplicaManager

from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

TOPIC_ID = uuid5(NAMESPACE_OID, "t")


async def test_a_diskless_partition_without_its_first_leader_is_unavailable(
    tmp_path: Path,
) -> None:
    """Clients are told of no leader, whichever node the item names."""
    store = MemoryMetadataStore(latency=0)
    await ensure_cluster(store)
    await register_broker(
        store,
        broker_id=1,
        incarnation=UUID(int=1),
        endpoints=plaintext_endpoints("127.0.0.1", 1),
        rack=None,
    )
    new = Partition(
        topic_id=TOPIC_ID,
        partition=0,
        replicas=(1,),
        leader=1,
        leader_epoch=0,
        isr=(1,),
        acked_by=AckedBy.CHAIN,
    )
    topic = Topic(name="t", topic_id=TOPIC_ID, partition_count=1, configs={})
    view = ClusterView(store)
    directories = LogDirectories(tmp_path / "data")
    node = node_context(store, view)
    source = PartitionSource(node, ReplicaManager(node, directories=directories))
    chains = (EpochChain(1, ChainName(1, UUID(int=2)), 0),)
    try:
        await store.commit([records.put(topic), records.put(new)])
        assert await unavailable(view, source) == 1
        stored = view.image.partitions("t")[0]
        entered = dataclasses.replace(stored, leader_epoch=1, wal=chains)
        await store.commit([records.put(entered)])
        assert await unavailable(view, source) == 0
    finally:
        directories.close()


async def unavailable(view: ClusterView, source: PartitionSource) -> object:
    await view.refresh()
    scrape = Scrape()
    await source.collect(scrape)
    ((_, value),) = scrape.series["tidelog_cluster_unavailable_partitions"]
    return value
