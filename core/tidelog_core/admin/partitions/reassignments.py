"""Decides the change of a partition's item when an administrator reassigns it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from tidelog_core.admin.partitions.partition_changes import Decide
from tidelog_core.errors import InvalidReplicationFactor
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, check
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import change_followers, move_lead
from tidelog_core.replication.placement.placer import require_valid_replicas
from tidelog_core.replication.placement.reassignment import (
    cancel_reassignment,
    is_reassigning,
    start_reassignment,
    target_replicas,
)


def reassignment(target: Sequence[int] | None, *, view: ClusterView, may_resize: bool) -> Decide:
    """Return the decision that moves a partition to ``target``, or with ``None`` cancels its move.

    The decision raises ``InvalidReplicationFactor`` if the number of replicas would change and
    may not, and the errors of ``start_reassignment`` and ``cancel_reassignment``.
    """

    def decide(partition: Partition) -> PartitionChange | None:
        if target is None and partition.is_diskless and is_reassigning(partition):
            return _stay(partition)
        if target is None:
            leader = view.image.brokers.get(partition.leader)
            return cancel_reassignment(partition, () if leader is None else (check(leader),))
        if partition.is_diskless:
            return _move_diskless(partition, target, view.image.brokers.keys())
        before = len(target_replicas(partition))
        if not may_resize and len(target) != before:
            raise InvalidReplicationFactor(
                f"The replication factor is changed from {before} to {len(target)}"
            )
        return start_reassignment(partition, target, broker_ids=view.image.brokers.keys())

    return decide


def _move_diskless(
    partition: Partition, target: Sequence[int], broker_ids: Set[int]
) -> PartitionChange | None:
    """Return the write that makes the target's first broker the leader, now or after a hand-over.

    There are no records to copy. The leader is asked to hand over (``LeaderState``), so that its
    chain goes on.
    """
    require_valid_replicas(target, broker_ids)
    if partition.replicas == tuple(target):
        return None
    if partition.leader == target[0]:
        return change_followers(partition, tuple(target))
    if partition.leader != NO_LEADER:
        return start_reassignment(partition, target, broker_ids=broker_ids)
    moved = dataclasses.replace(partition, replicas=tuple(target))
    return move_lead(moved, target[0], ChangeReason.REASSIGNMENT_ENDED)


def _stay(partition: Partition) -> PartitionChange:
    """Return the write that withdraws the request to hand over. The leader's epoch goes on."""
    original = [b for b in partition.replicas if b not in partition.adding]
    original.sort(key=lambda broker_id: broker_id != partition.leader)  # stable: it comes first
    return change_followers(partition, tuple(original))
