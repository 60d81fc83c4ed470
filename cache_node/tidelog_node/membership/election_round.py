"""One round of elections: which partitions get a leader, or lose dead followers.

``ElectionLoop`` says which topics a round visits, and writes what is decided here. At first
a node takes over only partitions without a leader and those that it led itself: the nodes of a
restarted cluster do not start at the same time, and the first would take over everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from tidelog_core.config import topic_config
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.records import Partition, Topic
from tidelog_core.metadata.store import COMMIT_WRITES_MAX
from tidelog_core.model import NO_LEADER, RESERVED_TOPICS
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.leases.election_coordinators import ElectionCoordinators
from tidelog_core.turns import Turn

from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext

TAKEOVERS_PER_ROUND_MAX = 20 * COMMIT_WRITES_MAX  # half a second of writes, then a new round
# Changes that only remove followers: newly lapsed leases do not wait for all of these.
ISR_SHRINKS_PER_ROUND_MAX = 20 * COMMIT_WRITES_MAX
PARTITIONS_PER_STEP = 50  # of one topic, before other tasks run


class ElectionRound:
    """Decides on the topics of a round, part by part. For one task."""

    def __init__(
        self,
        node: NodeContext,
        membership: Membership,
        coordinators: ElectionCoordinators,
        *,
        names: Set[str],
        waiting: set[str],
        coordinated: frozenset[int],
        grace_until_ms: float,
        turn: Turn,
    ) -> None:
        """``names`` are the topics to visit. ``waiting`` gets those that are to be visited later.

        ``coordinated`` are the dead brokers that this node writes for. Until ``grace_until_ms``
        nothing is taken over from others.
        """
        self.names = names
        self.turn = turn
        self.left: set[str] = set()  # topics that the limits leave to the next round
        self.is_store_away = False  # it has refused a part of the round: postpone the others
        self.takeovers_left = TAKEOVERS_PER_ROUND_MAX
        self.isr_shrinks_left = ISR_SHRINKS_PER_ROUND_MAX
        self._node = node
        self._membership = membership
        self._coordinators = coordinators
        self._waiting = waiting
        self._coordinated = coordinated
        self._grace_until_ms = grace_until_ms

    async def decide(self, names: Iterable[str]) -> list[PartitionChange]:
        """Return the changes of these topics, in the order in which to write them."""
        changes: list[PartitionChange] = []
        for name in names:
            if self.takeovers_left > 0:
                changes += await self._decide_topic(name)
            else:
                self.left.add(name)
            await self.turn.step()
        if self.takeovers_left <= 0:
            # Removing dead followers waits until every partition has a leader again.
            self._waiting |= topics_of(
                (c for c in changes if is_isr_shrink(c)), self._node.view.image
            )
            changes = [change for change in changes if not is_isr_shrink(change)]
        # Takeovers first, and those with the same dead leader together: a transaction checks its
        # lease once, in one version.
        changes.sort(key=_urgency)
        return changes

    async def _decide_topic(self, name: str) -> list[PartitionChange]:
        image = self._node.view.image
        topic, partitions = image.topic(name), image.partitions(name)
        was_waiting = name in self._waiting
        self._waiting.discard(name)
        changes: list[PartitionChange] = []
        if topic is None:
            return changes
        is_unclean_allowed: bool | None = None
        for number, partition in enumerate(partitions):
            if number % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                await self.turn.step()
            if self.takeovers_left <= 0:
                self._waiting.add(name)
                self.left.add(name)  # its other partitions
                break
            if partition.is_diskless:
                inherited = self._inherit(name, partition)
                if inherited is not None:
                    changes.append(inherited)
                continue
            # Once for both conditions: the answer may change in another turn.
            is_vacant = self._is_vacant(partition)
            change = None
            if is_vacant or was_waiting:
                if is_unclean_allowed is None:
                    is_unclean_allowed = self._is_unclean_allowed(topic)
                change = self._take_over(name, partition, is_unclean_allowed=is_unclean_allowed)
            if not is_vacant and not self._coordinated.isdisjoint(partition.isr):
                change = self._shrink_isr(name, partition)
            if change is not None:
                changes.append(change)
        return changes

    def _take_over(
        self, name: str, partition: Partition, *, is_unclean_allowed: bool
    ) -> PartitionChange | None:
        """Return the partition's takeover; note the topic if it may be taken over later."""
        is_held = self._membership.broker_id in partition.replicas
        is_vacant = self._is_vacant(partition)
        # The nodes that may write for all successors of the dead leader; none if it is not dead.
        writers = self._coordinators.of(partition.leader) if self._is_orphan(partition) else ()
        is_writer = bool(writers) and partition.leader in self._coordinated
        is_reserved = name in RESERVED_TOPICS  # Any broker may lead one that has no live replica.
        if not is_readable(partition) or not (is_held or is_writer or is_reserved):
            return None
        if is_vacant and self._is_in_grace(partition):
            self._waiting.add(name)
            return None
        change = self._elect_successor(partition) if is_writer else None
        if change is None and is_held:
            change = self._elect_self(partition, writers, is_unclean_allowed=is_unclean_allowed)
        elif change is None and is_reserved:
            change = self._adopt(partition)
        self.takeovers_left -= change is not None
        may_later = self._may_take_over_later(
            partition, is_writer=is_writer, is_unclean_allowed=is_unclean_allowed
        )
        if is_vacant and (change is not None or may_later):
            self._waiting.add(name)
        return change

    def _elect_successor(self, partition: Partition) -> PartitionChange | None:
        """Return the write that elects a successor of the dead leader, on that one's behalf."""
        membership = self._membership
        return membership.elector.elect(partition, membership.peers, now_ms=membership.now_ms())

    def _elect_self(
        self, partition: Partition, writers: Sequence[int], *, is_unclean_allowed: bool
    ) -> PartitionChange | None:
        """Return the write by which this replica takes over, unless a writer is to do it first."""
        membership = self._membership
        return membership.elector.takeover(
            partition,
            membership.peers,
            is_unclean_allowed=is_unclean_allowed,
            now_ms=membership.now_ms(),
            is_coordinated=any(b != membership.broker_id for b in writers[:1]),
        )

    def _adopt(self, partition: Partition) -> PartitionChange | None:
        """Return the write by which this node takes a partition of which it has no replica."""
        live = self._membership.live_brokers(self._node.view.image)
        return self._membership.elector.adopt(partition, self._membership.peers, live)

    def _may_take_over_later(
        self, partition: Partition, *, is_writer: bool, is_unclean_allowed: bool
    ) -> bool:
        """Whether time alone can make a takeover possible, without a change of record or lease."""
        broker_id, elector = self._membership.broker_id, self._membership.elector
        is_held = broker_id in partition.replicas
        if is_held and (is_unclean_allowed or broker_id in partition.isr):
            return True
        # A successor may still be seen to have outlived the leader.
        return is_writer and bool(elector.candidates(partition, self._membership.peers))

    def _inherit(self, name: str, partition: Partition) -> PartitionChange | None:
        """Return the takeover of a diskless partition; note the topic while it has no leader."""
        leader, membership = partition.leader, self._membership
        if leader == membership.broker_id:
            is_vacant = not membership.leads(partition)
        else:
            is_vacant = leader == NO_LEADER or membership.peers.is_suspected(leader)
        if not is_vacant or not is_readable(partition):
            return None
        self._waiting.add(name)
        if self._is_in_grace(partition):
            return None
        live = membership.live_brokers(self._node.view.image)
        change = membership.elector.inherit(partition, membership.peers, live)
        self.takeovers_left -= change is not None
        return change

    def _shrink_isr(self, name: str, partition: Partition) -> PartitionChange | None:
        """Return the removal of dead followers from a live leader's ISR, if the limit allows."""
        elector, peers = self._membership.elector, self._membership.peers
        now_ms = self._membership.now_ms()
        if not self.isr_shrinks_left:
            self._waiting.add(name)
            return None
        change = elector.shrink_isr(partition, peers, self._coordinated, now_ms=now_ms)
        self.isr_shrinks_left -= change is not None
        if change is None and not peers.is_fresh(partition.leader, now_ms):
            self._waiting.add(name)  # The leader may still be seen to have outlived the dead.
        return change

    def _is_in_grace(self, partition: Partition) -> bool:
        """Whether it is too early to take the partition over from another broker."""
        is_early = self._membership.now_ms() < self._grace_until_ms
        return is_early and self._has_other_leader(partition)

    def _is_orphan(self, partition: Partition) -> bool:
        """Whether the leader is another broker and has died."""
        return self._has_other_leader(partition) and self._membership.peers.has_died(
            partition.leader
        )

    def _is_vacant(self, partition: Partition) -> bool:
        leader = partition.leader
        if leader == self._membership.broker_id:
            return not self._membership.leads(partition)
        return leader == NO_LEADER or self._membership.peers.is_dead(leader)

    def _has_other_leader(self, partition: Partition) -> bool:
        return partition.leader not in (NO_LEADER, self._membership.broker_id)

    def _is_unclean_allowed(self, topic: Topic) -> bool:
        if topic.name in RESERVED_TOPICS:
            return True  # They carry leadership only: no records can be lost.
        return topic_config(topic.configs, self._node.config()).unclean_leader_election_enable


def topics_of(changes: Iterable[PartitionChange], image: ClusterImage) -> set[str]:
    """Return the names of the topics that are changed and still there."""
    names = image.topic_names
    return {names[c.after.topic_id] for c in changes if c.after.topic_id in names}


def is_isr_shrink(change: PartitionChange) -> bool:
    """Whether the change only removes dead followers."""
    return change.reason is ChangeReason.ALTER_ISR


def _urgency(change: PartitionChange) -> tuple[bool, list[tuple[str, int]]]:
    checks = [(check.id.key, check.expected_version) for check in change.checks]
    return is_isr_shrink(change), checks
