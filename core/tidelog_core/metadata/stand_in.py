"""The stand-in in the cluster's image for a partition whose item is unreadable.

The item may hold anything by now, such as another leader or other replicas. So the stand-in has
no leader and no ISR, and every conditional write that expects its version conflicts. Replicas,
leader epoch and log start are those of the last readable record, so nodes keep their logs. If no
record was ever readable, the stand-in has no replicas, and nodes with files of the partition
leave them alone.

An item that is damaged at an already known version needs no stand-in: its record is known, and
the next write repairs it.
"""

from __future__ import annotations

import dataclasses
from uuid import UUID

from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import UNREADABLE_VERSION
from tidelog_core.model import NO_LEADER


def stand_in(topic_id: UUID, partition: int, before: Partition | None) -> Partition:
    """Return the stand-in; ``before`` is the partition's last record or stand-in."""
    if before is None:
        return Partition(
            topic_id=topic_id,
            partition=partition,
            replicas=(),
            leader=NO_LEADER,
            leader_epoch=0,
            isr=(),
            version=UNREADABLE_VERSION,
        )
    return dataclasses.replace(
        before, leader=NO_LEADER, isr=(), adding=(), removing=(), version=UNREADABLE_VERSION
    )


def is_readable(partition: Partition) -> bool:
    """Whether this is the record of an item, not a stand-in."""
    return partition.version != UNREADABLE_VERSION
