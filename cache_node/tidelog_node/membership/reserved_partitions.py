"""Partitions that carry leadership only: they have no records to replicate.

Whoever leads a shard of ``__consumer_offsets`` finds its groups in the metadata store,
so every live replica is in sync. The leader keeps the item so: the ISR is the live
replicas, a reassignment ends as soon as its target lives, and a topic that was created
while there were too few brokers gets more replicas once there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.leases import PeerLeases
from tidelog_core.replication.reassignment import end_reassignment, is_reassigning

RESERVED_REPLICAS = 3  # Kafka's offsets.topic.replication.factor


def keep_reserved(
    partition: Partition,
    peers: PeerLeases,
    *,
    live: Set[int],
    load: Mapping[int, int],
) -> PartitionChange | None:
    """Return what the leader should write to a reserved partition's item, if anything.

    ``live`` are the brokers that can serve, ``load`` how many replicas each holds of the
    reserved topics.
    """
    replicas = partition.replicas
    if not is_reassigning(partition):
        replicas = _widened(partition, live=live, load=load)
    isr = tuple(b for b in replicas if b in live or b == partition.leader)
    after = dataclasses.replace(partition, replicas=replicas, isr=isr)
    ending = end_reassignment(after, peers)
    if ending is not None:
        return ending
    if after.replicas == partition.replicas and set(after.isr) == set(partition.isr):
        return None
    return PartitionChange(after, ChangeReason.ALTER_ISR)


def _widened(partition: Partition, *, live: Set[int], load: Mapping[int, int]) -> tuple[int, ...]:
    missing = min(RESERVED_REPLICAS, len(live)) - len(partition.replicas)
    if missing <= 0:
        return partition.replicas
    others = sorted(live - set(partition.replicas), key=lambda b: (load.get(b, 0), b))
    return (*partition.replicas, *others[:missing])
