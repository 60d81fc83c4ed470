"""A share group of KIP-932 as a state machine, without clock, socket or store.

Theory of operation. As in a consumer group, members send their subscriptions by heartbeat. The
group epoch grows when those or a subscribed topic change or a member leaves, and at the next
heartbeat the assignor computes every member's target again. But a partition may have many members,
and its leader decides record by record what each of them may read. So no member gives partitions up
for another: each gets its target with its next heartbeat.

Changes by an event have to be stored before its answer is sent (``Step.must_store``), so the
members do not notice a change of coordinator. A heartbeat without a change stores nothing. Sessions
are not stored; they begin again with a new coordinator.

Source: KIP-932; ``GroupMetadataManager`` and ``ShareGroup`` of Kafka 4.1. Unlike there, a
partition is assigned at once: its share partition begins with the first fetch, without a
share coordinator before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import SubscribedTopic
from tidelog_core.metadata.coordination.groups import GroupRecord
from tidelog_core.metadata.coordination.share_groups import (
    SHARE_PROTOCOL_TYPE,
    ShareGroupState,
    ShareMember,
)

from tidelog_node.groups.assignment.simple_assignor import assign_shared
from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.deadlines import Wait
from tidelog_node.groups.epoch_group import EpochGroup
from tidelog_node.groups.heartbeat_answer import (
    JOIN_EPOCH,
    HeartbeatAnswer,
    Refused,
    in_other_epoch,
    not_a_member,
)
from tidelog_node.groups.share.heartbeat import ShareGroupSettings, ShareHeartbeat
from tidelog_node.groups.step import Step
from tidelog_node.groups.subscribed_topics import TopicsByName, find_topics


class SharePhase(Enum):
    """The group's phase, by Kafka's names."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroup(EpochGroup):
    """One group. Events must come one at a time, with a time that never goes back."""

    protocol_type = SHARE_PROTOCOL_TYPE

    def __init__(self, group_id: str, *, now_ms: int) -> None:
        super().__init__(group_id, now_ms=now_ms)
        self._members: dict[str, ShareMember] = {}

    # -- events --

    def heartbeat(
        self,
        request: ShareHeartbeat,
        *,
        now_ms: int,
        settings: ShareGroupSettings,
        topics: TopicsByName,
    ) -> tuple[HeartbeatAnswer, Step]:
        """Take a heartbeat: a join, a report, a sign of life or a leave.

        If the answer is an error, the group is unchanged.
        """
        step = self.begin(now_ms)
        try:
            if self._is_dead:
                raise Refused(ErrorCode.coordinator_not_available, "The group was deleted.")
            if request.is_leaving:
                return self._leave(request), step
            return self._heartbeat(request, settings=settings, topics=topics), step
        except Refused as refusal:
            return refusal.answer, step

    def expire(self, now_ms: int) -> Step:
        """Remove the overdue members."""
        step = self.begin(now_ms)
        for member_id in self._deadlines.overdue(self._now_ms):
            self._remove(member_id)
        return step

    # -- state --

    @property
    def phase(self) -> SharePhase:
        """The group's phase."""
        if self._is_dead:
            return SharePhase.DEAD
        return SharePhase.EMPTY if self.is_empty else SharePhase.STABLE

    @property
    def members(self) -> Iterator[ShareMember]:
        """The members in the order of joining."""
        return iter(self._members.values())

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self._members

    def to_record(self, *, shard: int, clock_offset_ms: int, version: int) -> GroupRecord:
        """Return the group as it is stored; ``clock_offset_ms`` is wall minus event clock."""
        share = ShareGroupState(
            assignment_epoch=self.assignment_epoch,
            topics_hash=self.topics_hash,
            members=tuple(self._members.values()),
        )
        record = self._record(shard=shard, clock_offset_ms=clock_offset_ms, version=version)
        return dataclasses.replace(record, share=share)

    @classmethod
    def restore(
        cls,
        record: GroupRecord,
        *,
        now_ms: int,
        clock_offset_ms: int,
        settings: ShareGroupSettings,
        topics: TopicsByName,
    ) -> ShareGroup:
        """Return the stored group; its members get new sessions."""
        stored = record.share
        assert stored is not None
        group = cls(record.group_id, now_ms=now_ms)
        group._take_stored(record, stored, clock_offset_ms=clock_offset_ms, topics=topics)
        for member in stored.members:
            group._members[member.member_id] = member
            group._expect(member.member_id, settings)
        return group

    # -- heartbeats --

    def _heartbeat(
        self,
        request: ShareHeartbeat,
        *,
        settings: ShareGroupSettings,
        topics: TopicsByName,
    ) -> HeartbeatAnswer:
        member_id = request.member_id
        if len(self._members) >= settings.members_max and member_id not in self._members:
            raise Refused(
                ErrorCode.group_max_size_reached,
                f"The share group has reached its maximum capacity of {settings.members_max}"
                " members.",
            )
        before = self._caller(request)
        member = _merge(before, request)
        if member != before or member_id not in self._members:
            self.step.must_store = True
            if self.is_empty:
                self.phase_since_ms = self._now_ms
            self._members[member_id] = member
        is_bumped = member.subscribed_topics != before.subscribed_topics
        is_due = self.epoch > self.assignment_epoch
        if topics is not self._seen_topics or is_bumped or is_due:
            self._find_topics(topics)
        if is_bumped or (self.has_changed_topics and not is_due):
            self.epoch += 1
        self.topics_hash = self._found_hash
        if self.epoch > self.assignment_epoch:
            self._assign()
        member = self._reconcile(member_id)
        self._expect(member_id, settings)
        must_tell = request.is_full or member.assigned != before.assigned
        return HeartbeatAnswer(
            member_id=member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            assigned=member.assigned if must_tell else None,
        )

    def _caller(self, request: ShareHeartbeat) -> ShareMember:
        """Return the caller, new or known. Raises ``Refused``."""
        member = self._members.get(request.member_id)
        if member is None:
            if request.member_epoch != JOIN_EPOCH:
                raise not_a_member(request.member_id, self.group_id)
            return ShareMember(member_id=request.member_id)
        # A caller in the previous epoch has not got the last answer.
        if request.member_epoch in (member.epoch, member.previous_epoch):
            return member
        note = ""
        if request.member_epoch < member.epoch:
            note = f", and it does not match the previous member epoch ({member.previous_epoch})"
        raise in_other_epoch("share", received=request.member_epoch, known=member.epoch, note=note)

    def _leave(self, request: ShareHeartbeat) -> HeartbeatAnswer:
        if request.member_id not in self._members:
            raise not_a_member(request.member_id, self.group_id)
        self._remove(request.member_id)
        return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)

    def _remove(self, member_id: str) -> None:
        """Remove a member; the others get its partitions by heartbeat."""
        del self._members[member_id]
        self._deadlines.forget(member_id)
        self.epoch += 1
        self.step.must_store = True
        if self.is_empty:
            self.phase_since_ms = self._now_ms

    def _expect(self, member_id: str, settings: ShareGroupSettings) -> None:
        self._deadlines.set(member_id, Wait.SESSION, self._now_ms + settings.session_timeout_ms)

    # -- subscriptions and targets --

    def _subscribed(self, topics: TopicsByName) -> dict[str, SubscribedTopic]:
        names = {name for member in self.members for name in member.subscribed_topics}
        return find_topics(names, topics)

    def _assign(self) -> None:
        subscribers = {
            member.member_id: Subscriber(
                instance_id=None,
                topic_ids=frozenset(
                    topic.topic_id
                    for name in member.subscribed_topics
                    if (topic := self._topics.get(name)) is not None
                ),
                target=member.target,
            )
            for member in self.members
        }
        counts = {topic.topic_id: topic.partition_count for topic in self._topics.values()}
        for member_id, target in assign_shared(subscribers, counts).items():
            self._members[member_id] = dataclasses.replace(self._members[member_id], target=target)
        self.assignment_epoch = self.epoch
        self.step.must_store = True

    def _reconcile(self, member_id: str) -> ShareMember:
        """Give the member its target if it is not in the assignment's epoch."""
        member = self._members[member_id]
        if member.epoch != self.assignment_epoch:
            member = dataclasses.replace(
                member,
                epoch=self.assignment_epoch,
                previous_epoch=member.epoch,
                assigned=member.target,
            )
            self._members[member_id] = member
            self.step.must_store = True
        return member


def _merge(before: ShareMember, request: ShareHeartbeat) -> ShareMember:
    """Return the member with the request's values; absent ones stay."""
    names = request.subscribed_topics
    return dataclasses.replace(
        before,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        subscribed_topics=before.subscribed_topics if names is None else tuple(sorted(set(names))),
        client_id=request.client_id,
        client_host=request.client_host,
    )
