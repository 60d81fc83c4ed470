"""Membership by the classic protocol: the group's leader assigns the partitions.

    poll -> rebalance task: revoke (eager: all) -> JoinGroup -> (leader: assign) -> SyncGroup
         -> revoke partitions assigned to others (cooperative; then join once more)
         -> add new partitions

Source: the classic group protocol of the Kafka protocol guide; KIP-62, 345, 394, 429.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster
from tidelog.connections import Lane
from tidelog.consuming.assignors import ASSIGNORS_BY_NAME, Assignor
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.consuming.membership import Member, Membership
from tidelog.errors import FencedInstanceId, MalformedResponse, TidelogError, error_for
from tidelog.options import ConsumerOptions
from tidelog.wire.requests import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP

logger = logging.getLogger(__name__)

JOIN_LAPSE_S = 5.0  # The coordinator may use all of the rebalance timeout before it answers.
_QUICK_JOINS_MAX = 3
# Answers to a member that the group has removed.
_LOST = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})
_REJOIN_AT_ONCE = frozenset(
    {
        ErrorCode.member_id_required,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
    }
)


class ClassicMembership(Membership):
    """A consumer's membership in its group by the classic protocol."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        options: ConsumerOptions,
        member: Member,
    ) -> None:
        super().__init__(
            cluster,
            coordinator,
            options,
            member,
            interval_s=options.heartbeat_interval_ms / 1000,
        )
        self._assignors = [ASSIGNORS_BY_NAME[name] for name in options.assignors]
        self._joined_topics: frozenset[str] = frozenset()
        self._last_assignment: tuple[TopicPartition, ...] = ()
        self._last_generation = NO_GENERATION
        self._assigned_counts: Mapping[str, int] | None = None  # as leader, last seen
        self._is_preparing = False  # It joins next, whatever heartbeats and commits show.
        self._hand_over_count = 0  # rebalances in a row that took partitions away
        self._hand_over_backoff = cluster.backoff()

    # -- called by the consumer --

    def on_subscription(self) -> None:
        """Join again with the current subscription."""
        self._request_rebalance("subscribe was called")

    async def on_metadata(self) -> None:
        """Join again if our subscription or, as leader, the partition counts have changed."""
        if not self._is_stable or self._is_rebalance_due:
            return
        if await self._member.topics() != self._joined_topics:
            self._request_rebalance("the subscription has changed")
        elif self._assigned_counts is not None:
            counts = await self._member.partition_counts(self._assigned_counts.keys())
            if {**dict.fromkeys(self._assigned_counts, 0), **counts} != self._assigned_counts:
                self._request_rebalance("partitions were added or removed")

    def note_commit_error(self, code: ErrorCode) -> None:
        """Handle the coordinator's error for a commit."""
        if not self._is_stable:
            return  # The group may have its next generation already: the join's answer tells.
        if code in _LOST:
            self._lose(code)
        elif code is ErrorCode.rebalance_in_progress:
            self._note_rebalance("a commit showed a rebalance")

    async def leave(self, reason: str) -> None:
        """Leave the group, unless the membership is static."""
        member_id, self.member_id = self.member_id, ""
        self._is_stable = False
        if not member_id or self._options.group_instance_id is not None:
            return
        request = build(
            LeaveGroupRequest,
            group_id=self._coordinator.group_id,
            # Version 3 and later name members in a list; kio's class for older ones differs.
            members=(build(MemberIdentity, member_id=member_id, reason=reason),),
        )
        await self._send_leave(LEAVE_GROUP, request)

    # -- heartbeats --

    async def _beat_once(self) -> None:
        generation = self.generation
        request = build(
            HeartbeatRequest,
            group_id=self._coordinator.group_id,
            generation_id=generation,
            member_id=self.member_id,
            group_instance_id=self._options.group_instance_id,
        )
        response = await self._coordinator.request(
            HEARTBEAT,
            request,
            lane=Lane.GROUP,
            timeout_s=min(self._cluster.request_timeout_s, self._options.session_timeout_ms / 1000),
        )
        code = response.error_code
        if code is ErrorCode.none or generation != self.generation or not self._is_stable:
            return
        self._coordinator.note(code)
        if code is ErrorCode.rebalance_in_progress:
            self._note_rebalance("the group rebalances")
        elif code in _LOST:
            self._lose(code)
        elif not code.retriable:
            self._fail(error_for(code, None, about=f"group {self._coordinator.group_id!r}"))

    def _note_rebalance(self, reason: str) -> None:
        """Join the group's rebalance, unless that comes next anyway."""
        if not self._is_preparing:
            self._request_rebalance(reason)

    def _lose(self, code: ErrorCode) -> None:
        if code is ErrorCode.unknown_member_id:
            self.member_id = ""
        super()._lose(code)

    # -- the rebalance --

    async def _rebalance(self) -> None:
        """Join until the assignment is stable; retriable errors are retried."""
        self._is_preparing = True
        try:
            if self._hand_over_count > _QUICK_JOINS_MAX:  # A leader may change its mind each time.
                await asyncio.sleep(self._hand_over_backoff.next_s())
            await self._prepare()
        finally:
            self._is_preparing = False
        backoff = self._cluster.backoff()
        quick_count = 0
        while True:
            try:
                assigned = await self._join_and_sync()
                break
            except TidelogError as error:
                code = error.code
                self._coordinator.note(code)
                if code in _LOST and self._member.owned():
                    self.is_lost = True
                    await self._prepare()
                if isinstance(error, MalformedResponse) or (
                    not error.retriable and code not in _REJOIN_AT_ONCE
                ):
                    raise
                quick_count += 1
                if code not in _REJOIN_AT_ONCE or quick_count > _QUICK_JOINS_MAX:
                    await asyncio.sleep(backoff.next_s())
        await self._complete(assigned)
        self._failures.reset()

    async def _prepare(self) -> None:
        owned = self._member.owned()
        if self.is_lost:
            self.is_lost = False
            await self._member.revoke(owned, is_lost=True)
        elif not self._assignors[0].is_cooperative:
            await self._member.revoke(owned, is_lost=False)
        else:
            topics = await self._member.topics()
            await self._member.revoke(
                [partition for partition in owned if partition.topic not in topics], is_lost=False
            )

    async def _complete(self, assigned: list[TopicPartition]) -> None:
        owned = self._member.owned()
        self._last_assignment, self._last_generation = tuple(assigned), self.generation
        revoked = owned.difference(assigned)
        self._hand_over_count = self._hand_over_count + 1 if revoked else 0
        if not revoked:
            self._hand_over_backoff.reset()
        else:
            await self._member.revoke(revoked, is_lost=False)
            self._request_rebalance("partitions were handed over")
        added = [partition for partition in assigned if partition not in owned]
        await self._member.assign_partitions(assigned, added)

    async def _join_and_sync(self) -> list[TopicPartition]:
        """Return our partitions. Raises the error of the step that failed."""
        self._is_stable = False
        topics = await self._member.topics()
        joined = await self._join(topics)
        self.generation = int(joined.generation_id)
        assignor = ASSIGNORS_BY_NAME.get(joined.protocol_name or "")
        if assignor is None:
            raise error_for(
                ErrorCode.inconsistent_group_protocol,
                f"the group chose assignor {joined.protocol_name!r}",
            )
        self._assigned_counts = None
        assignments: dict[str, list[TopicPartition]] = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = await self._assign(assignor, joined)
        request = build(
            SyncGroupRequest,
            group_id=self._coordinator.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._options.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=assignor.name,
            assignments=tuple(
                build(
                    SyncGroupRequestAssignment,
                    member_id=member_id,
                    assignment=encode_assignment(partitions),
                )
                for member_id, partitions in assignments.items()
            ),
        )
        synced = await self._coordinator.request(
            SYNC_GROUP, request, lane=Lane.GROUP, timeout_s=self._rebalance_timeout_s()
        )
        self._check(synced.error_code)
        self._joined_topics = topics
        self._is_stable = True
        return decode_assignment(synced.assignment)

    async def _join(self, topics: frozenset[str]) -> Any:
        protocols = tuple(
            build(
                JoinGroupRequestProtocol,
                name=assignor.name,
                metadata=encode_subscription(self._subscription(assignor, topics)),
            )
            for assignor in self._assignors
        )
        milliseconds = datetime.timedelta(milliseconds=1)
        request = build(
            JoinGroupRequest,
            group_id=self._coordinator.group_id,
            session_timeout=self._options.session_timeout_ms * milliseconds,
            rebalance_timeout=self._options.max_poll_interval_ms * milliseconds,
            member_id=self.member_id,
            group_instance_id=self._options.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=None,
        )
        joined = await self._coordinator.request(
            JOIN_GROUP, request, lane=Lane.GROUP, timeout_s=self._rebalance_timeout_s()
        )
        if joined.error_code is ErrorCode.member_id_required:
            self.member_id = joined.member_id
        self._check(joined.error_code)
        self.member_id = joined.member_id
        return joined

    def _subscription(self, assignor: Assignor, topics: frozenset[str]) -> MemberSubscription:
        return MemberSubscription(
            self.member_id,
            tuple(topics),
            self._options.group_instance_id,
            tuple(sorted(self._member.owned())),
            self._last_generation,
            assignor.user_data(self._last_assignment, self._last_generation),
            self._options.rack,
        )

    async def _assign(self, assignor: Assignor, joined: Any) -> dict[str, list[TopicPartition]]:
        members = [
            decode_subscription(member.member_id, member.group_instance_id, member.metadata)
            for member in joined.members
        ]
        wanted = {topic for member in members for topic in member.topics}
        counts = await self._member.partition_counts(wanted)
        self._assigned_counts = {**dict.fromkeys(wanted, 0), **counts}
        assignments = assignor.assign(members, counts)
        logger.info(
            "assigned the group's partitions",
            extra={
                "group_id": self._coordinator.group_id,
                "generation": self.generation,
                "members": {member: len(part) for member, part in assignments.items()},
            },
        )
        return assignments

    def _check(self, code: ErrorCode) -> None:
        if code is ErrorCode.none:
            return
        if code in _LOST:
            self.generation = NO_GENERATION
            if code is ErrorCode.unknown_member_id:
                self.member_id = ""
        if code is ErrorCode.fenced_instance_id:
            raise FencedInstanceId(
                f"group {self._coordinator.group_id!r}: another consumer has joined as "
                f"{self._options.group_instance_id!r}"
            )
        raise error_for(code, None, about=f"group {self._coordinator.group_id!r}")

    def _rebalance_timeout_s(self) -> float:
        return max(
            self._cluster.request_timeout_s,
            self._options.max_poll_interval_ms / 1000 + JOIN_LAPSE_S,
        )
