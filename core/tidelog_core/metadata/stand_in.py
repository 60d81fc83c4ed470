"""What stands in the cluster's image for a partition whose item cannot be read.

The item may say anything by now: that another node leads, that the replicas are others. So
nobody leads and nobody is in sync by the stand-in, and its version loses every conditional
write. Replicas, leader epoch and log start are those of the last record that could be read:
nodes keep the logs that they hold. Where there never was one, there are no replicas either,
and whoever has files of the partition leaves them alone.

An item that is damaged at the version that was read before is no such case: what it said is
known, and the next write puts it right.
"""

from __future__ import annotations

import dataclasses
from uuid import UUID

from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import UNREADABLE_VERSION
from tidelog_core.model import NO_LEADER


def stand_in(topic_id: UUID, partition: int, before: Partition | None) -> Partition:
    """Return what stands for the partition; ``before`` is its last record or stand-in."""
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
    """Whether this is the record of an item, and not what stands for one."""
    return partition.version != UNREADABLE_VERSION
