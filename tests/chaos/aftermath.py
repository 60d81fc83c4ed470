"""What is left when the clients have ended: whose replicas are back, what disks and tier hold."""

from __future__ import annotations

import asyncio
import time

from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import (
    Partition,
    SegmentMeta,
    SegmentState,
    segment_collection,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.tier.keys import segment_keys

from tests.chaos.chains import HOLDER, read_chains
from tests.chaos.checker import Anomaly, Kind
from tests.chaos.cluster import ChaosCluster
from tests.chaos.history import FinalLog, History
from tests.chaos.stored import (
    StoredLog,
    compare_copies,
    compare_stored,
    completed,
    find_resent,
    parse_log,
    read_local_log,
)


async def wait_in_sync(cluster: ChaosCluster, *, timeout_s: float) -> list[Anomaly]:
    """Return the partitions whose replicas do not all come back into the ISR."""
    deadline = time.monotonic() + timeout_s
    while True:
        image = await cluster.image()
        behind = [
            Anomaly(
                Kind.STALLED,
                f"{name}-{partition.partition}",
                f"in sync are {partition.isr} of {partition.replicas}",
            )
            for name in image.topics
            for partition in image.partitions(name)
            if set(partition.isr) != set(partition.replicas)
        ]
        if not behind or time.monotonic() > deadline:
            return behind
        await asyncio.sleep(0.3)


def holders(partition: Partition) -> tuple[int, ...]:
    """Return the brokers whose logs of a diskless partition are as its chains are.

    They have followed, or lead. One that is only asked to follow, or is only elected, may still
    have what it had long ago, which was never committed: it compares that with the chains first.
    """
    last = current_chain(partition.wal)
    has_entered = last is not None and (last.leader_epoch, last.chain.broker_id) == (
        partition.leader_epoch,
        partition.leader,
    )
    is_certain = has_entered or not partition.is_diskless
    return tuple(b for b in partition.isr if b != partition.leader or is_certain)


async def compare_disks(
    cluster: ChaosCluster, history: History, quiet: ClusterImage
) -> list[Anomaly]:
    """Compare replicas, tier and what was served, now that nobody writes any more.

    Of diskless partitions the chains count, and the copies are those of the ``holders`` in the
    image of before the nodes stopped: a node that stops hands over, and its successor may stop
    before it has anything.
    """
    await cluster.copy_objects()
    image = await cluster.image()
    chains: dict[PartitionName, StoredLog] = {}
    every = (one for topic in image.topics for one in image.partitions(topic))
    if any(partition.is_diskless for partition in every):
        chains = await asyncio.to_thread(read_chains, cluster.objects_dir, image.cluster_id)
    store = cluster.open_store()
    found: list[Anomaly] = []
    try:
        # What is not committed is not served to all, but stored the same everywhere.
        unserved = (
            FinalLog(log.topic, log.partition, 0, log.end_offset, ())
            for log in history.committed_logs
        )
        for final in (*history.finals, *unserved):
            partition = image.partition(TopicPartition(final.topic, final.partition))
            assert partition is not None
            node_ids = partition.replicas
            if partition.is_diskless:
                before = quiet.partition(TopicPartition(final.topic, final.partition))
                assert before is not None
                node_ids = holders(before)
            replicas = [
                read_local_log(
                    f"node {node_id}",
                    cluster.nodes[node_id].process.data_dir / f"{final.topic}-{final.partition}",
                )
                for node_id in node_ids
            ]
            tier = await _tier_of(cluster, store, image, final)
            if partition.is_diskless:
                name = PartitionName(partition.topic_id, partition.partition)
                committed = completed(
                    chains.get(name, StoredLog(HOLDER, ())),
                    tier,
                    log_start_offset=partition.log_start_offset,
                )
                found += compare_copies(final, committed, replicas)
                replicas = [committed]
            found += compare_stored(final, replicas, tier)
            for resent in find_resent(final, (*replicas, *tier)):
                history.add(resent)
    finally:
        await store.close()
    return found


async def _tier_of(
    cluster: ChaosCluster, store: MetadataStore, image: ClusterImage, final: FinalLog
) -> list[StoredLog]:
    topic = image.topics[final.topic]
    items = await store.list(segment_collection(topic.topic_id, final.partition))
    segments = [SegmentMeta.from_item(item) for item in items]
    logs = []
    for segment in segments:
        if segment.state is SegmentState.COPY_FINISHED:
            key = segment_keys(image.cluster_id, final.topic, segment).log
            path = cluster.objects_dir / key
            content = path.read_bytes() if path.exists() else b""
            log = parse_log(f"segment {path.name}", content)
            if len(content) != segment.size_bytes:
                problem = f"{len(content)} bytes, {segment.size_bytes} by its item"
                log = StoredLog(log.holder, log.batches, problem)
            logs.append(log)
    return logs
