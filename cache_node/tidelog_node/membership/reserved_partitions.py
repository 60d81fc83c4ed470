"""Partitions that carry leadership only: they have no records to replicate.

The leader of a shard of ``__consumer_offsets`` reads its groups from the metadata store, so every
live replica is in sync. The leader keeps the item accordingly: the ISR is the live replicas, a
reassignment ends as soon as its target is alive, and a topic that was created with too few brokers
gets more replicas when there are more. A replica on a broker that was taken out of the cluster is
replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.reassignment import end_reassignment, is_reassigning

RESERVED_REPLICAS = 3  # Kafka's offsets.topic.replication.factor


def keep_reserved(
    partition: Partition,
    peers: PeerLeases,
    *,
    registered: Set[int],
    live: Set[int],
    load: Mapping[int, int],
) -> PartitionChange | None:
    """Return the change that the leader should write to a reserved partition, if any.

    ``registered`` are the brokers of the cluster, ``live`` those that can serve; ``load`` is the
    number of replicas of reserved topics on each broker.
    """
    replicas = partition.replicas
    if not is_reassigning(partition):
        kept = tuple(b for b in replicas if b in registered or b == partition.leader)
        replicas = _widened(kept, live=live, load=load)
    isr = tuple(b for b in replicas if b in live or b == partition.leader)
    after = dataclasses.replace(partition, replicas=replicas, isr=isr)
    ending = end_reassignment(after, peers)
    if ending is not None:
        return ending
    if after.replicas == partition.replicas and set(after.isr) == set(partition.isr):
        return None
    return PartitionChange(after, ChangeReason.ALTER_ISR)


def _widened(
    replicas: tuple[int, ...], *, live: Set[int], load: Mapping[int, int]
) -> tuple[int, ...]:
    missing = min(RESERVED_REPLICAS, len(live)) - len(replicas)
    if missing <= 0:
        return replicas
    others = sorted(live - set(replicas), key=lambda b: (load.get(b, 0), b))
    return (*replicas, *others[:missing])
