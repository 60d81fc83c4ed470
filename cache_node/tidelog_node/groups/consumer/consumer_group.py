"""A consumer group of KIP-848 as a state machine, without clock, socket or store.

Theory of operation. Members send heartbeats. What a member says about itself may change
what the group subscribes to: then the group epoch grows, and so it does when a member
goes or a subscribed topic changes. A heartbeat that finds the group epoch ahead of the
assignment has an assignor compute every member's target again, in a large group once an
interval (KIP-1263): who joins between two assignments is told the epoch of the first, and
its partitions after the second. Each heartbeat then brings its own member a step closer to
its target (``member_reconciliation``). Nobody waits for anybody, except for partitions that
another member has not given up yet.

Events come with the time of a monotonic clock and with the topics as they are. Whatever
an event changes has to be stored before its answer goes out (``Step.must_store``): a
coordinator that takes over knows everything that any member was told, so no member
notices but by asking elsewhere. A heartbeat that changes nothing stores nothing; only
sessions, which begin anew with a new coordinator, are not stored.

Source: KIP-848; ``GroupMetadataManager`` and ``ConsumerGroup`` of Kafka 4.1. Unlike
there, a heartbeat is decided on once its pattern is matched (``pattern_matches``), and the
epochs of a group go on from its generations when it changes its protocol.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from enum import Enum
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.consumer_groups import (
    ConsumerGroupState,
    ConsumerMember,
    MemberState,
    Partitions,
    SubscribedTopic,
)
from tidelog_core.metadata.groups import GroupRecord

from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings
from tidelog_node.groups.consumer.pattern_matches import PatternMatches
from tidelog_node.groups.consumer.reconciliation import is_reconciled, reconcile
from tidelog_node.groups.consumer.roster import ConsumerRoster
from tidelog_node.groups.deadlines import Wait
from tidelog_node.groups.epoch_group import EpochGroup
from tidelog_node.groups.heartbeat_answer import (
    Refused,
    not_a_member,
)
from tidelog_node.groups.step import Downgrade, Step
from tidelog_node.groups.subscribed_topics import TopicsByName, find_topics
from tidelog_node.groups.subscription import CONSUMER_PROTOCOL_TYPE


class ConsumerPhase(Enum):
    """Where a group stands, by Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the targets belong to an older epoch
    RECONCILING = "Reconciling"  # some member has not what it is to have
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
        self._matches: dict[str, PatternMatches] = {}  # of each pattern in the roster, at least
        self._is_behind = False  # whether topics had not been matched when they were looked up
        self._seen_subscriptions = self.roster.subscriptions_version
        self._assigned_at_ms: int | None = None  # None: not since this node has the group
        self._computing: TargetComputation | None = None  # is under way

    # Before an event: its patterns have to be matched, which may take longer than a turn.

    def patterns_to_match(self, topics: TopicsByName) -> Iterable[str]:
        """Return the patterns that an event with these topics would look up."""
        is_looked_up = topics is self._seen_topics and not self._is_behind
        return () if is_looked_up else tuple(self.roster.patterns)

    def take_matches(self, matches: Mapping[str, PatternMatches]) -> None:
        """Take in what patterns match: those above, and that of the heartbeat that follows.

        The pattern of a heartbeat that was refused is kept until the next matches at most.
        """
        if not matches:
            return
        kept = {p: self._matches[p] for p in self.roster.patterns if p in self._matches}
        self._matches = {**kept, **matches}

    # Events.

    def expire(
        self, now_ms: int, settings: ConsumerGroupSettings, spared: Container[str] = ()
    ) -> Step:
        """Time has passed: remove the members that are overdue, but none in ``spared``."""
        step = self.begin(now_ms)
        for member_id in self._deadlines.overdue(self._now_ms, spared):
            if step.downgrade is None:
                self.fence(self.member(member_id), settings)
        return step

    def computed(
        self, computation: TargetComputation, targets: Mapping[str, Partitions], *, now_ms: int
    ) -> Step:
        """The targets that a step asked for are there; members get them as they send heartbeats.

        Whoever has gone since gets none, and whoever has come waits for the next.
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
            if heir is not None:  # a static member that has come back under a new id
                found[heir.member_id] = target
        self._take_targets(computation, found)
        return step

    # Parts of events, for the modules of members of either protocol.

    def member(self, member_id: str) -> ConsumerMember:
        """Return the member. Raises ``Refused`` where there is none of this id."""
        member = self.roster.get(member_id)
        if member is None:
            raise not_a_member(member_id, self.group_id)
        return member

    def static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the static member. Raises ``Refused`` where another one has its name."""
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
        """Raise ``Refused`` where the group is full and this is not a member."""
        if len(self.roster) >= settings.members_max and member_id not in self.roster:
            raise Refused(
                ErrorCode.group_max_size_reached,
                "The consumer group has reached its maximum capacity of"
                f" {settings.members_max} members.",
            )

    def settle(
        self,
        before: ConsumerMember,
        told: ConsumerMember,
        *,
        seen_epoch: int,
        owned: Partitions | None,
        settings: ConsumerGroupSettings,
        topics: TopicsByName,
    ) -> ConsumerMember:
        """Take in what a member says of itself, and return it a step closer to its target.

        ``before`` is what was known of it: nothing but its id where it is new. ``seen_epoch``
        is the epoch that it has said to be in.
        """
        if self.is_empty:
            self.phase_since_ms = self._now_ms
        if told != before or told.member_id not in self.roster:
            self.step.must_store = True
            self.roster.put(told)
        is_bumped = self.epoch == 0 or _subscription(told) != _subscription(before)
        # Whether targets are still to be asked for in this epoch, and so for all that is known.
        is_due = self.epoch > self._asked_epoch
        self._look_up(topics)
        if is_bumped or (self.has_changed_topics and not is_due):
            self.epoch += 1
        self.topics_hash = self._found_hash
        if self.epoch > self.assignment_epoch and self._may_compute(settings):
            self._compute(settings)
        if self.epoch > self.assignment_epoch:
            self._drop_unsubscribed(told.member_id)
        member = self.member(told.member_id)
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
        """Give a static member's place and partitions to a new one, and return that."""
        new = dataclasses.replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        self.roster.replace(old, new)
        self._deadlines.forget(old.member_id)
        self.step.must_store = True
        return new

    def remove(self, member_ids: Iterable[str]) -> None:
        """Take members out; those who stay get their partitions with their next heartbeats."""
        for member_id in member_ids:
            self._drop(member_id)
        self.epoch += 1

    def fence(self, member: ConsumerMember, settings: ConsumerGroupSettings) -> None:
        """Take a member out. Where only classic ones stay, the group may be theirs again."""
        self._drop(member.member_id)
        if member.classic is None and self.can_be_classic(settings):
            # In the generation that they are in: so they hear of a rebalance, and keep what
            # they have until they join.
            self.step.downgrade = Downgrade(must_rebalance=True)
        else:
            self.epoch += 1

    def can_be_classic(self, settings: ConsumerGroupSettings) -> bool:
        """Return whether only classic members are left, and the group may follow them."""
        return (
            settings.can_downgrade
            and 0 < len(self.roster) <= settings.classic_members_max
            and self.roster.classic_count == len(self.roster)
        )

    def expect(self, member_id: str, wait: Wait, timeout_ms: int) -> None:
        """Have the member removed unless it does its part in time, counted from now."""
        self._deadlines.set(member_id, wait, self._now_ms + timeout_ms)

    def expect_at_first(self, member_id: str, wait: Wait, timeout_ms: int) -> None:
        """Do the same where the time is not running yet."""
        if not self._deadlines.has(member_id, wait):
            self.expect(member_id, wait, timeout_ms)

    def expect_no_more(self, member_id: str, wait: Wait) -> None:
        """The member has done its part."""
        self._deadlines.clear(member_id, wait)

    # Questions, and what other requests of members mean to the group.

    @property
    def phase(self) -> ConsumerPhase:
        """Where the group stands."""
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

    def validate_commit(self, member_id: str, epoch: int, *, knows_epochs: bool) -> ErrorCode:
        """Return whether the caller may commit offsets.

        ``knows_epochs`` is false before version 9 of OffsetCommit, which cannot be told of
        a stale epoch.
        """
        if self._is_dead:
            return ErrorCode.coordinator_not_available
        if epoch < 0 and self.is_empty:
            return ErrorCode.none
        member = self.roster.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if member.classic is None and not knows_epochs:
            return ErrorCode.unsupported_version
        return _validate_epoch(member, epoch)

    def validate_transactional_commit(
        self, member_id: str, *, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return whether a producer may commit the group's offsets with its transaction.

        One that says nothing of member and epoch is welcome at any time; TxnOffsetCommit
        does not know of stale epochs. Source: ``ConsumerGroup.validateOffsetCommit``.
        """
        if generation < 0 and not member_id and group_instance_id is None:
            return ErrorCode.coordinator_not_available if self._is_dead else ErrorCode.none
        error = self.validate_commit(member_id, generation, knows_epochs=True)
        return ErrorCode.illegal_generation if error is ErrorCode.stale_member_epoch else error

    def validate_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return whether the caller may be told committed offsets."""
        if member_id is None and epoch < 0:
            return ErrorCode.none
        member = self.roster.get(member_id or "")
        return ErrorCode.unknown_member_id if member is None else _validate_epoch(member, epoch)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether members consume the topic."""
        self._require_topics()  # and what the patterns match with them
        return topic in self.roster.topics or any(
            topic in self._matches[pattern].names for pattern in self.roster.patterns
        )

    def preferred_assignor(self, settings: ConsumerGroupSettings) -> str:
        """Return the assignor that most members ask for, or the default."""
        votes = self.roster.assignors
        return max(settings.assignors, key=lambda name: votes[name])

    def to_record(self, *, shard: int, clock_offset_ms: int, version: int) -> GroupRecord:
        """Return the group as it is stored; ``clock_offset_ms`` is wall minus event clock."""
        return GroupRecord(
            shard=shard,
            group_id=self.group_id,
            phase=self.phase.value,
            phase_since_ms=self.phase_since_ms + clock_offset_ms,
            generation=self.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=None,
            leader=None,
            members=(),
            consumer=ConsumerGroupState(
                assignment_epoch=self.assignment_epoch,
                topics_hash=self.topics_hash,
                members=tuple(self.roster),
            ),
            version=version,
        )

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
        """Return the stored group; its members get fresh sessions and time to give up."""
        stored = record.consumer
        assert stored is not None
        group = cls(record.group_id, now_ms=now_ms, epoch=record.generation)
        group.phase_since_ms = record.phase_since_ms - clock_offset_ms
        group.assignment_epoch = stored.assignment_epoch
        group.topics_hash = stored.topics_hash
        if stored.members:
            group._restored_topics = topics
        group.take_in(stored.members, settings)
        return group

    def take_in(self, members: Iterable[ConsumerMember], settings: ConsumerGroupSettings) -> None:
        """Begin with these members, who have their partitions already."""
        for member in members:
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

    # Subscriptions and targets.

    def _look_up(self, topics: TopicsByName) -> None:
        """Look the subscribed topics up where they may be others than before."""
        version = self.roster.subscriptions_version
        is_other = topics is not self._seen_topics or version != self._seen_subscriptions
        if is_other or self._is_behind:
            self._seen_subscriptions = version
            self._find_topics(topics)

    def _subscribed(self, topics: TopicsByName) -> dict[str, SubscribedTopic]:
        self._matches = {pattern: self._matches[pattern] for pattern in self.roster.patterns}
        self._is_behind = not all(matched.is_current for matched in self._matches.values())
        names = set(self.roster.topics).union(*(one.names for one in self._matches.values()))
        return find_topics(names, topics)

    def _names_of(self, member: ConsumerMember) -> frozenset[str]:
        names = frozenset(member.subscribed_topics)
        if member.subscribed_pattern:
            names |= self._matches[member.subscribed_pattern].names
        return names

    @property
    def _asked_epoch(self) -> int:
        """The epoch of the newest targets, also of those that are being computed."""
        return self.assignment_epoch if self._computing is None else self._computing.epoch

    def _drop_unsubscribed(self, member_id: str) -> None:
        """Take out of the member's target what it has ceased to subscribe to since."""
        member = self.member(member_id)
        known = (self._topics.get(name) for name in self._names_of(member))
        topic_ids = {topic.topic_id for topic in known if topic is not None}
        target = frozenset(p for p in member.target if p.topic_id in topic_ids)
        if target != member.target:
            self.roster.put(dataclasses.replace(member, target=target))
            self.step.must_store = True

    def _may_compute(self, settings: ConsumerGroupSettings) -> bool:
        """Whether targets may be computed now, which takes time in proportion to members."""
        if self._computing is not None:
            return False
        return (
            len(self.roster) <= settings.assigned_at_once_members_max
            or self._assigned_at_ms is None
            or self._now_ms - self._assigned_at_ms >= settings.assignment_interval_ms
        )

    def _compute(self, settings: ConsumerGroupSettings) -> None:
        """Compute targets, or have it done by whoever carries the step out."""
        computation = self._computation(settings)
        if len(self.roster) <= settings.assigned_at_once_members_max:
            self._take_targets(computation, computation.run())
        else:
            self._computing = self.step.computes = computation

    def _computation(self, settings: ConsumerGroupSettings) -> TargetComputation:
        topic_ids: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        subscribers: dict[str, Subscriber] = {}
        for member in self.roster:
            subscription = _subscription(member)
            ids = topic_ids.get(subscription)
            if ids is None:
                ids = topic_ids[subscription] = frozenset(
                    topic.topic_id
                    for name in self._names_of(member)
                    if (topic := self._topics.get(name)) is not None
                )
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
