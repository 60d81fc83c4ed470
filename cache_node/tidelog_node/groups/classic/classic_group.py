"""A classic consumer group as a state machine, without clock, socket or store.

Events (join, sync, heartbeat, leave, time) come in with the time of a monotonic clock. A ``Step``
comes out: whether the group must be stored, and which waiting requests to answer after that. The
phases:

    Empty                no members; offsets may be stored
    PreparingRebalance   members are to (re)join; joins wait
    CompletingRebalance  a generation has begun; syncs wait for the leader's assignment
    Stable               every member may have its assignment
    Dead                 deleted; its id may be used again by another group

A rebalance: a join, leave or expiry puts a Stable group into PreparingRebalance. Heartbeats answer
REBALANCE_IN_PROGRESS until members rejoin. When all have, or at the rebalance timeout, the
generation grows by one, joins are answered and the leader gets all members' metadata. Its sync has
the assignment, and every sync is answered.

Source: ``GroupMetadataManager`` (classicGroup*) and ``ClassicGroup`` of Kafka 4.
Unlike there, a generation is stored when it begins, not only when it is assigned, so that the next
coordinator never uses its number again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import Enum

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.groups import GroupRecord

from tidelog_node.groups.classic.member import Member
from tidelog_node.groups.classic.rebalance_wait import RebalanceWait
from tidelog_node.groups.classic.roster import Roster
from tidelog_node.groups.classic_messages import (
    UNKNOWN_MEMBER_ID,
    GroupCaller,
    GroupLimits,
    JoinAnswer,
    JoinedMember,
    MemberIdentity,
    SyncAnswer,
)
from tidelog_node.groups.deadlines import MemberDeadlines, Wait
from tidelog_node.groups.step import Step
from tidelog_node.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics


class Phase(Enum):
    """The group's phase, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """One group. Events must come one at a time, with a time that never goes back."""

    def __init__(self, group_id: str, *, now_ms: int, generation: int = 0) -> None:
        """``generation`` is the last epoch of the consumer group that this one follows."""
        self.group_id = group_id
        self.phase = Phase.EMPTY
        self.phase_since_ms = now_ms
        self.generation = generation  # never decreases
        self.protocol_type: str | None = None  # None: never had a member
        self.protocol_name: str | None = None  # chosen for each generation
        self.roster = Roster()
        self.pending_members: dict[str, int] = {}  # assigned ids, and until when they may join
        self._subscribed_topics: frozenset[str] | None = None
        self._deadlines = MemberDeadlines()  # of members' sessions and assigned ids
        self.wait = RebalanceWait()
        self._now_ms = now_ms
        self.step = Step()

    # -- events --

    def heartbeat(self, caller: GroupCaller, *, now_ms: int) -> ErrorCode:
        """Renew a member's session. The answer says whether to rejoin."""
        self.begin(now_ms)
        error = self.validate_member(caller.member_id, caller.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if caller.generation != self.generation:
            return ErrorCode.illegal_generation
        self.renew_session(self.member(caller.member_id))
        if self.phase is Phase.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(
        self, identities: Sequence[MemberIdentity], *, now_ms: int
    ) -> tuple[list[ErrorCode], Step]:
        """Remove members, or static ones for an administrator. One error code each."""
        step = self.begin(now_ms)
        if self.phase is Phase.DEAD:
            return [ErrorCode.coordinator_not_available for _ in identities], step
        errors = [self._leave_one(identity) for identity in identities]
        if ErrorCode.none in errors:
            self.rebalance_or_complete_join()
        return errors, step

    def expire(self, now_ms: int, spared: Container[str] = ()) -> Step:
        """Drop overdue members, except those in ``spared``; end overdue phases."""
        step = self.begin(now_ms)
        for member_id in self._deadlines.overdue(now_ms, spared):
            if self.pending_members.get(member_id, now_ms + 1) <= now_ms:
                del self.pending_members[member_id]
                self.complete_join_if_all_joined()
            member = self.roster.get(member_id)
            if member is not None:
                self._expire_session(member)
        wait = self.wait
        if wait.join_deadline_ms is not None and wait.join_deadline_ms <= now_ms:
            self._expire_join()
        if wait.sync_deadline_ms is not None and wait.sync_deadline_ms <= now_ms:
            self._expire_sync()
        return step

    def kill(self) -> None:
        """Mark the group as deleted. It must be empty."""
        assert self.phase is Phase.EMPTY
        self.phase = Phase.DEAD

    def rebalance(self, now_ms: int) -> Step:
        """Have a stable group's members rejoin without an event of theirs."""
        step = self.begin(now_ms)
        self.prepare_rebalance(None)
        return step

    def abandon(self, now_ms: int) -> Step:
        """Fail the waiting requests: their members have to join the consumer group."""
        step = self.begin(now_ms)
        for member in self.roster:
            self.fail_join(member, ErrorCode.rebalance_in_progress)
            self.fail_sync(member, ErrorCode.rebalance_in_progress)
        return step

    # -- state, and other requests of members --

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return why the caller is not the member it claims to be, or ``none``."""
        if self.phase is Phase.DEAD:
            return ErrorCode.coordinator_not_available
        if group_instance_id is not None:
            holder = self.roster.static_member_id(group_instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            if holder != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.roster else ErrorCode.unknown_member_id

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether members consume the topic; consumers do if it is not known."""
        if self._subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self._subscribed_topics

    @property
    def knows_subscriptions(self) -> bool:
        """Whether the members' metadata could be read."""
        return self._subscribed_topics is not None

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members are consumers, not workers of another kind."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def wake_at_ms(self) -> int | None:
        """The latest time to call ``expire``; ``None`` without a deadline."""
        deadlines_ms = (self._deadlines.wake_at_ms, *self.wait.deadlines_ms)
        return min((at_ms for at_ms in deadlines_ms if at_ms is not None), default=None)

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return self.phase is Phase.EMPTY

    @property
    def is_dead(self) -> bool:
        """Whether it was deleted."""
        return self.phase is Phase.DEAD

    @property
    def is_vacant(self) -> bool:
        """Whether the group needs no memory: it has no members and no assigned ids."""
        return self.phase is Phase.EMPTY and not self.pending_members

    def to_record(self, *, shard: int, clock_offset_ms: int, version: int) -> GroupRecord:
        """Return the group as it is stored; ``clock_offset_ms`` is wall minus event clock."""
        return GroupRecord(
            shard=shard,
            group_id=self.group_id,
            phase=self.phase.value,
            phase_since_ms=self.phase_since_ms + clock_offset_ms,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader,
            members=tuple(member.to_record() for member in self.roster),
            version=version,
        )

    @classmethod
    def restore(cls, record: GroupRecord, *, now_ms: int, clock_offset_ms: int) -> ClassicGroup:
        """Return the stored group; its members get fresh sessions and time to sync."""
        group = cls(record.group_id, now_ms=now_ms)
        group.phase = Phase(record.phase)
        group.phase_since_ms = record.phase_since_ms - clock_offset_ms
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol_name = record.protocol_name
        for stored in record.members:
            member = Member.from_record(stored)
            group.roster.add(member)
            group.renew_session(member)
        if record.leader is not None and record.leader in group.roster:
            group.roster.leader = record.leader
        group._read_subscriptions()
        if group.phase is Phase.COMPLETING_REBALANCE:
            group._await_syncs()
        return group

    @classmethod
    def of_consumers(
        cls, group_id: str, members: Sequence[Member], *, generation: int, now_ms: int
    ) -> ClassicGroup:
        """Return the members of a consumer group, all of them classic, as a stable group."""
        group = cls(group_id, now_ms=now_ms)
        group.phase = Phase.STABLE
        group.generation = generation
        group.protocol_type = CONSUMER_PROTOCOL_TYPE
        for member in members:
            group.roster.add(member)
            group.renew_session(member)
        group.protocol_name = group.roster.select_protocol()
        group._read_subscriptions()
        return group

    # -- parts of events, for this module, ``join_group`` and ``sync_group`` --

    def assign_member_id(self, member_id: str, timeout_ms: int) -> None:
        """Assign the id, and expect a join under it in time."""
        deadline_ms = self._now_ms + timeout_ms
        self.pending_members[member_id] = deadline_ms
        self._deadlines.set(member_id, Wait.JOIN, deadline_ms)

    def add(self, member: Member, timeout_ms: int) -> None:
        """Add a member, which must be heard from in time."""
        self._forget_pending(member.member_id)
        self.wait.note_arrival()
        self.roster.add(member)
        self._set_session(member, self._now_ms + timeout_ms)

    def replace(self, old_member_id: str, member: Member) -> None:
        """Give a static member's place to its new incarnation."""
        self.roster.replace(old_member_id, member)
        self._deadlines.forget(old_member_id)
        self.wait.replace(old_member_id, member.member_id)
        self.renew_session(member)

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self.phase = phase
        self.phase_since_ms = self._now_ms

    def begin(self, now_ms: int) -> Step:
        """Begin an event."""
        self._now_ms = max(self._now_ms, now_ms)
        self.step = Step()
        return self.step

    def member(self, member_id: str) -> Member:
        """Return the member, which must exist."""
        member = self.roster.get(member_id)
        assert member is not None
        return member

    def drop(self, member_id: str) -> None:
        """Remove a member or an assigned id. Requests that wait under the id get an error."""
        self._forget_pending(member_id)
        self.wait.note_sync(member_id)
        self._deadlines.forget(member_id)
        member = self.roster.remove(member_id)
        if member is not None:
            self.fail_join(member, ErrorCode.unknown_member_id, member_id=UNKNOWN_MEMBER_ID)
            self.fail_sync(member, ErrorCode.unknown_member_id)

    def rebalance_or_complete_join(self, limits: GroupLimits | None = None) -> None:
        """Have all members rejoin, or end the current rebalance if all have."""
        if self.phase in (Phase.EMPTY, Phase.STABLE, Phase.COMPLETING_REBALANCE):
            if self.phase is not Phase.EMPTY or len(self.roster):
                self.prepare_rebalance(limits)
        else:
            self.complete_join_unless_initial()

    def prepare_rebalance(self, limits: GroupLimits | None) -> None:
        """Have all members rejoin; with limits the first rebalance waits for more members."""
        if self.phase is Phase.COMPLETING_REBALANCE:
            for member in self.roster:
                member.assignment = b""
                self.fail_sync(member, ErrorCode.rebalance_in_progress)
        self.wait.end_syncs()
        is_first = self.phase is Phase.EMPTY
        self.enter(Phase.PREPARING_REBALANCE)
        if is_first and limits is not None:
            delay_ms = limits.initial_rebalance_delay_ms
            left_ms = max(self.roster.rebalance_timeout_ms - delay_ms, 0)
            self.wait.await_first_members(self._now_ms, delay_ms, left_ms)
        elif self._have_all_joined:
            self._complete_join()
        else:
            self.wait.await_joins(self._now_ms + self.roster.rebalance_timeout_ms)

    def complete_join_unless_initial(self) -> None:
        """End the rebalance if all have joined, but not while the first one waits for more."""
        if not self.wait.is_first:
            self.complete_join_if_all_joined()

    def complete_join_if_all_joined(self) -> None:
        """End the current rebalance if all have joined."""
        if self.phase is Phase.PREPARING_REBALANCE and self._have_all_joined:
            self._complete_join()

    def generation_answer(self, member: Member) -> JoinAnswer:
        """Return the answer to a member's JoinGroup in this generation."""
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.roster.leader:
            members = tuple(
                JoinedMember(
                    member_id=m.member_id,
                    group_instance_id=m.group_instance_id,
                    metadata=m.metadata(self.protocol_name),
                )
                for m in self.roster
            )
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader or "",
            members=members,
        )

    def fail_join(self, member: Member, error: ErrorCode, *, member_id: str | None = None) -> None:
        """Answer the member's waiting JoinGroup, if any, with the error."""
        if member.awaited_join is not None:
            echoed = member.member_id if member_id is None else member_id
            answer = JoinAnswer(error=error, member_id=echoed)
            self.step.joins.append((member.awaited_join, answer))
            self.roster.await_join(member, None)

    def fail_sync(self, member: Member, error: ErrorCode) -> None:
        """Answer the member's waiting SyncGroup, if any, with the error."""
        if member.awaited_sync is not None:
            self.step.syncs.append((member.awaited_sync, SyncAnswer(error=error)))
            member.awaited_sync = None

    def renew_session(self, member: Member) -> None:
        """Expect the member's next request within its session timeout."""
        self._set_session(member, self._now_ms + member.session_timeout_ms)

    # -- rebalancing --

    @property
    def _have_all_joined(self) -> bool:
        return not self.pending_members and self.roster.have_all_joined

    def _complete_join(self) -> None:
        """Begin a generation with the members that rejoined and all static ones."""
        self.wait.end_joins()
        for member in list(self.roster):
            if member.awaited_join is None and member.group_instance_id is None:
                self.drop(member.member_id)
        if not self.roster.elect_joined_leader() and len(self.roster):
            # Only static members that have not rejoined are left: their sessions decide.
            self.wait.await_joins(self._now_ms + max(self.roster.rebalance_timeout_ms, 1))
            return
        self.generation += 1
        self.step.must_store = True
        self.protocol_name = self.roster.select_protocol() if len(self.roster) else None
        self._read_subscriptions()
        if not len(self.roster):
            self.enter(Phase.EMPTY)
            return
        self.enter(Phase.COMPLETING_REBALANCE)
        for member in self.roster:
            member.assignment = b""
            if member.awaited_join is not None:
                self.step.joins.append((member.awaited_join, self.generation_answer(member)))
            self.roster.await_join(member, None)
            member.is_new = False
            self.renew_session(member)
        self._await_syncs()

    def _await_syncs(self) -> None:
        member_ids = (member.member_id for member in self.roster)
        self.wait.await_syncs(member_ids, self._now_ms + self.roster.rebalance_timeout_ms)

    # -- leaving and expiry --

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        member_id: str | None = identity.member_id
        if identity.member_id == UNKNOWN_MEMBER_ID:
            instance_id = identity.group_instance_id
            member_id = None if instance_id is None else self.roster.static_member_id(instance_id)
            if member_id is None:
                return ErrorCode.unknown_member_id
        elif identity.member_id not in self.pending_members:
            error = self.validate_member(identity.member_id, identity.group_instance_id)
            if error is not ErrorCode.none:
                return error
        assert member_id is not None
        self.drop(member_id)
        return ErrorCode.none

    def _expire_session(self, member: Member) -> None:
        deadline_ms = member.session_deadline_ms
        if deadline_ms is None or deadline_ms > self._now_ms or member.member_id not in self.roster:
            return
        is_waiting = member.awaited_join is not None or member.awaited_sync is not None
        if is_waiting and not member.is_new:
            # It waits for an answer, which starts the session again.
            member.session_deadline_ms = None
            return
        self.drop(member.member_id)
        if self.phase in (Phase.STABLE, Phase.COMPLETING_REBALANCE):
            self.prepare_rebalance(None)
        else:
            self.complete_join_if_all_joined()

    def _expire_join(self) -> None:
        if not self.wait.delay_again(self._now_ms):
            self._complete_join()

    def _expire_sync(self) -> None:
        unsynced = tuple(self.wait.unsynced)
        self.wait.end_syncs()
        if unsynced:
            for member_id in unsynced:
                self.drop(member_id)
            self.prepare_rebalance(None)

    # -- details --

    def _read_subscriptions(self) -> None:
        self._subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return
        topics: set[str] = set()
        for member in self.roster:
            some = subscribed_topics(member.metadata(self.protocol_name))
            if some is None:
                return
            topics |= some
        self._subscribed_topics = frozenset(topics)

    def _set_session(self, member: Member, deadline_ms: int) -> None:
        member.session_deadline_ms = deadline_ms
        self._deadlines.set(member.member_id, Wait.SESSION, deadline_ms)

    def _forget_pending(self, member_id: str) -> None:
        self.pending_members.pop(member_id, None)
        self._deadlines.clear(member_id, Wait.JOIN)
