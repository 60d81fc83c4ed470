"""Moves a partition to other replicas: decides changes of its item, writes nothing.

Theory of operation. ``start_reassignment`` adds the new replicas to the old ones
(``replicas`` is the target followed by the removed ones; ``adding`` and ``removing`` name
them). The new ones fetch like any follower and join the ISR when they have caught up. Once
every replica of the target is in the stored ISR, the leader writes the target set
(``end_reassignment``). If the leader itself is removed, the same write hands over. Between the
two writes only ordinary ISR changes happen. So a crash leaves a valid state that can continue,
and a target can be replaced or cancelled at any time: of two writers the second one conflicts
and reads again.

Every removal of a replica begins a new leader epoch, even if the leader stays. The removed
replica drops its log, and its earlier fetches must not count if it is added again: fetches of
the previous epoch are refused, and the leader starts with unknown positions.
Source: KIP-455, ``PartitionReassignmentReplicas``; ``PartitionChangeBuilder``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from dataclasses import dataclass

from tidelog_core.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.heirs import replicas_with
from tidelog_core.replication.placement.placer import require_valid_replicas


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A partition's entry in ``ListPartitionReassignments``."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def is_reassigning(partition: Partition) -> bool:
    """Whether a reassignment is under way."""
    return bool(partition.adding or partition.removing)


def ongoing_reassignment(partition: Partition) -> OngoingReassignment | None:
    """Return the reassignment that is under way, or ``None``."""
    if not is_reassigning(partition):
        return None
    return OngoingReassignment(partition.replicas, partition.adding, partition.removing)


def target_replicas(partition: Partition) -> tuple[int, ...]:
    """Return the partition's replicas after the reassignment."""
    return tuple(b for b in partition.replicas if b not in partition.removing)


def start_reassignment(
    partition: Partition, target: Sequence[int], *, broker_ids: Set[int]
) -> PartitionChange | None:
    """Return the write that starts moving to ``target``; ``None`` if nothing changes.

    A target that only reorders the replicas takes effect with this write. Raises
    ``InvalidReplicaAssignment``.
    """
    require_valid_replicas(target, broker_ids)
    current = partition.replicas
    removing = tuple(sorted(set(current) - set(target)))
    # A replica that an earlier target was adding is not one yet, and stays in «adding».
    adding = tuple(b for b in target if b not in current or b in partition.adding)
    after = dataclasses.replace(
        partition, replicas=(*target, *removing), adding=adding, removing=removing
    )
    if after == partition:
        return None
    return PartitionChange(after, ChangeReason.REASSIGNMENT_STARTED)


def ask_to_lead(partition: Partition, successor: int) -> PartitionChange | None:
    """Return the write that asks the leader of a diskless partition to hand over to the broker.

    ``None`` if it is asked already. The leader does so once the broker follows it.
    """
    settled = dataclasses.replace(partition, replicas=target_replicas(partition))
    target = replicas_with(settled, successor)
    return start_reassignment(partition, target, broker_ids={*partition.replicas, successor})


def asked_leader(partition: Partition) -> int:
    """Return the broker that leads a diskless partition once its leader has handed it over.

    It is the first of the replicas, which is the leader itself if nobody asks for anything.
    """
    return target_replicas(partition)[0]


def unasked(partition: Partition) -> Partition:
    """Return a diskless partition as if nobody had asked its leader to hand over.

    It has no more replicas than before. Writes that are decided of it take the request back.
    """
    added = set(partition.adding) - {partition.leader}
    replicas = tuple(b for b in partition.replicas if b not in added)
    return dataclasses.replace(partition, replicas=replicas, adding=(), removing=())


def cancel_reassignment(
    partition: Partition, leader_checks: tuple[Check, ...] = ()
) -> PartitionChange:
    """Return the write that removes the added replicas.

    If one of them already leads, it must hand back first: then the original replicas
    become the target of a reassignment in the other direction. ``leader_checks`` say that the
    leader has not registered again, as for ``end_reassignment``. Raises
    ``NoReassignmentInProgress``, or ``InvalidReplicaAssignment`` if no original replica
    is in sync (Kafka would need an unclean election there).
    """
    if not is_reassigning(partition):
        raise NoReassignmentInProgress("No partition reassignment is in progress.")
    original = tuple(b for b in partition.replicas if b not in partition.adding)
    isr = tuple(b for b in partition.isr if b in original)
    if not isr:
        raise InvalidReplicaAssignment(
            "Unable to revert partition assignment: no original replica is in sync."
        )
    checks: tuple[Check, ...] = ()
    if partition.leader in partition.adding:
        after = dataclasses.replace(
            partition, replicas=(*original, *partition.adding), adding=(), removing=partition.adding
        )
    else:
        checks = leader_checks if partition.adding else ()
        after = dataclasses.replace(
            partition,
            replicas=original,
            isr=isr,
            leader_epoch=partition.leader_epoch + bool(partition.adding),
            adding=(),
            removing=(),
        )
    return PartitionChange(after, ChangeReason.REASSIGNMENT_ENDED, checks)


def end_reassignment(
    partition: Partition, peers: PeerLeases | None = None, own_checks: tuple[Check, ...] = ()
) -> PartitionChange | None:
    """Return the write that makes the target the replica set.

    For the leader. If the leader is not in the target, the first live broker of the target
    leads. ``None`` until the whole target is in sync, and while no broker of it lives.
    ``own_checks`` say that the leader has not registered again. A write that begins an epoch with
    the same leader needs them: the broker's next process may have less of the log, and would lead.
    """
    if not is_reassigning(partition):
        return None
    target = target_replicas(partition)
    if not target or not set(target) <= set(partition.isr):
        return None
    leader = partition.leader
    if leader not in target:
        live = (b for b in target if peers is None or peers.is_live(b))
        leader = next(live, leader)
        if leader == partition.leader:
            return None
    return PartitionChange(
        dataclasses.replace(
            partition,
            replicas=target,
            isr=tuple(b for b in partition.isr if b in target),
            leader=leader,
            leader_epoch=partition.leader_epoch + bool(partition.removing),
            adding=(),
            removing=(),
        ),
        ChangeReason.REASSIGNMENT_ENDED,
        own_checks if leader == partition.leader and partition.removing else (),
    )
