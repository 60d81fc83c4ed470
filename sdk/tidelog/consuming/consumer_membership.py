"""Membership by the consumer protocol: the coordinator assigns the partitions (KIP-848).

    heartbeat (epoch 0: join) -> epoch, interval, and sometimes a new target assignment
    target -> rebalance task: revoke other partitions, report that in the next heartbeat,
           -> add the target's partitions, which the coordinator has made sure are free

A heartbeat contains only what changed since the last acknowledged one; after a failed
heartbeat, the next contains everything. The member chooses its id and keeps it; its
epoch, which commits carry, comes with every answer. A fenced member gives up its
partitions and joins again. Source: KIP-848, KIP-1082 (member ids).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kio.schema.consumer_group_heartbeat.v1.request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kio.schema.errors import ErrorCode
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster
from tidelog.connections import Lane
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import NO_GENERATION
from tidelog.consuming.membership import Member, Membership
from tidelog.consuming.topic_names import names_of_topics
from tidelog.errors import MalformedResponse, TidelogError, error_for
from tidelog.options import ConsumerOptions
from tidelog.wire.requests import CONSUMER_GROUP_HEARTBEAT

logger = logging.getLogger(__name__)

_FIRST_INTERVAL_S = 5.0  # until the coordinator's first answer sets the interval
# The bounds of that interval. A group's is between 5 and 15 seconds unless nodes are configured.
_INTERVAL_S_MIN, _INTERVAL_S_MAX = 0.05, 300.0
_JOIN_EPOCH, _LEAVE_EPOCH, _LEAVE_FOR_NOW_EPOCH = 0, -1, -2
_LOOKUPS_MAX = 3  # of a target's topic names; missing ones are looked up after later heartbeats
_MILLISECOND = datetime.timedelta(milliseconds=1)
# Answers to a member that the group has removed.
_FENCED = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})

IdPartitions = frozenset[tuple[UUID, int]]


@dataclass(frozen=True, slots=True)
class _MemberState:
    """The part of the member's state that heartbeats report."""

    topics: frozenset[str]
    pattern: str | None
    owned: IdPartitions
    reached_count: int  # completed targets; each is reported, or the coordinator waits for it


