"""Takes over the partitions that this node should lead, or should write a new leader for.

It visits the topics that a new image changes, all topics when the set of dead brokers changes, and
again the topics with a partition that can be taken over only later. Changes that are decided
together are written together, so a dead leader of a thousand partitions costs a dozen transactions.
For a dead broker one node writes all successors' takeovers (``election_coordinators``); the others
step in if it does not.

A round has three parts, each written before the next is decided: reserved topics, which groups wait
for; topics with a partition without a leader; all others. So a takeover does not wait for a hundred
thousand topics that only lose a follower. A round writes no more than ``TAKEOVERS_PER_ROUND_MAX``
and ``ISR_SHRINKS_PER_ROUND_MAX``; the remaining changes are left to the next round.

A round decides in turns of the event loop. Between two turns, and during the writes, a newer image
or reading of leases may arrive, and more topics may be noted. That is safe:

- A decision takes effect only by its write, which is conditional on the version of the partition
  that it was based on. If the partition has changed since that image, the write is lost. Each topic
  is decided once a round, on one image, and each partition within one turn.
- A write is conditional on the leases that were seen dead when it was decided: the leader's for a
  takeover, the followers' for an ISR shrink. It is lost if they have been renewed. Of changes
  decided on different readings of one lease, the older are lost (``write_changes``).
- Changes that arrive during a round are noted for the next one, and lost writes are decided again:
  the topics to visit, and the set of dead brokers, are taken before the round's first turn.
- A node that is fenced during a round writes none of its decisions.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence, Set

from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Partition
from tidelog_core.model import NO_LEADER, RESERVED_TOPICS
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.leases.election_coordinators import ElectionCoordinators
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.turns import Turn
from tidelog_core.waiting import wait_and_clear

from tidelog_node.membership.election_round import ElectionRound, is_isr_shrink, topics_of
from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

WAITING_SECONDS = 0.1  # between visits of partitions that can be taken over later
MIN_PAUSE_MS = 10.0  # between two rounds without a change
START_GRACE_MS_MAX = 2_000  # and at most a quarter of a lease


class ElectionLoop:
    """Decides and writes takeovers and ISR shrinks. ``round`` may be called by one task only."""

    def __init__(self, node: NodeContext, *, membership: Membership) -> None:
        self._node = node
        self._membership = membership
        self._changed: set[str] = set()
        self._waiting: set[str] = set()  # topics with a partition that may be taken over later
        self._held: dict[str, tuple[Partition, ...]] = {}  # as last visited
        self._dead: frozenset[int] | None = None  # at the last round; None: visit everything
        self._suspected: frozenset[int] = frozenset()  # at the last round
        self._coordinated: frozenset[int] = frozenset()  # the dead that this node writes for
        self._came_back_ms = -math.inf  # when a dead broker was last seen alive again
        self._step_in_ms = math.inf  # when this node starts to write for another dead broker
        self._grace_until_ms: float | None = None  # None: no round has begun yet
        self._stir = asyncio.Event()

    async def run(self) -> None:
        """Run rounds until cancelled."""
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
        """Write the takeovers that are due; return the number of partitions written."""
        if not self._can_serve():
            return 0
        current = await self._begin()
        # Groups wait for their coordinator and need it before anything else works.
        reserved = current.names & RESERVED_TOPICS
        written = await self._settle(current, reserved)
        leaderless = await self._leaderless(current)
        written += await self._settle(current, leaderless - reserved)
        return written + await self._settle(current, current.names - leaderless - reserved)

    def visit_soon(self, topic: str) -> None:
        """Visit the topic soon: this node stops leading a partition that it led."""
        self._changed.add(topic)
        self._stir.set()

    def _can_serve(self) -> bool:
        """Whether this node may decide; if not, everything is visited once it may."""
        if self._membership.can_serve():
            return True
        self._dead = None
        return False

    async def _begin(self) -> ElectionRound:
        """Return the round's inputs. Changes noted from here on belong to the next round."""
        image, dead, peers = self._node.view.image, self._membership.dead, self._membership.peers
        if self._grace_until_ms is None:
            grace_ms = min(START_GRACE_MS_MAX, self._membership.times.lease_ms // 4)
            self._grace_until_ms = self._membership.now_ms() + grace_ms
        is_other_dead, names = self._dead != dead, self._changed | self._waiting
        suspected = self._membership.suspected
        is_other_dead |= self._suspected != suspected
        self._suspected = suspected
        before, self._dead, self._changed = self._dead, dead, set()
        turn = Turn()
        # Before ``_step_in``: these changes show for which dead brokers another node writes.
        for name in names:
            self._forget(name, image.partitions(name))
            await turn.step()
        coordinators = ElectionCoordinators(
            image.brokers, self._membership.is_live, peers.is_stepping_down
        )
        if self._step_in(before, dead, coordinators) or is_other_dead:
            names = image.topics.keys() | self._held.keys()
        return ElectionRound(
            self._node,
            self._membership,
            coordinators,
            names=names,
            waiting=self._waiting,
            coordinated=self._coordinated,
            grace_until_ms=self._grace_until_ms,
            turn=turn,
        )

    async def _leaderless(self, current: ElectionRound) -> set[str]:
        """Return the topics with a partition whose leader is dead, or that has no leader."""
        found, no_leaders = set(), self._membership.suspected | {NO_LEADER}
        for name in current.names:
            partitions = self._node.view.image.partitions(name)
            self._forget(name, partitions)
            if not no_leaders.isdisjoint(partition.leader for partition in partitions):
                found.add(name)
            await current.turn.step()
        return found

    async def _settle(self, current: ElectionRound, names: Set[str]) -> int:
        """Decide on the topics and write the changes; return the number of partitions written."""
        if current.is_store_away:
            self._waiting |= names
            return 0
        changes = await current.decide(names)
        if current.left:
            self._changed |= current.left
            self._stir.set()
        if not self._can_serve() or not changes:
            return 0
        outcome = await write_changes(self._node.store, changes)
        current.is_store_away = bool(outcome.refused)
        if outcome.moved:
            self._membership.note_moved(outcome.moved)
        self._note_written(outcome.written)
        # Lost ones too: the lease has been renewed, but the broker may be dead all the same.
        self._waiting |= topics_of(
            outcome.refused + outcome.unknown + outcome.lost, self._node.view.image
        )
        try:
            await self._node.view.refresh()
        except StoreUnavailable:
            self._waiting |= topics_of(changes, self._node.view.image)
        return len(outcome.written)

    def _note_written(self, written: Sequence[PartitionChange]) -> None:
        unclean = [c for c in written if c.reason is ChangeReason.UNCLEAN_TAKEOVER]
        self._node.counters.unclean_election_count += len(unclean)
        if unclean:
            logger.error(
                "partitions taken over by a replica that may lack records",
                extra={"count": len(unclean)},
            )
        shrunk = sum(map(is_isr_shrink, written))
        self._node.counters.isr_shrink_count += shrunk
        if shrunk < len(written):
            logger.info("partitions taken over", extra={"count": len(written) - shrunk})
        if shrunk:
            logger.info("dead replicas taken out of ISRs", extra={"count": shrunk})

    def _step_in(
        self,
        dead_before: frozenset[int] | None,
        dead: frozenset[int],
        coordinators: ElectionCoordinators,
    ) -> bool:
        """Choose the dead brokers that this node writes for; return whether there are new ones.

        If this node is not the first writer for a dead broker, it steps in when no change has been
        written for long enough. It stays the writer until a broker comes back: then the delays are
        counted from there.
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
        """Return the seconds until the next round without a change, ``None`` for ever."""
        pause_ms = max(self._step_in_ms - self._membership.now_ms(), MIN_PAUSE_MS)
        if self._waiting:
            pause_ms = min(pause_ms, WAITING_SECONDS * 1000)
        return None if pause_ms == math.inf else pause_ms / 1000

    def _forget(self, name: str, partitions: tuple[Partition, ...]) -> None:
        """Forget partitions that this node no longer has a replica of.

        Also notes for which dead brokers another node writes.
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

    def _on_image(self, _: ClusterImage, changed_topics: frozenset[str]) -> None:
        if changed_topics:
            self._changed |= changed_topics
            self._stir.set()
