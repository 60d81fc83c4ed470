"""Decides which brokers that have gone are taken out of the cluster. No I/O.

A broker's registration outlives its process, so that a broker that comes back finds its replicas.
Where brokers come and go with the load, registrations would pile up: tools would list them, and
each costs the others a look at its lease. So one that has been gone for long is removed, unless a
partition whose records are on brokers' disks names it: there it may have the only copy.

A diskless partition may name it: any live broker leads such a partition, and the replicas are
caches. So may a partition of the cluster's own topics, which carry leadership only; their leaders
then choose another replica.

The lease stays in the store. Its version must go on growing: other brokers know it, and take a
smaller one for an old reading.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.model import NO_LEADER, RESERVED_TOPICS


def removable_brokers(image: ClusterImage, broker_ids: Iterable[int]) -> list[int]:
    """Return those of the brokers that are registered, and that no partition needs."""
    candidates = {broker_id for broker_id in broker_ids if broker_id in image.brokers}
    if not candidates or image.unreadable:
        return []  # What cannot be read may name any of them.
    for name in image.topics:
        if name in RESERVED_TOPICS:
            continue
        for partition in image.partitions(name):
            if partition.is_diskless:
                continue
            candidates.difference_update(
                partition.replicas, partition.isr, partition.adding, (partition.leader,)
            )
            if not candidates:
                return []
    return sorted(candidates - {NO_LEADER})