class ConsumerMembership(Membership):
    """A consumer's membership in its group by the consumer protocol."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        options: ConsumerOptions,
        member: Member,
    ) -> None:
        super().__init__(cluster, coordinator, options, member, interval_s=_FIRST_INTERVAL_S)
        self.member_id = str(uuid.uuid4())
        self._backoff = cluster.backoff()
        self._acknowledged: _MemberState | None = None  # None: the next heartbeat has all fields
        self._target: IdPartitions | None = None
        self._reached: IdPartitions | None = None  # the last completed target
        self._reached_count = 0
        self._moving_to: IdPartitions = frozenset()  # the target in progress
        self._owned: IdPartitions = frozenset()
        self._may_be_member = False  # A heartbeat was sent since the last leave.
        self._has_lost_join = False  # A join was not answered; it may have succeeded.
        self._term = 0  # Grows when the membership ends; answers of earlier terms are dropped.
        self._moved = asyncio.Event()  # set and replaced with every new epoch

    # -- called by the consumer --

    def on_subscription(self) -> None:
        """Send a heartbeat now."""
        self._beat_now.set()

    async def on_metadata(self) -> None:
        """Send a heartbeat now if a pattern matched on the client selects other topics."""
        acknowledged = self._acknowledged
        if acknowledged is not None and await self._member.topics() != acknowledged.topics:
            self._beat_now.set()

    def note_commit_error(self, code: ErrorCode) -> None:
        """Handle the coordinator's error for a commit."""
        if code in _FENCED:
            self._lose(code)

    async def has_moved_on(self, generation: int, *, timeout_s: float) -> bool:
        """Wait until this member, if still one, is past the epoch; return whether it is."""
        if self._is_stopped:
            if self.generation == NO_GENERATION:
                return False
            # The answer to the last heartbeat may be lost. Everything in it must be sent
            # again, or the coordinator rejects the old epoch.
            self._acknowledged = None
            await self._beat_once()
            return self.generation not in (generation, NO_GENERATION)
        self._beat_now.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.generation == generation:
                    await self._moved.wait()
        return self.generation not in (generation, NO_GENERATION)

    async def leave(self, reason: str) -> None:  # noqa: ARG002 — the protocol has no room for it
        """Leave the group; a static member's assignment is kept until its session expires."""
        self._end()
        if not self._may_be_member:
            return
        self._may_be_member = False
        instance_id = self._options.group_instance_id
        request = build(
            ConsumerGroupHeartbeatRequest,
            group_id=self._coordinator.group_id,
            member_id=self.member_id,
            member_epoch=_LEAVE_EPOCH if instance_id is None else _LEAVE_FOR_NOW_EPOCH,
            instance_id=instance_id,
            topic_partitions=None,
        )
        await self._send_leave(CONSUMER_GROUP_HEARTBEAT, request)

    # -- heartbeats --

    async def _beat_once(self) -> None:
        state = await self._member_state()
        term, is_joining = self._term, self.generation == NO_GENERATION
        request = self._request(state, is_joining=is_joining)
        self._may_be_member = True
        try:
            response = await self._coordinator.request(
                CONSUMER_GROUP_HEARTBEAT, request, lane=Lane.GROUP
            )
        except TidelogError as error:
            if term == self._term:
                self._has_lost_join |= is_joining
                self._on_failure(error)
            return
        if term != self._term:
            return
        code = response.error_code
        if code is not ErrorCode.none:
            self._coordinator.note(code)
            about = f"group {self._coordinator.group_id!r}"
            self._on_failure(error_for(code, response.error_message, about=about))
            return
        self._has_lost_join = False
        self._acknowledged = state
        self._backoff.reset()
        self._failures.reset()
        self._on_answer(response)

    async def _member_state(self) -> _MemberState:
        topics = await self._member.topics()
        # Includes the assignment in progress: the partitions may be ours when this heartbeat
        # arrives, and the coordinator may give partitions that are not named to others.
        owned = self._owned | self._moving_to | (self._target or frozenset())
        return _MemberState(topics, self._member.server_pattern(), owned, self._reached_count)

    def _request(self, state: _MemberState, *, is_joining: bool) -> ConsumerGroupHeartbeatRequest:
        options, acknowledged = self._options, self._acknowledged
        is_full = is_joining or acknowledged is None
        owned: IdPartitions | None = None
        if is_joining:
            owned = frozenset()
        elif acknowledged is None or (state.owned, state.reached_count) != (
            acknowledged.owned,
            acknowledged.reached_count,
        ):
            owned = state.owned
        rebalance_timeout_ms = options.max_poll_interval_ms if is_full else -1
        names = regex = None
        if acknowledged is None or state.topics != acknowledged.topics:
            names = tuple(sorted(state.topics))
        if acknowledged is None or state.pattern != acknowledged.pattern:
            regex = state.pattern or ""
        return build(
            ConsumerGroupHeartbeatRequest,
            group_id=self._coordinator.group_id,
            member_id=self.member_id,
            member_epoch=_JOIN_EPOCH if is_joining else self.generation,
            instance_id=options.group_instance_id,
            rack_id=options.rack if is_full else None,
            rebalance_timeout=rebalance_timeout_ms * _MILLISECOND,
            subscribed_topic_names=names,
            subscribed_topic_regex=regex,
            server_assignor=options.group_remote_assignor if is_full else None,
            topic_partitions=None if owned is None else _by_topic(owned),
        )

    def _on_answer(self, response: Any) -> None:
        target = self._target
        if response.assignment is not None:
            target = _partitions_of(response.assignment)
        interval_s = response.heartbeat_interval / datetime.timedelta(seconds=1)
        self._interval_s = min(max(interval_s, _INTERVAL_S_MIN), _INTERVAL_S_MAX)
        self.member_id = response.member_id or self.member_id
        self._set_generation(int(response.member_epoch))
        if target != self._target:
            self._target = target
        if not self._has_reached_target():
            self._start_rebalance()

    def _on_failure(self, error: TidelogError) -> None:
        self._acknowledged = None
        code = error.code
        if code in _FENCED:
            self._lose(code)
            return
        # Our own join, whose answer was lost, holds the instance id until its session expires.
        is_own_place = code is ErrorCode.unreleased_instance_id and self._has_lost_join
        if error.retriable or is_own_place:
            self._interval_s = self._backoff.next_s()
            logger.info(
                "heartbeat failed, will retry",
                extra={"group_id": self._coordinator.group_id, "reason": str(error)},
            )
            return
        self._error = error
        self._put_off()
        self._lose(code)

    def _set_generation(self, generation: int) -> None:
        if generation != self.generation:
            self.generation = generation
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    def _lose(self, code: ErrorCode) -> None:
        self._end()
        super()._lose(code)

    def _end(self) -> None:
        self._is_stable = False
        self._acknowledged = None
        self._term += 1
        self._set_generation(NO_GENERATION)

    # -- the rebalance --

    async def _rebalance(self) -> None:
        """Revoke lost partitions and start heartbeats, or move to the coordinator's target."""
        if self.is_lost:
            self.is_lost = False
            await self._member.revoke(self._member.owned(), is_lost=True)
            self._owned, self._target, self._reached = frozenset(), None, None
            self._moving_to = frozenset()
        if not self._is_stable:
            self._acknowledged = None
            self._is_stable = True
            self._beat_now.set()
            return
        while not self.is_lost and not self._has_reached_target():
            target = self._target
            assert target is not None
            self._moving_to = target
            topic_ids = await self._assigned(target)
            await self._move_to(target, topic_ids)
            if len(topic_ids) < len(target):
                return  # Some topics are unknown yet: the next heartbeat tries again.

    def _on_rebalanced(self, task: asyncio.Task[None]) -> None:
        super()._on_rebalanced(task)
        if self._is_stable and self._reached is not self._target:
            self._start_rebalance()  # The target changed just before the end.

    def _has_reached_target(self) -> bool:
        return self._target is None or (
            self._reached is self._target and self._owned == self._target
        )

    async def _assigned(self, target: IdPartitions) -> Mapping[TopicPartition, UUID]:
        """Return the target's partitions by name; omits topics that are not found."""
        wanted = {topic_id for topic_id, _ in target}
        backoff = self._cluster.backoff()
        for attempt in range(1, _LOOKUPS_MAX + 1):
            names: Mapping[UUID, str] = {}
            with contextlib.suppress(TidelogError):
                names = await names_of_topics(self._cluster, wanted)
            if len(names) == len(wanted) or attempt == _LOOKUPS_MAX:
                break
            await asyncio.sleep(backoff.next_s())
        return {
            TopicPartition(names[topic_id], number): topic_id
            for topic_id, number in target
            if topic_id in names
        }

    async def _move_to(self, target: IdPartitions, assigned: Mapping[TopicPartition, UUID]) -> None:
        """Move to the assigned partitions, unless the membership ends in between."""
        owned = self._member.owned()
        reached = frozenset((topic_id, p.partition) for p, topic_id in assigned.items())
        gone = {p for p in owned if (assigned.get(p), p.partition) not in self._owned}
        # A topic that was deleted and created again has the same name but other offsets.
        replaced = gone & assigned.keys()
        for partitions, is_lost in ((replaced, True), (gone - replaced, False)):
            await self._member.revoke(partitions, is_lost=is_lost)
            if self.is_lost:
                return
        if gone:
            self._owned &= reached
            self._beat_now.set()
        added = [partition for partition in assigned if partition not in owned - gone]
        if added or gone or self._reached is not target:
            await self._member.assign_partitions(assigned, added)
        if self.is_lost:
            return
        if self._owned != reached or self._reached is not target:
            self._reached_count += 1
            self._beat_now.set()
        self._owned, self._reached, self._moving_to = reached, target, frozenset()


def _partitions_of(assignment: Any) -> IdPartitions:
    found = frozenset(
        (topic.topic_id, int(number))
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )
    if any(number < 0 for _, number in found):
        raise MalformedResponse("the coordinator assigns a partition below zero")
    return found


def _by_topic(owned: IdPartitions) -> tuple[TopicPartitions, ...]:
    numbers: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(owned):
        numbers.setdefault(topic_id, []).append(number)
    return tuple(
        build(TopicPartitions, topic_id=topic_id, partitions=tuple(some))
        for topic_id, some in numbers.items()
    )
