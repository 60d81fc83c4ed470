"""A consumer group of KIP-848 as a state machine, without clock, socket or store.

Theory of operation. Members send heartbeats. The group epoch grows when a member changes the
group's subscription, when a member leaves, and when a subscribed topic changes. At a heartbeat with
the group epoch ahead of the assignment, an assignor computes every member's target again, in a
large group once an interval (KIP-1263): a member that joins between two assignments gets the epoch
of the first, and its partitions after the second. Each heartbeat then brings its own member a step
closer to its target (``reconciliation``). A member waits only for partitions that another member
has not given up yet.

Events come with the time of a monotonic clock and with the current topics. Changes by an event have
to be stored before its answer is sent (``Step.must_store``). So the next coordinator knows every
answer that the members got, and the members only have to find it. A heartbeat without a change
stores nothing. Only sessions are not stored; they begin again with a new coordinator.

Source: KIP-848; ``GroupMetadataManager`` and ``ConsumerGroup`` of Kafka 4.1. Unlike there, a
heartbeat is decided after its pattern is matched (``pattern_matches``), and when a group changes
its protocol its epochs continue its generations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Hashable, Iterable, Mapping
from enum import Enum
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import (
    ConsumerGroupState,
    ConsumerMember,
    MemberState,
    Partitions,
    SubscribedTopic,
)
from tidelog_core.metadata.coordination.groups import GroupRecord

from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.classic_messages import GroupCaller
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings
from tidelog_node.groups.consumer.pattern_view import PatternView
from tidelog_node.groups.consumer.reconciliation import is_reconciled, reconcile
from tidelog_node.groups.consumer.roster import ConsumerRoster
from tidelog_node.groups.consumer.subscriptions import Subscriptions
from tidelog_node.groups.deadlines import Wait
from tidelog_node.groups.epoch_group import EpochGroup
from tidelog_node.groups.heartbeat_answer import (
    Refused,
    not_a_member,
)
from tidelog_node.groups.step import Downgrade, Step
from tidelog_node.groups.subscribed_topics import TopicsByName
from tidelog_node.groups.subscription import CONSUMER_PROTOCOL_TYPE


class ConsumerPhase(Enum):
    """The group's phase, by Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the targets are of an older epoch
    RECONCILING = "Reconciling"  # some member has not reached its target
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(EpochGroup):
    """One group. Events must come one at a time, with a time that never goes back."""

    protocol_type = CONSUMER_PROTOCOL_TYPE
    uses_consumer_protocol = True
    knows_subscriptions = True

    def __init__(self, group_id: str, *, now_ms: int, epoch: int = 0) -> None:
        """``epoch`` is the last generation of the classic group that this one follows."""
        super().__init__(group_id, now_ms=now_ms, epoch=epoch)
        self.roster = ConsumerRoster()
        self.subscriptions = Subscriptions(self.roster)
        self._assigned_at_ms: int | None = None  # None: not on this node
        self._computing: TargetComputation | None = None  # the running computation

    # -- before an event, whose patterns are matched by the caller --

    def patterns_to_match(self, topics: TopicsByName) -> Iterable[PatternView]:
        """Return the views of patterns that an event with these topics would look up."""
        is_looked_up = topics is self._seen_topics and not self.subscriptions.lacks_matches
        return () if is_looked_up else tuple(self.roster.patterns)

    # -- events --

    def expire(
        self, now_ms: int, settings: ConsumerGroupSettings, spared: Container[str] = ()
    ) -> Step:
        """Remove the overdue members, except those in ``spared``."""
        step = self.begin(now_ms)
        for member_id in self._deadlines.overdue(self._now_ms, spared):
            if step.downgrade is None:
                self.fence(self.member(member_id), settings)
        return step

    def computed(
        self, computation: TargetComputation, targets: Mapping[str, Partitions], *, now_ms: int
    ) -> Step:
        """Take the targets of a step's computation; members get them by heartbeat.

        Members that have left since get none, members that have joined wait for the next ones.
        """
        step = self.begin(now_ms)
        if self._computing is not computation:
            return step
        self._computing = None
        if self._is_dead:
            return step
        found: dict[str, Partitions] = {}
        for member_id, target in targets.items():
            if member_id in self.roster:
                found[member_id] = target
                continue
            instance_id = computation.subscribers[member_id].instance_id
            heir = None if instance_id is None else self.roster.static(instance_id)
            if heir is not None:  # a static member that has returned under a new id
                found[heir.member_id] = target
        self._take_targets(computation, found)
        return step

    # -- parts of events, for the modules of members of either protocol --

    def member(self, member_id: str) -> ConsumerMember:
        """Return the member. Raises ``Refused`` for an unknown id."""
        member = self.roster.get(member_id)
        if member is None:
            raise not_a_member(member_id, self.group_id)
        return member

    def static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the static member. Raises ``Refused`` if another one has its instance id."""
        member = self.roster.static(instance_id)
        if member is None:
            raise Refused(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise Refused(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member"
                f" {member.member_id}.",
            )
        return member

    def require_place(self, member_id: str, settings: ConsumerGroupSettings) -> None:
        """Raise ``Refused`` if the group is full and the caller is not a member."""
        if len(self.roster) >= settings.members_max and member_id not in self.roster:
            raise Refused(
                ErrorCode.group_max_size_reached,
                "The consumer group has reached its maximum capacity of"
                f" {settings.members_max} members.",
            )

    def settle(
        self,
        before: ConsumerMember,
        reported: ConsumerMember,
        *,
        seen_epoch: int,
        owned: Partitions | None,
        settings: ConsumerGroupSettings,
        topics: TopicsByName,
        sees_others: bool = False,
    ) -> ConsumerMember:
        """Take a member's report, and return the member a step closer to its target.

        ``before`` is the known member, only an id for a new one. ``seen_epoch`` is the epoch in the
        member's request. ``sees_others``: its rights have changed what it subscribes to.
        """
        if self.is_empty:
            self.phase_since_ms = self._now_ms
        if reported != before or reported.member_id not in self.roster:
            self.step.must_store = True
            self.roster.put(reported)
        is_other = _subscription(reported) != _subscription(before)
        is_bumped = self.epoch == 0 or is_other or sees_others
        # Whether targets of this epoch are yet to be computed: they will include this change.
        is_due = self.epoch > self._asked_epoch
        self._look_up(topics)
        if is_bumped or (self.has_changed_topics and not is_due):
            self.epoch += 1
        self.topics_hash = self._found_hash
        if self.epoch > self.assignment_epoch and self._may_compute(settings):
            self._compute(settings)
        if self.epoch > self.assignment_epoch:
            self._drop_unsubscribed(reported.member_id)
        member = self.member(reported.member_id)
        moved = reconcile(
            member,
            target_epoch=self.assignment_epoch,
            seen_epoch=seen_epoch,
            owned=owned,
            is_free=self.roster.is_free,
        )
        if moved is not member:
            self.step.must_store = True
            self.roster.put(moved)
            if moved.state is MemberState.UNREVOKED_PARTITIONS and moved.classic is None:
                self.expect(moved.member_id, Wait.REBALANCE, moved.rebalance_timeout_ms)
            else:
                self.expect_no_more(moved.member_id, Wait.REBALANCE)
        return moved

    def replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give a static member's place and partitions to a new member, and return that one."""
        new = dataclasses.replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        self.roster.replace(old, new)
        self._deadlines.forget(old.member_id)
        self.step.must_store = True
        return new

    def remove(self, member_ids: Iterable[str]) -> None:
        """Remove members; the others get their partitions by heartbeat."""
        for member_id in member_ids:
            self._drop(member_id)
        self.epoch += 1

    def fence(self, member: ConsumerMember, settings: ConsumerGroupSettings) -> None:
        """Remove a member. If only classic ones are left, the group may become a classic one."""
        self._drop(member.member_id)
        if member.classic is None and self.can_be_classic(settings):
            # In their current generation: so they learn of a rebalance, and keep their partitions
            # until they join.
            self.step.downgrade = Downgrade(must_rebalance=True)
        else:
            self.epoch += 1

    def can_be_classic(self, settings: ConsumerGroupSettings) -> bool:
        """Return whether only classic members are left and the group may become a classic one."""
        return (
            settings.can_downgrade
            and 0 < len(self.roster) <= settings.classic_members_max
            and self.roster.classic_count == len(self.roster)
        )

    def expect(self, member_id: str, wait: Wait, timeout_ms: int) -> None:
        """Remove the member unless it acts within the time from now."""
        self._deadlines.set(member_id, wait, self._now_ms + timeout_ms)

    def expect_join(self, member: ConsumerMember) -> None:
        """Remove the classic member unless it joins in time, from when it was first asked to."""
        if not self._deadlines.has(member.member_id, Wait.JOIN):
            self.expect(member.member_id, Wait.JOIN, member.rebalance_timeout_ms)

    def expect_no_more(self, member_id: str, wait: Wait) -> None:
        """Remove the deadline: the member has acted."""
        self._deadlines.clear(member_id, wait)

    # -- state, and other requests of members --

    @property
    def phase(self) -> ConsumerPhase:
        """The group's phase."""
        if self._is_dead:
            return ConsumerPhase.DEAD
        if self.is_empty:
            return ConsumerPhase.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerPhase.ASSIGNING
        if all(is_reconciled(member, self.assignment_epoch) for member in self.roster):
            return ConsumerPhase.STABLE
        return ConsumerPhase.RECONCILING

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not len(self.roster)

    def validate_commit(self, caller: GroupCaller, *, knows_epochs: bool) -> ErrorCode:
        """Return whether the caller may commit offsets.

        ``knows_epochs`` is false before version 9 of OffsetCommit, which has no error for a stale
        epoch.
        """
        if self._is_dead:
            return ErrorCode.coordinator_not_available
        if caller.generation < 0 and self.is_empty:
            return ErrorCode.none
        member = self.roster.get(caller.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if member.classic is None and not knows_epochs:
            return ErrorCode.unsupported_version
        return _validate_epoch(member, caller.generation)

    def validate_transactional_commit(self, caller: GroupCaller) -> ErrorCode:
        """Return whether a producer may commit the group's offsets with its transaction.

        A producer that gives neither member nor epoch may always commit. TxnOffsetCommit has no
        error for a stale epoch. Source: ``ConsumerGroup.validateOffsetCommit``.
        """
        if caller.is_no_member:
            return ErrorCode.coordinator_not_available if self._is_dead else ErrorCode.none
        error = self.validate_commit(caller, knows_epochs=True)
        return ErrorCode.illegal_generation if error is ErrorCode.stale_member_epoch else error

    def validate_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return whether the caller may read committed offsets."""
        if member_id is None and epoch < 0:
            return ErrorCode.none
        member = self.roster.get(member_id or "")
        return ErrorCode.unknown_member_id if member is None else _validate_epoch(member, epoch)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether members consume the topic."""
        self._require_topics()
        if self.roster.unseen and topic in self._topics:
            return True
        return self.subscriptions.include(topic)

    def preferred_assignor(self, settings: ConsumerGroupSettings) -> str:
        """Return the assignor that most members prefer, or the default."""
        votes = self.roster.assignors
        return max(settings.assignors, key=lambda name: votes[name])

    def to_record(self, *, shard: int, clock_offset_ms: int, version: int) -> GroupRecord:
        """Return the group as it is stored; ``clock_offset_ms`` is wall minus event clock."""
        consumer = ConsumerGroupState(
            assignment_epoch=self.assignment_epoch,
            topics_hash=self.topics_hash,
            members=tuple(self.roster),
        )
        record = self._record(shard=shard, clock_offset_ms=clock_offset_ms, version=version)
        return dataclasses.replace(record, consumer=consumer)

    @classmethod
    def restore(
        cls,
        record: GroupRecord,
        *,
        now_ms: int,
        clock_offset_ms: int,
        settings: ConsumerGroupSettings,
        topics: TopicsByName,
    ) -> ConsumerGroup:
        """Return the stored group; its members get new sessions and revocation deadlines."""
        stored = record.consumer
        assert stored is not None
        group = cls(record.group_id, now_ms=now_ms)
        group._take_stored(record, stored, clock_offset_ms=clock_offset_ms, topics=topics)
        group.take_in(stored.members, settings)
        return group

    def take_in(self, members: Iterable[ConsumerMember], settings: ConsumerGroupSettings) -> None:
        """Add these members, which have their partitions already."""
        for member in members:
            if settings.hides_topics and member.subscribed_pattern:
                self.roster.set_unseen(member.member_id)
            self.roster.put(member)
            classic = member.classic
            session_ms = (
                settings.session_timeout_ms if classic is None else classic.session_timeout_ms
            )
            self.expect(member.member_id, Wait.SESSION, session_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS and classic is None:
                self.expect(member.member_id, Wait.REBALANCE, member.rebalance_timeout_ms)

    def _drop(self, member_id: str) -> None:
        self.roster.remove(member_id)
        self._deadlines.forget(member_id)
        self.step.must_store = True
        if self.is_empty:
            self.phase_since_ms = self._now_ms

    # -- subscriptions and targets --

    def _look_up(self, topics: TopicsByName) -> None:
        """Look the subscribed topics up if they may have changed."""
        ours = self.subscriptions
        if topics is not self._seen_topics or ours.has_changed or ours.lacks_matches:
            self._find_topics(topics)

    def _subscribed(self, topics: TopicsByName) -> dict[str, SubscribedTopic]:
        return self.subscriptions.find(topics)

    def _ids_of(self, member: ConsumerMember) -> frozenset[UUID]:
        """Return the ids of the topics that the member subscribes to."""
        found = self._topics
        names = self.subscriptions.names_of(member, found)
        return frozenset(found[name].topic_id for name in names if name in found)

    @property
    def _asked_epoch(self) -> int:
        """The epoch of the newest targets, including those being computed."""
        return self.assignment_epoch if self._computing is None else self._computing.epoch

    def _drop_unsubscribed(self, member_id: str) -> None:
        """Remove partitions of topics that the member no longer subscribes to from its target."""
        member = self.member(member_id)
        topic_ids = self._ids_of(member)
        target = frozenset(p for p in member.target if p.topic_id in topic_ids)
        if target != member.target:
            self.roster.put(dataclasses.replace(member, target=target))
            self.step.must_store = True

    def _may_compute(self, settings: ConsumerGroupSettings) -> bool:
        """Whether targets may be computed now; the cost grows with the number of members."""
        if self._computing is not None:
            return False
        return (
            len(self.roster) <= settings.assigned_at_once_members_max
            or self._assigned_at_ms is None
            or self._now_ms - self._assigned_at_ms >= settings.assignment_interval_ms
        )

    def _compute(self, settings: ConsumerGroupSettings) -> None:
        """Compute targets, or leave that to the caller of the step for a large group."""
        computation = self._computation(settings)
        if len(self.roster) <= settings.assigned_at_once_members_max:
            self._take_targets(computation, computation.run())
        else:
            self._computing = self.step.computes = computation

    def _computation(self, settings: ConsumerGroupSettings) -> TargetComputation:
        topic_ids: dict[Hashable, frozenset[UUID]] = {}
        subscribers: dict[str, Subscriber] = {}
        for member in self.roster:
            is_unseen = member.member_id in self.roster.unseen
            view = member.member_id if is_unseen else self.roster.view_of(member)
            subscription = member.subscribed_topics, view
            ids = topic_ids.get(subscription)
            if ids is None:
                ids = topic_ids[subscription] = self._ids_of(member)
            subscribers[member.member_id] = Subscriber(
                instance_id=member.instance_id, topic_ids=ids, target=member.target
            )
        return TargetComputation(
            epoch=self.epoch,
            assignor=self.preferred_assignor(settings),
            subscribers=subscribers,
            partition_counts={t.topic_id: t.partition_count for t in self._topics.values()},
        )

    def _take_targets(
        self, computation: TargetComputation, targets: Mapping[str, Partitions]
    ) -> None:
        self.roster.set_targets(targets)
        self.assignment_epoch = computation.epoch
        self._assigned_at_ms = self._now_ms
        self.step.must_store = True


def _subscription(member: ConsumerMember) -> tuple[tuple[str, ...], str]:
    return member.subscribed_topics, member.subscribed_pattern or ""


def _validate_epoch(member: ConsumerMember, epoch: int) -> ErrorCode:
    if epoch == member.epoch:
        return ErrorCode.none
    if member.classic is not None:
        return ErrorCode.illegal_generation
    return ErrorCode.stale_member_epoch
