"""Takes over the partitions that this node should lead.

Looks at what has changed: the topics of a new image, everything once the set of dead
brokers is another, and again at topics where a partition waits for its time. What is
decided together is written together, so a dead leader of a thousand partitions costs a
dozen transactions. What a dead node led is taken over by one node for all successors
(``election_coordinators``); the others step in where it does not.

A round goes in three parts, each written before the next is decided: topics that groups wait
for, topics with a partition that nobody leads, all others. So a takeover does not wait for the
look at a hundred thousand topics that only lose a follower. A round writes no more than
``TAKEOVERS_PER_ROUND_MAX`` and ``ISR_SHRINKS_PER_ROUND_MAX``; the rest is the next round's.

A round decides in turns of the event loop. Between two turns, as during the writes, a newer image
or reading of leases may come, and topics to look at may be noted. That is safe:

- Nothing decided counts before its write, and that is conditional on the version of the partition
  that it was decided on: what was decided on an older image is lost where the partition has
  changed. Each topic is decided on once a round, on one image, and each partition within one turn.
- A write is checked against the leases that were seen dead when it was decided: the leader's of a
  takeover, the followers' where the ISR shrinks. It is lost where they have renewed. Of changes
  decided on different readings of one lease, the older are lost (``write_changes``).
- What comes in between is noted for the next round, and what was lost is looked at again: the
  topics to look at, and the dead that this round began with, are taken before its first turn.
- A node that is fenced meanwhile writes nothing of what it has decided.

In its first moments a node takes over only what nobody leads or it led itself: the nodes
of a cluster that is started again do not come up at once, and the first would take all.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from tidelog_core.config import topic_config
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Partition, Topic
from tidelog_core.metadata.stand_in import is_readable
from tidelog_core.metadata.store import COMMIT_WRITES_MAX
from tidelog_core.model import NO_LEADER, RESERVED_TOPICS
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.election_coordinators import ElectionCoordinators
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.turns import Turn
from tidelog_core.waiting import wait_and_clear

from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

WAITING_SECONDS = 0.1  # between looks at partitions that wait for their time
MIN_PAUSE_MS = 10.0  # between two looks where nothing changes
TAKEOVERS_PER_ROUND_MAX = 20 * COMMIT_WRITES_MAX  # half a second of writes, then a new look
# Partitions that lose no more than followers: leases that lapse meanwhile do not wait for them all.
ISR_SHRINKS_PER_ROUND_MAX = 20 * COMMIT_WRITES_MAX
PARTITIONS_PER_STEP = 50  # of one topic, before others may run
START_GRACE_MS_MAX = 2_000  # and at most a quarter of a lease


class ElectionLoop:
    """Decides and writes this node's takeovers. ``round`` may be called by one task only."""

    def __init__(self, node: NodeContext, *, membership: Membership) -> None:
        self._node = node
        self._membership = membership
        self._changed: set[str] = set()
        self._waiting: set[str] = set()  # topics with a partition that may be taken over later
        self._held: dict[str, tuple[Partition, ...]] = {}  # as last looked at
        self._dead: frozenset[int] | None = None  # None: look at everything
        self._coordinated: frozenset[int] = frozenset()  # dead ones, by this node for all
        self._came_back_ms = -math.inf  # when one of the dead was last seen to be none any more
        self._step_in_ms = math.inf  # when this node writes for another of the dead
        self._takeovers_left = TAKEOVERS_PER_ROUND_MAX  # in this round
        self._isr_shrinks_left = ISR_SHRINKS_PER_ROUND_MAX  # in this round
        self._grace_until_ms: float | None = None  # None: nothing has been decided yet
        self._stir = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        unsubscribe = self._node.view.subscribe(self._on_image)
        self._membership.subscribe(self._stir.set)
        self._dead = None
        try:
            while True:
                await self.round()
                await wait_and_clear(self._stir, self._pause_s())
        finally:
            unsubscribe()

    async def round(self) -> int:
        """Take over what is due now; return how many partitions were written."""
        if not self._can_serve():
            return 0
        look = await self._begin()
        # Groups wait for their coordinator, and have to find it before anything else works.
        reserved = look.names & RESERVED_TOPICS
        written = await self._settle(look, reserved)
        leaderless = await self._leaderless(look)
        written += await self._settle(look, leaderless - reserved)
        return written + await self._settle(look, look.names - leaderless - reserved)

    def look_again(self, topic: str) -> None:
        """Look at a topic soon: this node does not lead any more what it led."""
        self._changed.add(topic)
        self._stir.set()

    def _can_serve(self) -> bool:
        """Whether this node may decide; if not, what it reads next is another cluster."""
        if self._membership.can_serve():
            return True
        self._dead = None
        return False

    async def _begin(self) -> _Look:
        """Return what this round looks at. What is noted from here on is for the next one."""
        image, dead, peers = self._node.view.image, self._membership.dead, self._membership.peers
        if self._grace_until_ms is None:
            grace_ms = min(START_GRACE_MS_MAX, self._membership.times.lease_ms // 4)
            self._grace_until_ms = self._membership.now_ms() + grace_ms
        is_other_dead, names = self._dead != dead, self._changed | self._waiting
        before, self._dead, self._changed = self._dead, dead, set()
        self._takeovers_left = TAKEOVERS_PER_ROUND_MAX
        self._isr_shrinks_left = ISR_SHRINKS_PER_ROUND_MAX
        turn = Turn()
        # Before stepping in: what has changed tells which of the dead someone writes for.
        for name in names:
            self._forget(name, image.partitions(name))
            await turn.step()
        coordinators = ElectionCoordinators(
            image.brokers, self._membership.is_live, peers.is_stepping_down
        )
        if self._step_in(before, dead, coordinators) or is_other_dead:
            names = image.topics.keys() | self._held.keys()
        return _Look(names, coordinators, turn)

    async def _leaderless(self, look: _Look) -> set[str]:
        """Return the topics with a partition whose leader is dead, or that nobody leads."""
        found, no_leaders = set(), self._membership.dead | {NO_LEADER}
        for name in look.names:
            partitions = self._node.view.image.partitions(name)
            self._forget(name, partitions)
            if not no_leaders.isdisjoint(partition.leader for partition in partitions):
                found.add(name)
            await look.turn.step()
        return found

    async def _settle(self, look: _Look, names: Set[str]) -> int:
        """Decide on the topics and write that; return how many partitions were written."""
        if look.is_store_away:
            self._waiting |= names
            return 0
        changes = await self._decide_topics(look, names)
        if not self._can_serve() or not changes:
            return 0
        outcome = await write_changes(self._node.store, changes)
        look.is_store_away = bool(outcome.refused)
        if outcome.moved:
            self._membership.note_moved(outcome.moved)
        _log_written(outcome.written)
        # Lost, too: where a lease has moved, and the broker is dead all the same.
        self._waiting.update(self._names(outcome.refused + outcome.unknown + outcome.lost))
        try:
            await self._node.view.refresh()
        except StoreUnavailable:
            self._waiting.update(self._names(changes))
        return len(outcome.written)

    def _step_in(
        self,
        dead_before: frozenset[int] | None,
        dead: frozenset[int],
        coordinators: ElectionCoordinators,
    ) -> bool:
        """Choose the dead that this node writes for; return whether there are more than before.

        Those that it is not the first to write for it takes on where nobody has got on for long
        enough, and keeps until a broker comes back: what waited for that one begins anew.
        """
        now_ms, before = self._membership.now_ms(), self._coordinated
        if dead_before is None or not dead_before <= dead:
            self._came_back_ms, before = now_ms, frozenset()
        coordinated, self._step_in_ms = set(), math.inf
        for dead_id in dead:
            unattended_ms = self._membership.peers.unattended_ms(dead_id, now_ms) or 0
            unattended_ms = min(unattended_ms, now_ms - self._came_back_ms)
            wait_ms = coordinators.wait_ms(self._membership.broker_id, dead_id, unattended_ms)
            if dead_id in before or wait_ms == 0:
                coordinated.add(dead_id)
            elif wait_ms is not None:
                self._step_in_ms = min(self._step_in_ms, now_ms + wait_ms)
        self._coordinated = frozenset(coordinated)
        return not self._coordinated <= before

    def _pause_s(self) -> float | None:
        """Return the seconds until the next look where nothing changes, ``None`` for ever."""
        pause_ms = max(self._step_in_ms - self._membership.now_ms(), MIN_PAUSE_MS)
        if self._waiting:
            pause_ms = min(pause_ms, WAITING_SECONDS * 1000)
        return None if pause_ms == math.inf else pause_ms / 1000

    async def _decide_topics(self, look: _Look, names: Iterable[str]) -> list[PartitionChange]:
        changes: list[PartitionChange] = []
        for name in names:
            if self._takeovers_left > 0:
                changes += await self._decide_topic(look, name)
            else:
                self.look_again(name)  # in the next round
            await look.turn.step()
        if self._takeovers_left <= 0:
            # Followers that are dead wait until nothing is without a leader any more.
            self._waiting.update(self._names(c for c in changes if _is_isr_shrink(c)))
            changes = [change for change in changes if not _is_isr_shrink(change)]
        # What nobody leads first, and that with the same dead leader together: a transaction
        # checks its lease once, and in one version.
        changes.sort(key=_urgency)
        return changes

    async def _decide_topic(self, look: _Look, name: str) -> list[PartitionChange]:
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
                await look.turn.step()
            if self._takeovers_left <= 0:
                self._waiting.add(name)
                self.look_again(name)  # in the next round, at the others of it
                break
            # Once for both: in another turn the answer may be another.
            is_vacant = self._is_vacant(partition)
            change = None
            if is_vacant or was_waiting:
                if is_unclean_allowed is None:
                    is_unclean_allowed = self._is_unclean_allowed(topic)
                change = self._take_over(look, name, partition, is_unclean_allowed)
            if not is_vacant and not self._coordinated.isdisjoint(partition.isr):
                change = self._shrink_isr(name, partition)
            if change is not None:
                changes.append(change)
        return changes

    def _take_over(
        self, look: _Look, name: str, partition: Partition, is_unclean_allowed: bool
    ) -> PartitionChange | None:
        """Return the partition's takeover; note the topic where it may come later."""
        elector, peers = self._membership.elector, self._membership.peers
        now_ms, broker_id = self._membership.now_ms(), self._membership.broker_id
        is_held, is_vacant = broker_id in partition.replicas, self._is_vacant(partition)
        # Who write for all successors of the dead leader; nobody needs to where none is dead.
        writers = look.coordinators.of(partition.leader) if self._is_orphan(partition) else ()
        is_writer = bool(writers) and partition.leader in self._coordinated
        if not is_readable(partition) or not (is_held or is_writer):
            return None
        assert self._grace_until_ms is not None
        if is_vacant and now_ms < self._grace_until_ms and self._has_other_leader(partition):
            self._waiting.add(name)
            return None
        change = elector.elect(partition, peers, now_ms=now_ms) if is_writer else None
        if change is None and is_held:
            change = elector.takeover(
                partition,
                peers,
                is_unclean_allowed=is_unclean_allowed,
                now_ms=now_ms,
                is_coordinated=any(b != broker_id for b in writers[:1]),
            )
        self._takeovers_left -= change is not None
        # Who can never take over looks again when the record or a lease changes.
        may_later = is_held and (is_unclean_allowed or broker_id in partition.isr)
        # A successor that has not been seen to outlive the leader may be yet.
        may_later = may_later or (is_writer and bool(elector.candidates(partition, peers)))
        if is_vacant and (change is not None or may_later):
            self._waiting.add(name)
        return change

    def _shrink_isr(self, name: str, partition: Partition) -> PartitionChange | None:
        """Return what takes the dead out of the ISR of a leader that lives, a round's part."""
        elector, peers = self._membership.elector, self._membership.peers
        now_ms = self._membership.now_ms()
        if not self._isr_shrinks_left:
            self._waiting.add(name)
            return None
        change = elector.shrink_isr(partition, peers, self._coordinated, now_ms=now_ms)
        self._isr_shrinks_left -= change is not None
        if change is None and not peers.is_fresh(partition.leader, now_ms):
            self._waiting.add(name)  # Its leader may yet be seen to outlive the dead.
        return change

    def _is_orphan(self, partition: Partition) -> bool:
        """Whether another broker led it and has died."""
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
            return True  # They carry leadership only: there are no records to lack.
        return topic_config(topic.configs, self._node.config()).unclean_leader_election_enable

    def _forget(self, name: str, partitions: tuple[Partition, ...]) -> None:
        """Drop what is remembered of partitions that this node held and holds no more.

        Also notes which of the dead someone writes for.
        """
        before = self._held.get(name, ())
        if before is partitions:
            return
        broker_id, now_ms = self._membership.broker_id, self._membership.now_ms()
        for old, new in zip(before, partitions, strict=False):
            if old is not new:
                self._membership.peers.note_written(old, new, now_ms)
        still = {
            (partition.topic_id, partition.partition)
            for partition in partitions
            if broker_id in partition.replicas
        }
        for partition in before:
            if (
                broker_id in partition.replicas
                and (partition.topic_id, partition.partition) not in still
            ):
                self._membership.elector.forget(partition)
        if partitions:
            self._held[name] = partitions
        else:
            self._held.pop(name, None)

    def _names(self, changes: Iterable[PartitionChange]) -> set[str]:
        names = self._node.view.image.topic_names
        return {names[c.after.topic_id] for c in changes if c.after.topic_id in names}

    def _on_image(self, _: ClusterImage, changed_topics: frozenset[str]) -> None:
        if changed_topics:
            self._changed |= changed_topics
            self._stir.set()


@dataclass(slots=True)
class _Look:
    """What a round goes by from its first turn to its last."""

    names: Set[str]  # of the topics to look at
    coordinators: ElectionCoordinators
    turn: Turn
    is_store_away: bool = False  # it has refused a part of the round: the rest waits


def _log_written(written: Sequence[PartitionChange]) -> None:
    unclean = [c for c in written if c.reason is ChangeReason.UNCLEAN_TAKEOVER]
    if unclean:
        logger.error(
            "partitions taken over by a replica that may lack records",
            extra={"count": len(unclean)},
        )
    shrunk = sum(map(_is_isr_shrink, written))
    if shrunk < len(written):
        logger.info("partitions taken over", extra={"count": len(written) - shrunk})
    if shrunk:
        logger.info("dead replicas taken out of ISRs", extra={"count": shrunk})


def _is_isr_shrink(change: PartitionChange) -> bool:
    return change.reason is ChangeReason.ALTER_ISR


def _urgency(change: PartitionChange) -> tuple[bool, list[tuple[str, int]]]:
    checks = [(check.id.key, check.expected_version) for check in change.checks]
    return _is_isr_shrink(change), checks
