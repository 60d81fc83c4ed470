"""Elections that an administrator requests. Pure decisions.

Any broker may write them, because the store settles who leads. A member of the ISR has every
acknowledged record, and until it learns of its leadership it fetches what the old leader
acknowledges.
Source: ``ReplicationControlManager.electLeader`` of Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tidelog_core.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
)
from tidelog_core.metadata.records import Partition
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import hand_over
from tidelog_core.replication.leases.peer_leases import PeerLeases


def elect_preferred(partition: Partition, peers: PeerLeases) -> PartitionChange | None:
    """Return the write that makes the first replica leader.

    ``None`` of a diskless partition whose leader lives: it hands over to the first replica by
    itself (``LeaderState``), so that its chain goes on. Raises ``ElectionNotNeeded``,
    ``PreferredLeaderNotAvailable``.
    """
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise ElectionNotNeeded("Leader election not needed for topic partition.")
    if preferred not in partition.isr or not peers.is_live(preferred):
        raise PreferredLeaderNotAvailable("The preferred leader was not available.")
    if partition.is_diskless and peers.is_live(partition.leader):
        return None
    return hand_over(partition, preferred)


def elect_unclean(partition: Partition, peers: PeerLeases) -> PartitionChange:
    """Return the write that gives a leader to a partition without one.

    The first live member of the ISR. If there is none, the first live replica, which is then the
    only member: records that it lacks are lost. Raises ``ElectionNotNeeded``,
    ``EligibleLeadersNotAvailable``.
    """
    if partition.leader != NO_LEADER and not peers.is_dead(partition.leader):
        raise ElectionNotNeeded("Leader election not needed for topic partition.")
    live = [b for b in partition.replicas if peers.is_live(b)]
    in_sync = [b for b in live if b in partition.isr]
    if not live:
        raise EligibleLeadersNotAvailable("Eligible topic partition leaders are not available.")
    isr: Sequence[int] = in_sync or live[:1]
    must_stay_dead = {partition.leader, *partition.isr} - set(live) - {NO_LEADER}
    return PartitionChange(
        dataclasses.replace(
            partition, leader=isr[0], leader_epoch=partition.leader_epoch + 1, isr=tuple(isr)
        ),
        ChangeReason.TAKEOVER if in_sync else ChangeReason.UNCLEAN_TAKEOVER,
        tuple(peers.check(broker_id) for broker_id in sorted(must_stay_dead)),
    )
