"""Moves leaderships away from a broker. Pure decisions.

Any broker or function may write them (see ``elections``). The broker also becomes the last of the
replicas: as the preferred leader it would get the partition back. It stays a replica and in sync.
If a partition has no other live member of the ISR, or loses it later, this broker leads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tidelog_core.errors import EligibleLeadersNotAvailable
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import hand_over
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.heirs import heir_of
from tidelog_core.replication.placement.reassignment import (
    ask_to_lead,
    asked_leader,
    target_replicas,
)


def needs_drain(partition: Partition, broker_id: int) -> bool:
    """Whether the broker leads the partition, or would get it back as the preferred leader."""
    return broker_id in (partition.leader, *partition.replicas[:1])


def drain_leader(partition: Partition, broker_id: int, peers: PeerLeases) -> PartitionChange | None:
    """Return the write that makes another replica lead; ``None`` if nothing has to change.

    Raises ``EligibleLeadersNotAvailable`` if no other replica is in sync and alive.
    """
    if not needs_drain(partition, broker_id):
        return None
    target = target_replicas(partition)
    others = tuple(b for b in target if b != broker_id)
    if not others:
        raise EligibleLeadersNotAvailable("The partition has no other replica.")
    last = (broker_id,) if broker_id in target else ()
    drained = dataclasses.replace(partition, replicas=(*others, *last, *partition.removing))
    if partition.leader != broker_id:
        return PartitionChange(drained, ChangeReason.HAND_OVER)
    going = (b for b in partition.removing if b != broker_id)
    candidates = (b for b in (*others, *going) if b in partition.isr and peers.is_live(b))
    successor = next(candidates, None)
    if successor is None:
        raise EligibleLeadersNotAvailable("No other replica is in sync and alive.")
    return hand_over(drained, successor)


def drain_diskless(
    partition: Partition, broker_id: int, live: Iterable[int]
) -> PartitionChange | None:
    """Return the write that moves a diskless partition to another live leader, or ``None``.

    The leader is asked to hand over (``LeaderState``), so that its chain goes on. Raises
    ``EligibleLeadersNotAvailable`` if no other broker lives.
    """
    if not needs_drain(partition, broker_id):
        return None
    others = [b for b in live if b != broker_id]
    is_led = partition.leader in others
    heir = partition.leader if is_led else heir_of(partition, others)
    if heir is None:
        raise EligibleLeadersNotAvailable("No other broker is alive.")
    if partition.leader == broker_id and asked_leader(partition) in others:
        return None  # The leader was asked already.
    return ask_to_lead(partition, heir)
