"""Has this node's part of the leads of diskless partitions spread over the brokers that can lead.

``diskless_balance`` computes the moves of all nodes; this says when, and asks for those of the
partitions that this node leads. A partition that is being recovered stays until it is led:

- The next node would begin the recovery again. On a slow machine brokers come and go more often
  than a recovery takes, and nobody would ever lead it.
- If its leader before has ended its epoch in the item, a further election takes that back. Its
  chain would be sealed, and all of its other partitions would wait for another one.

A partition also stays where it is if the broker that should get it has just given it back without
having led it (``ReturnedLeads``).

A node that cannot recover it, because it cannot store or its disk is full, gives it away for that
reason (``LedPartitions``).
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple
from uuid import UUID

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.lead_changes import change_followers
from tidelog_core.replication.placement.diskless_balance import DisklessMove, balancing_moves
from tidelog_core.replication.placement.diskless_followers import Racks
from tidelog_core.replication.placement.reassignment import (
    asked_leader,
    is_reassigning,
    start_reassignment,
    target_replicas,
    unasked,
)

from tidelog_node.membership.hand_overs import LeaderStates
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.returned_leads import ReturnedLeads

logger = logging.getLogger(__name__)

AWAY_MS_MAX = 60_000  # a process or a machine starts again in less
BALANCE_AFTER_MS = 5_000  # after a broker came or went, or leads were moved


class _Leads(NamedTuple):
    """The diskless partitions of an image, divided among the brokers that can lead."""

    image: ClusterImage
    able: frozenset[int]
    partitions: list[Partition]  # with their intended leaders
    asked: Set[tuple[UUID, int]]  # those whose leaders are asked to hand them over


class DisklessSpreading:
    """Decides which leads this node gives away. For one task."""

    def __init__(self, membership: Membership, replicas: LeaderStates) -> None:
        self._membership = membership
        self._replicas = replicas
        self._able: frozenset[int] = frozenset()  # the brokers that may lead diskless partitions
        self._from_ms = 0.0  # they are the same for long enough by then
        self._replica_racks = ReplicaRacks()
        self._known: _Leads | None = None
        self._lost_ms: dict[int, float] = {}  # when a broker was last seen to lead less than before
        self._returned = ReturnedLeads(membership.broker_id)
        # The last image and racks by which nothing had to be moved.
        self._settled: tuple[ClusterImage, Racks] | None = None

    def decide(self, image: ClusterImage, now_ms: float) -> list[PartitionChange]:
        """Return this node's part of the moves that balance the leads.

        None before the same brokers have been able to lead for a while, nor while nothing has
        changed since nothing had to be moved.
        """
        able = self._note_able(image, now_ms)
        self._returned.note(image, able, now_ms)
        leads = self._leads(image, able, now_ms)
        racks = self._replica_racks.note(image.brokers, able, now_ms)
        if now_ms < self._from_ms or self._is_settled(image, racks):
            return []
        self._settled = image, racks
        changes: list[PartitionChange] = []
        has_postponed = False
        for move in balancing_moves(leads.partitions, able, racks):
            partition = move.partition
            if not self._is_mine(partition, leads):
                continue
            if move.leader == self._membership.broker_id:
                changes.append(change_followers(partition, move.replicas))
            elif self._returned.is_by(move.leader, partition, now_ms):
                continue
            elif self._may_move(move, now_ms):
                # Where there are too few brokers, a replica stays on one that was taken out.
                known = image.brokers.keys() | partition.replicas
                change = start_reassignment(partition, move.replicas, broker_ids=known)
                changes += [] if change is None else [change]
            else:
                has_postponed = True
        if has_postponed:
            self._settled = None  # Look again, but not all the time: all moves are computed.
        if changes or has_postponed:
            self._from_ms = now_ms + self._rest_ms(able)
        if changes:
            logger.info("diskless partitions spread", extra={"count": len(changes)})
        return changes

    def _note_able(self, image: ClusterImage, now_ms: float) -> frozenset[int]:
        """Return the brokers that can lead. A change of them, or of this one, postpones moves."""
        peers, broker_id = self._membership.peers, self._membership.broker_id
        able = frozenset(
            b
            for b in self._membership.live_brokers(image)
            if b == broker_id or (peers.may_lead_diskless(b) and not peers.is_suspected(b))
        )
        can_this_node_lead = self._membership.is_disk_fit and self._membership.can_store
        if not can_this_node_lead or able != self._able:
            self._able, self._from_ms = able, now_ms + self._rest_ms(able)
            self._settled = None  # The same image needs other moves now.
        return able

    def _is_settled(self, image: ClusterImage, racks: Racks) -> bool:
        """Whether nothing has to be moved by this image and these racks."""
        settled = self._settled
        return settled is not None and settled[0] is image and settled[1] == racks

    def _is_mine(self, partition: Partition, leads: _Leads) -> bool:
        """Whether this node leads the partition, and was not asked to hand it over."""
        is_led = partition.leader == self._membership.broker_id
        is_led = is_led and self._membership.leads(partition)
        return is_led and (partition.topic_id, partition.partition) not in leads.asked

    def _may_move(self, move: DisklessMove, now_ms: float) -> bool:
        """Whether the partition is led, and the broker that is to get it seems to stay."""
        lost_ms = self._lost_ms.get(move.leader, -BALANCE_AFTER_MS)
        return now_ms >= lost_ms + BALANCE_AFTER_MS and self._replicas.has_leader_state(
            move.partition.topic_id, move.partition.partition
        )

    def _rest_ms(self, able: Iterable[int]) -> float:
        """Return how long nothing may change before leads are spread.

        Longer while brokers are late: moves cost an overloaded cluster more than they bring.
        """
        extra = (self._membership.peers.extra_ms(broker_id) for broker_id in able)
        return BALANCE_AFTER_MS + max(extra, default=0.0)

    def _leads(self, image: ClusterImage, able: frozenset[int], now_ms: float) -> _Leads:
        """Return the diskless partitions, and note which brokers lead less than before.

        A broker that loses leads may be about to leave, before its lease or its item shows it.
        """
        known = self._known
        if known is not None and known.image is image and known.able == able:
            return known
        leads = _leads_of(image, able)
        if known is not None:
            counts = Counter(partition.leader for partition in leads.partitions)
            counts_before = Counter(partition.leader for partition in known.partitions)
            for broker_id, count in counts_before.items():
                if counts[broker_id] < count:
                    self._lost_ms[broker_id] = now_ms
        self._known = leads
        return leads


class ReplicaRacks:
    """The racks of brokers that keep their replicas of diskless partitions, as one node sees them.

    A broker that is away for a moment keeps them: it has most of the records when it is back. One
    that stays away loses them to others of its zone. If a whole zone is away, its brokers keep
    them: no other one could serve it.
    """

    def __init__(self) -> None:
        self._away_since_ms: dict[int, float] = {}

    def note(self, brokers: Mapping[int, Broker], able: Collection[int], now_ms: float) -> Racks:
        """Return the racks; ``brokers`` are all that are registered, ``able`` may lead."""
        self._away_since_ms = {
            broker_id: self._away_since_ms.get(broker_id, now_ms)
            for broker_id in brokers
            if broker_id not in able
        }
        served = {brokers[broker_id].rack for broker_id in able if broker_id in brokers}
        return {
            broker_id: broker.rack
            for broker_id, broker in brokers.items()
            if broker_id in able
            or broker.rack not in served
            or now_ms < self._away_since_ms[broker_id] + AWAY_MS_MAX
        }


def _leads_of(image: ClusterImage, able: frozenset[int]) -> _Leads:
    """Return the diskless partitions as they will be once the requested moves are done."""
    partitions: list[Partition] = []
    asked: set[tuple[UUID, int]] = set()
    diskless = (
        partition
        for name in image.topics
        for partition in image.partitions(name)
        if partition.is_diskless
    )
    for partition in diskless:
        leader = asked_leader(partition)
        if leader != partition.leader and leader in able:
            asked.add((partition.topic_id, partition.partition))
            replicas = target_replicas(partition)
            partitions.append(dataclasses.replace(partition, leader=leader, replicas=replicas))
        else:
            partitions.append(unasked(partition) if is_reassigning(partition) else partition)
    return _Leads(image, able, partitions, asked)
