"""The writes that change who leads a partition, or who follows it."""

from __future__ import annotations

import dataclasses

from tidelog_core.metadata.epoch_chains import end_epoch
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Check
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.placement.heirs import replicas_with
from tidelog_core.replication.placement.reassignment import is_reassigning, target_replicas


def leave_isr(partition: Partition, broker_id: int) -> PartitionChange | None:
    """Return the write that removes a broker from the ISR, ``None`` if it is no member.

    For a broker that drains (it must have stopped fetching the partition), and for one
    that starts after its machine went down without a flush: it may lack records although it
    is in the ISR. The last member stays, as in Kafka: no other broker has the records.
    If the leader leaves, the partition has no leader, and its leader epoch grows by one.
    """
    if broker_id not in partition.isr or len(partition.isr) == 1:
        return None
    is_leader = partition.leader == broker_id
    return PartitionChange(
        dataclasses.replace(
            partition,
            isr=tuple(member for member in partition.isr if member != broker_id),
            leader=NO_LEADER if is_leader else partition.leader,
            leader_epoch=partition.leader_epoch + is_leader,
        ),
        ChangeReason.LEAVE_ISR,
    )


def hand_over(partition: Partition, successor: int, *, is_leaving: bool = False) -> PartitionChange:
    """Return the write that makes a member of the ISR leader.

    With ``is_leaving`` the old leader leaves the ISR too.
    """
    assert successor in partition.isr
    assert successor != partition.leader
    isr = partition.isr
    if is_leaving:
        isr = tuple(member for member in isr if member != partition.leader)
    return PartitionChange(
        dataclasses.replace(
            partition, leader=successor, leader_epoch=partition.leader_epoch + 1, isr=isr
        ),
        ChangeReason.HAND_OVER,
    )


def move_lead(
    partition: Partition,
    broker_id: int,
    reason: ChangeReason,
    checks: tuple[Check, ...] = (),
    *,
    replicas: tuple[int, ...] = (),
    end_offset: int | None = None,
) -> PartitionChange:
    """Return the write that elects the broker as the leader of a diskless partition.

    Its records are in chains and in the tier, so the broker need not have been a replica. The
    leader before, if it keeps a replica, is in sync again once it follows. ``replicas``, the broker
    first, replace those before. ``end_offset`` is the leader's own, if it has ended its epoch: its
    chain has every record below, and gets none above. Then the broker need not seal that chain.
    """
    if is_reassigning(partition):  # This write ends it.
        partition = dataclasses.replace(partition, replicas=target_replicas(partition))
    replicas = replicas or replicas_with(partition, broker_id)
    leader_epoch, wal = partition.leader_epoch + 1, partition.wal
    if end_offset is not None and wal and wal[-1].leader_epoch == partition.leader_epoch:
        wal = end_epoch(wal, end_offset, next_epoch=leader_epoch)
    after = dataclasses.replace(
        partition,
        leader=broker_id,
        leader_epoch=leader_epoch,
        wal=wal,
        replicas=replicas,
        isr=(
            broker_id,
            *(b for b in replicas[1:] if b in partition.isr and b != partition.leader),
        ),
        adding=(),
        removing=(),
    )
    return PartitionChange(after, reason, checks)


def change_followers(partition: Partition, replicas: tuple[int, ...]) -> PartitionChange:
    """Return the write that gives a diskless partition other followers. Its leader goes on."""
    in_sync = tuple(broker_id for broker_id in partition.isr if broker_id in replicas)
    after = dataclasses.replace(
        partition,
        replicas=replicas,
        isr=in_sync or (partition.leader,),
        adding=(),
        removing=(),
    )
    return PartitionChange(after, ChangeReason.FOLLOWERS_PLACED)
