"""Tracks this broker's role in one partition: leader, follower, or neither.

All role changes are made here. Ending a leadership fails its pending acks, and ending a
following discards later answers. Both happen before the new role begins, in one synchronous
step. If this broker also leads the next leader epoch (for example because a reassignment has
ended), no other broker has led in between and the log is unchanged, so pending acks stay
pending.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.follower_state import FollowerState
from tidelog_core.replication.leader.leader_state import LeaderState
from tidelog_core.replication.leader.pending_acks import ReleasedAck
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.replication.tier_start import ReplicaLog

Token = TypeVar("Token")


class RoleChange(Enum):
    """The caller's task after a new record of the partition."""

    NONE = "none"
    BECAME_LEADER = "became-leader"  # assign the leader epoch in the log, write nothing before
    BECAME_FOLLOWER = "became-follower"  # fetch from the new leader
    # Leader in an epoch of an earlier process, so it must take over; or the item is unreadable.
    IDLE = "idle"
    NO_REPLICA = "no-replica"  # the log may be deleted


class PartitionState(Generic[Token]):
    """This broker's part in one partition."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.partition: Partition | None = None  # the newest record that is known
        self.leader: LeaderState[Token] | None = None
        self.follower: FollowerState | None = None
        self._released: list[ReleasedAck[Token]] = []

    def on_partition(
        self,
        partition: Partition,
        *,
        leads: bool,
        log: ReplicaLog,
        rules: ReplicationRules,
        now_ms: float,
    ) -> RoleChange:
        """Apply a record of the partition; a record older than the known one changes nothing.

        ``leads`` is ``LeaderElector.leads`` of the same record. If the item is unreadable, the
        leader is unknown, and this broker has no role until it is readable.
        """
        if not is_readable(partition):
            self.partition = partition
            self._end_parts()
            return RoleChange.IDLE
        if self.partition is not None and partition.version <= self.partition.version:
            return RoleChange.NONE
        self.partition = partition
        if self.broker_id not in partition.replicas:
            self._end_parts()
            return RoleChange.NO_REPLICA
        if leads:
            return self._lead(partition, log, rules, now_ms)
        if partition.leader == self.broker_id:
            self._end_parts()
            return RoleChange.IDLE
        return self._follow(partition)

    def end(self) -> None:
        """End every role, independently of the last record: the partition is gone."""
        self._end_parts()

    def take_released(self) -> list[ReleasedAck[Token]]:
        """Return the acks to send now, of this leadership and of those that ended."""
        released, self._released = self._released, []
        if self.leader is not None:
            released += self.leader.take_released()
        return released

    def _lead(
        self, partition: Partition, log: ReplicaLog, rules: ReplicationRules, now_ms: float
    ) -> RoleChange:
        if self.leader is not None and self.leader.leader_epoch == partition.leader_epoch:
            self.leader.on_partition(partition, now_ms)
            return RoleChange.NONE
        before, leader = self.leader, self._make_leader(partition, log, rules, now_ms)
        if before is not None and partition.leader_epoch == before.leader_epoch + 1:
            leader.succeed(before)
        self._end_parts()
        self.leader = leader
        return RoleChange.BECAME_LEADER

    def _make_leader(
        self, partition: Partition, log: ReplicaLog, rules: ReplicationRules, now_ms: float
    ) -> LeaderState[Token]:
        return LeaderState(
            partition,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            rules=rules,
            now_ms=now_ms,
        )

    def _follow(self, partition: Partition) -> RoleChange:
        if self.follower is not None and self.follower.leader_epoch == partition.leader_epoch:
            self.follower.on_partition(partition)
            return RoleChange.NONE
        self._end_parts()
        self.follower = self._make_follower(partition)
        return RoleChange.BECAME_FOLLOWER

    def _make_follower(self, partition: Partition) -> FollowerState:
        return FollowerState(partition, self.broker_id)

    def _end_parts(self) -> None:
        if self.leader is not None:
            self.leader.depose()
            self._released += self.leader.take_released()
            self.leader = None
        if self.follower is not None:
            self.follower.stop()
            self.follower = None
