"""This node's role in one replicated or diskless partition, tied to its log.

``PartitionState`` decides. The role carries it out: it puts the leader epoch and the high watermark
into the log, gives acks to waiting producers, and wakes waiting readers. A partition with a single
replica has no role unless it is diskless: its leader commits by appending.

Acks are given only while the node may answer (``may_serve``). The errors at the end of a leadership
are always given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelog_core.errors import NotLeaderOrFollower, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.follower_state import FollowerState
from tidelog_core.replication.leader.follower_progress import FollowerContact
from tidelog_core.replication.leader.leader_state import LeaderState
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.replication.partition_state import PartitionState, RoleChange


class AckWaiter(Protocol):
    """A waiter for the ack of records of one partition."""

    def on_ack(self, error: TidelogError | None) -> None:
        """Take the ack, or the error instead. Called once; must not append or read here."""


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
        """``wake_readers`` gets the bytes committed, ``notify_waiters`` is for all other changes.

        ``wants_write`` is called when the partition's item may have to be written.
        """
        self._state: PartitionState[AckWaiter] = PartitionState(broker_id)
        self._clock_ms = clock_ms
        self._may_serve = may_serve
        self._wake_readers = wake_readers
        self._notify_waiters = notify_waiters
        self._wants_write = wants_write
        self._said_serving = True  # as last notified: whether the leader may answer
        self._uncommitted_bytes = 0  # appended, and readers have not been woken

    @property
    def leader(self) -> Leader | None:
        """The leader's state, also while it may not answer."""
        return self._state.leader

    @property
    def follower(self) -> FollowerState | None:
        """The follower's state."""
        return self._state.follower

    @property
    def partition(self) -> Partition | None:
        """The newest record of the partition that was taken."""
        return self._state.partition

    def require_leader(self) -> Leader:
        """Return the leader's state. Raises ``NotLeaderOrFollower`` while it may not answer."""
        leader = self._state.leader
        if leader is None or not leader.is_serving:
            raise NotLeaderOrFollower("the partition is changing its leader")
        return leader

    def require_appendable(self, *, needs_all: bool) -> None:
        """Raise if a produce request must be refused, see ``LeaderState``."""
        leader = self._state.leader
        if leader is None:
            raise NotLeaderOrFollower("the partition is changing its leader")
        leader.require_appendable(needs_all=needs_all)

    def on_partition(
        self, partition: Partition, log: LocalLog, *, leads: bool, rules: ReplicationRules
    ) -> RoleChange:
        """Take a record of the partition and release the acks that it decides."""
        now_ms = self._clock_ms()
        change = self._state.on_partition(
            partition, leads=leads, log=log, rules=rules, now_ms=now_ms
        )
        leader = self._state.leader
        if change is RoleChange.BECAME_FOLLOWER and self._state.follower is not None:
            self._state.follower.begin(now_ms)
        if leader is not None:
            if change is RoleChange.BECAME_LEADER:
                # Of the previous leader's records: at most this much is yet to be committed.
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
        is_fed: bool = False,
    ) -> None:
        """Note a follower's position. Raises as ``LeaderCommits.on_fetch``."""
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
            is_fed=is_fed,
        )
        if has_moved:
            self.follow_high_watermark(log)
        # A follower that has lost records may have to leave the ISR, even of a partition at rest.
        is_behind = fetch_offset < offset_before
        if is_behind or leader.followers[follower_id].wants_in or leader.is_moving:
            self._wants_write()

    def on_chain_committed(self, log: LocalLog, end_offset: int) -> None:
        """Note that the chain has every record of a diskless partition below the offset."""
        leader = self._state.leader
        if leader is None:
            return
        if leader.on_chain_committed(end_offset, self._clock_ms()):
            self.follow_high_watermark(log)
        if leader.is_moving:
            self._wants_write()

    def begin_entering(self, chain: EpochChain) -> None:
        """Have the chain count besides the ISR, see ``LeaderState.begin_entering``."""
        self.require_leader().begin_entering(chain)
        self._wants_write()

    def end_entering(self, log: LocalLog | None = None) -> None:
        """Have the ISR count alone again: the chain takes nothing more."""
        leader = self._state.leader
        if leader is not None and leader.is_entering:
            leader.end_entering(self._clock_ms())
            if log is not None:
                self.follow_high_watermark(log)
            self._wants_write()

    def add_pending_ack(self, required_offset: int, waiter: AckWaiter) -> None:
        """Give ``waiter`` its ack once every record below ``required_offset`` is committed."""
        leader = self._state.leader
        assert leader is not None
        leader.add_pending_ack(required_offset, waiter)
        if required_offset <= leader.high_watermark:
            self.release()

    def follow_high_watermark(self, log: LocalLog) -> None:
        """Bring the leader's high watermark into the log and wake those that wait for it."""
        leader = self._state.leader
        if leader is None:
            return
        if log.advance_high_watermark(leader.high_watermark):
            # It may be more than was committed: a reader woken too early checks and waits on.
            size_bytes = self._uncommitted_bytes
            if log.high_watermark == log.log_end_offset:
                self._uncommitted_bytes = 0
            self._wake_readers(size_bytes)
        if leader.is_serving != self._said_serving:
            self._said_serving = leader.is_serving
            # Fetch sessions check their settled partitions again at their next read. A waiting
            # fetch is not answered now: the doubt mostly ends within one metadata write, and a
            # change of leader wakes it (``Replica.wake``). Nothing is read while the doubt lasts.
            self._notify_waiters()
        self.release()

    def release(self) -> None:
        """Give the acks and errors that may be given now."""
        state = self._state
        if state.leader is not None and not state.leader.is_deposed and not self._may_serve():
            return
        for released in state.take_released():
            released.token.on_ack(released.error)

    def end(self) -> None:
        """End the role: the replica is gone from this node."""
        self._state.end()
        self.release()

    def resume(self) -> None:
        """Continue after the node was fenced or stopped for a while."""
        if self._state.leader is not None:
            self._state.leader.resume(self._clock_ms())
        self.release()
