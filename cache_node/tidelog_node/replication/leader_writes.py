"""Writes the leaders' decisions to their partitions' items: ISR, hand-overs, reassignments.

The leader states decide (``LeaderState.propose``) and get the outcome. A partition with a change is
checked at once. One that is not at rest is also checked at intervals, since a follower falls behind
by doing nothing. At rest every ISR member has the whole log. An append ends the rest of a partition
(``LogChanges``); the death or return of a peer ends it for all. Changes decided together are
written together.

A node whose log of a partition is broken leaves that partition's ISR and leadership: the others
have the records. As the last ISR member it stays, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.lead_changes import leave_isr
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.turns import Turn
from tidelog_core.waiting import wait_and_clear

from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.replicas.role import Leader

logger = logging.getLogger(__name__)

CHECK_SECONDS_MAX = 1.0
CHECK_SECONDS_MIN = 0.05
CHECKS_PER_LAG_TIME = 4
STOPPED_SECONDS = 2.0  # a check delayed by more than this: the process was stopped
READS_AT_ONCE_MAX = 16


class LeaderWrites:
    """For the node's event loop. ``run`` is one task."""

    def __init__(
        self, node: NodeContext, *, replicas: ReplicaManager, lag_time_max_ms: int
    ) -> None:
        self._node = node
        self._replicas = replicas
        interval = lag_time_max_ms / 1000 / CHECKS_PER_LAG_TIME
        self._check_seconds = min(max(interval, CHECK_SECONDS_MIN), CHECK_SECONDS_MAX)
        self._due: set[Replica] = set()
        self._restless: set[Replica] = set()  # at least those that are not at rest
        self._stir = asyncio.Event()
        self._could_serve = True
        self._has_broken = False  # a log has broken since ``leave_broken`` last ran
        replicas.roles.wants_write.subscribe(self._note)
        replicas.trouble.subscribe(self._note_broken)
        node.membership.subscribe(self._note_peers)

    def on_changed(self, replicas: Collection[Replica]) -> None:
        """Check these partitions' followers until they have everything."""
        self._restless.update(replica for replica in replicas if replica.leader is not None)

    async def run(self) -> None:
        """Work until cancelled."""
        last_check_ms = self._node.membership.now_ms()
        while True:
            waits_from_ms = self._node.membership.now_ms()
            await wait_and_clear(self._stir, self._check_seconds)
            now_ms = self._node.membership.now_ms()
            is_late = now_ms - waits_from_ms > (self._check_seconds + STOPPED_SECONDS) * 1000
            can_serve = self._node.membership.can_serve()
            if is_late or (can_serve and not self._could_serve):
                self._resume()
            self._could_serve = can_serve
            is_time = now_ms - last_check_ms >= self._check_seconds * 1000
            if is_time:
                last_check_ms = now_ms
                self._due.update(self._restless)
            if can_serve and self._due:
                due, self._due = self._due, set()
                await self.check(due)
            if can_serve and (is_time or self._has_broken):
                self._has_broken = False
                await self.leave_broken()

    async def check(self, replicas: Iterable[Replica]) -> None:
        """Write the changes of these partitions, and read the items that must be read."""
        to_read: list[Replica] = []
        proposed: dict[int, tuple[Replica, Leader]] = {}  # by id of the change
        changes: list[PartitionChange] = []
        brokers, now_ms = self._node.view.image.brokers, self._node.membership.now_ms()
        turn = Turn()
        for replica in replicas:
            await turn.step()  # There may be thousands of partitions.
            leader = replica.leader
            if leader is None or leader.is_deposed:
                self._restless.discard(replica)
                continue
            self._restless.add(replica)
            if leader.needs_read:
                to_read.append(replica)
                continue
            change = leader.propose(brokers, self._node.membership.peers, now_ms)
            self._settle(replica)  # Members turned away no longer hold it back.
            if change is not None:
                changes.append(change)
                proposed[id(change)] = (replica, leader)
            elif leader.is_at_rest(self._node.membership.peers, now_ms):
                self._restless.discard(replica)
        if changes:
            to_read += await self._write(changes, proposed)
        if to_read:
            await self._read(to_read)

    async def leave_broken(self) -> None:
        """Leave the ISR and the leadership of partitions that this node can no longer serve."""
        image = self._node.view.image
        changes = []
        for replica in self._replicas.in_trouble():
            partition = image.partition(replica.partition)
            if partition is not None:
                change = leave_isr(partition, self._node.broker_id)
                if change is not None:
                    changes.append(change)
        if changes:
            outcome = await write_changes(self._node.store, changes)
            logger.warning(
                "logs in trouble left to the other replicas",
                extra={"count": len(outcome.written)},
            )
            self._node.view.nudge()

    async def _write(
        self, changes: list[PartitionChange], proposed: dict[int, tuple[Replica, Leader]]
    ) -> list[Replica]:
        """Write the changes, report the outcome; return the replicas whose items must be read."""
        outcome = await write_changes(self._node.store, changes)
        now_ms = self._node.membership.now_ms()
        to_read: list[Replica] = []
        turn = Turn()
        for change in outcome.written:
            await turn.step()
            replica, leader = proposed[id(change)]
            before = set(leader.partition.isr)
            leader.on_written(change, now_ms)
            if before != set(change.after.isr):
                self._count(before, set(change.after.isr))
                logger.info(
                    "replicas in sync changed",
                    extra={"partition": str(replica.partition), "isr": list(change.after.isr)},
                )
            self._settle(replica)
        for change in outcome.lost:
            replica, leader = proposed[id(change)]
            leader.on_conflict()
            to_read.append(replica)
        for change in outcome.unknown:
            proposed[id(change)][1].on_unknown(now_ms)
        for change in outcome.refused:
            replica, leader = proposed[id(change)]
            leader.on_refused(change, now_ms)
            self._settle(replica)
        if outcome.written or outcome.lost:
            self._node.view.nudge()
        return to_read

    async def _read(self, replicas: list[Replica]) -> None:
        """Read the partitions' items again; a failed read is repeated at the next check."""
        slots = asyncio.Semaphore(READS_AT_ONCE_MAX)

        async def read(replica: Replica) -> None:
            leader = replica.leader
            partition = None if leader is None else leader.partition
            if leader is None or partition is None:
                return
            async with slots:
                item = await self._node.store.get(partition.item_id)
            if item is None:
                leader.depose()  # The topic is deleted.
            else:
                leader.on_read(Partition.from_item(item), self._node.membership.now_ms())
            self._settle(replica)
            self._due.add(replica)

        results = await asyncio.gather(*map(read, replicas), return_exceptions=True)
        for replica, problem in zip(replicas, results, strict=True):
            if isinstance(problem, TidelogError):
                logger.warning(
                    "partition could not be read, will retry",
                    extra={"partition": str(replica.partition), "reason": str(problem)},
                )
            elif isinstance(problem, BaseException):
                raise problem
        if self._due:
            self._stir.set()

    def _count(self, before: set[int], after: set[int]) -> None:
        if before - after:
            self._node.counters.isr_shrink_count += 1
        if after - before:
            self._node.counters.isr_expand_count += 1

    def _settle(self, replica: Replica) -> None:
        """Take over the high watermark of the leader's new state."""
        role, log = replica.role, replica.opened_log
        if role is not None and log is not None:
            role.follow_high_watermark(log)

    def _resume(self) -> None:
        for replica in self._led():
            if replica.role is not None:
                replica.role.resume()

    def _led(self) -> list[Replica]:
        return [replica for replica in self._replicas.replicas() if replica.leader is not None]

    def _note_peers(self) -> None:
        self._restless.update(self._led())

    def _note_broken(self, _: Replica) -> None:
        self._has_broken = True
        self._stir.set()

    def _note(self, replica: Replica) -> None:
        self._due.add(replica)
        self._stir.set()
