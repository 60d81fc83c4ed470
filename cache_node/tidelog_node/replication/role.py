"""This node's role in one replicated partition, tied to its log.

``PartitionState`` decides; this carries out: the leader epoch into the log, the high
watermark into the log, acks to who waits for them, word to who waits for records. A
partition with a single replica has no role: its leader commits by appending.

Whoever waits for acks is told only while the node may answer (``may_serve``); what the end
of a leadership refuses is told always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelog_core.errors import NotLeaderOrFollower, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.follower_progress import FollowerContact
from tidelog_core.replication.follower_state import FollowerState
from tidelog_core.replication.leader_state import LeaderState, ReplicationRules
from tidelog_core.replication.partition_state import PartitionState, RoleChange


class AckWaiter(Protocol):
    """Someone who is owed an ack for records of one partition."""

    def on_ack(self, error: TidelogError | None) -> None:
        """Take the ack, or why there is none. Called once; must not append or read here."""


Leader = LeaderState[AckWaiter]


class ReplicaRole:
    """Leader, follower or neither of one partition. For the node's event loop only."""

    __slots__ = (
        "_clock_ms",
        "_may_serve",
        "_notify_waiters",
        "_said_serving",
        "_state",
        "_uncommitted_bytes",
        "_wake_readers",
        "_wants_write",
    )

    def __init__(
        self,
        broker_id: int,
        *,
        clock_ms: Callable[[], float],
        may_serve: Callable[[], bool],
        wake_readers: Callable[[int], None],
        notify_waiters: Callable[[], None],
        wants_write: Callable[[], None],
    ) -> None:
        """``wake_readers`` tells of committed bytes, ``notify_waiters`` of what else changes.

        ``wants_write`` is called when the partition's item may have to be written.
        """
        self._state: PartitionState[AckWaiter] = PartitionState(broker_id)
        self._clock_ms = clock_ms
        self._may_serve = may_serve
        self._wake_readers = wake_readers
        self._notify_waiters = notify_waiters
        self._wants_write = wants_write
        self._said_serving = True  # that the leader may answer, as those who wait were told last
        self._uncommitted_bytes = 0  # appended, and readers have not been told

    @property
    def leader(self) -> Leader | None:
        """What is known as the leader, also while it may not answer."""
        return self._state.leader

    @property
    def follower(self) -> FollowerState | None:
        """What is known as a follower."""
        return self._state.follower

    @property
    def partition(self) -> Partition | None:
        """The newest record of the partition that has been taken."""
        return self._state.partition

    def require_leader(self) -> Leader:
        """Return the leader's state. Raises ``NotLeaderOrFollower`` where it may not answer."""
        leader = self._state.leader
        if leader is None or not leader.is_serving:
            raise NotLeaderOrFollower("the partition is changing its leader")
        return leader

    def require_appendable(self, *, needs_all: bool) -> None:
        """Raise where a produce request must be refused, see ``LeaderState``."""
        leader = self._state.leader
        if leader is None:
            raise NotLeaderOrFollower("the partition is changing its leader")
        leader.require_appendable(needs_all=needs_all)

    def on_partition(
        self, partition: Partition, log: LocalLog, *, leads: bool, rules: ReplicationRules
    ) -> RoleChange:
        """Take a record of the partition; tell who waits if the part changes by it."""
        now_ms = self._clock_ms()
        change = self._state.on_partition(
            partition, leads=leads, log=log, rules=rules, now_ms=now_ms
        )
        leader = self._state.leader
        if leader is not None:
            if change is RoleChange.BECAME_LEADER:
                # Of what the last leader has left: at most this much is yet to be committed.
                self._uncommitted_bytes = log.size_bytes
                log.assign_leader_epoch(leader.leader_epoch)
            leader.rules = rules
            leader.advance(now_ms)
            self.follow_high_watermark(log)
            self._wants_write()
        self.release()
        return change

    def on_append(self, log: LocalLog, end_offset: int, size_bytes: int) -> None:
        """Note that the log has grown by the leader's append."""
        leader = self._state.leader
        assert leader is not None
        self._uncommitted_bytes += size_bytes
        if leader.on_append(end_offset, self._clock_ms()):
            self.follow_high_watermark(log)

    def on_fetch(
        self,
        log: LocalLog,
        follower_id: int,
        fetch_offset: int,
        *,
        replica_epoch: int,
        log_start_offset: int,
        contact: FollowerContact | None = None,
    ) -> None:
        """Note what a follower holds. Raises as ``LeaderState.on_fetch``."""
        leader = self.require_leader()
        known = leader.followers.get(follower_id)
        offset_before = -1 if known is None else known.log_end_offset
        has_moved = leader.on_fetch(
            follower_id,
            fetch_offset,
            replica_epoch=replica_epoch,
            log_start_offset=log_start_offset,
            now_ms=self._clock_ms(),
            contact=contact,
        )
        if has_moved:
            self.follow_high_watermark(log)
        # One that has less than before may have to leave the ISR, also of a partition at rest.
        is_behind = fetch_offset < offset_before
        if is_behind or leader.followers[follower_id].wants_in or leader.is_handing_over:
            self._wants_write()

    def owe_ack(self, required_offset: int, waiter: AckWaiter) -> None:
        """Tell ``waiter`` once every record below ``required_offset`` is committed."""
        leader = self._state.leader
        assert leader is not None
        leader.owe_ack(required_offset, waiter)
        if required_offset <= leader.high_watermark:
            self.release()

    def follow_high_watermark(self, log: LocalLog) -> None:
        """Bring the leader's high watermark into the log and tell who waits for it."""
        leader = self._state.leader
        if leader is None:
            return
        if log.advance_high_watermark(leader.high_watermark):
            # More than was committed, perhaps: who wakes too early looks and waits on.
            size_bytes = self._uncommitted_bytes
            if log.high_watermark == log.log_end_offset:
                self._uncommitted_bytes = 0
            self._wake_readers(size_bytes)
        if leader.is_serving != self._said_serving:
            self._said_serving = leader.is_serving
            # What fetch sessions have settled is looked at again by the next look. A fetch that
            # waits is not answered for it: a doubt mostly ends within one metadata write, and a
            # change of hands wakes it (``Replica.wake``). No look reads while the doubt lasts.
            self._notify_waiters()
        self.release()

    def release(self) -> None:
        """Give the acks that may be given now."""
        state = self._state
        if state.leader is not None and not state.leader.is_deposed and not self._may_serve():
            return
        for released in state.take_released():
            released.token.on_ack(released.error)

    def end(self) -> None:
        """Play no part any more: the partition is gone from here."""
        self._state.end()
        self.release()

    def resume(self) -> None:
        """Go on after the node was fenced or stopped for a while."""
        if self._state.leader is not None:
            self._state.leader.resume(self._clock_ms())
        self.release()
