"""One group in memory: its state machine, its waiting requests, and its storage.

An event is decided immediately, without waiting. If the group must be stored after that, the
answers and all later events wait for the write: no client sees a state that a crash could take
back. If storing fails, the group is unloaded: waiting requests get an error, and the next request
loads the stored state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from kio.schema.errors import ErrorCode
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    OutcomeUnknown,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.coordination.consumer_groups import ConsumerMember
from tidelog_core.metadata.coordination.groups import GroupRecord
from tidelog_core.metadata.store import ABSENT

from tidelog_node.coordinator.failures import error_code
from tidelog_node.coordinator.group_environment import GroupEnvironment
from tidelog_node.coordinator.group_storage import GroupStorage
from tidelog_node.coordinator.group_writes import GroupWrites
from tidelog_node.coordinator.waiting_members import WaitingMembers
from tidelog_node.groups import any_group, type_changes
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic_messages import (
    GroupCaller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
)
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings, ConsumerHeartbeat
from tidelog_node.groups.consumer.pattern_matches import Matches
from tidelog_node.groups.consumer.pattern_view import PatternView
from tidelog_node.groups.heartbeat_answer import HeartbeatAnswer, Refused
from tidelog_node.groups.migration import classic_members
from tidelog_node.groups.migration.conversion import as_classic_group
from tidelog_node.groups.share.heartbeat import ShareHeartbeat
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.groups.step import Step
from tidelog_node.groups.type_changes import new_view

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Unloaded(Exception):
    """The group was unloaded between finding and using it: find it again."""


class LoadedGroup:
    """The only user of the group's state machine."""

    def __init__(
        self,
        group: Group,
        storage: GroupStorage,
        *,
        shard: int,
        environment: GroupEnvironment,
        on_change: Callable[[LoadedGroup], None],
        is_still_ours: Callable[[], Awaitable[bool]],
    ) -> None:
        """``is_still_ours`` reads from the store whether this node still coordinates the group."""
        self.group: Group = group
        self.storage = storage
        self.shard = shard
        self.is_unloaded = False
        # Whether offsets with a retention of their own were committed (OffsetCommit 2 to 4).
        self.has_own_expiries = False
        self.now_ms = environment.now_ms
        self._environment = environment
        self._on_change = on_change  # after every event: deadlines may be nearer, or it unloaded
        self._is_still_ours = is_still_ours
        self._waiting = WaitingMembers()
        self._writes = GroupWrites()
        self._computing: set[asyncio.Task[None]] = set()
        # Requests that wait for patterns, or for their decision after that, by the member that sent
        # them; "": not a member.
        self._matching: Counter[str] = Counter()
        self._fault = ErrorCode.none  # why it was unloaded

    @property
    def is_vacant(self) -> bool:
        """Whether the group can be forgotten without loss: it was never stored."""
        return self._is_absent and not self._matching

    @property
    def _is_absent(self) -> bool:
        return self.is_unstored and self.storage.is_idle and self._writes.is_idle

    @property
    def is_unstored(self) -> bool:
        """Whether there is no such group yet: it was never stored and has no members."""
        return self.group.is_vacant and self.storage.version == ABSENT

    @property
    def wall_clock_ms(self) -> int:
        """The time of day of an event now."""
        return self.now_ms() + self._environment.clock_offset_ms()

    def note_change(self) -> None:
        """Note that deadlines may be nearer, or that the group may have no reason to stay."""
        self._on_change(self)

    def record(self) -> GroupRecord:
        """Return the group as it would be stored now."""
        return self.group.to_record(
            shard=self.shard,
            clock_offset_ms=self._environment.clock_offset_ms(),
            version=self.storage.version,
        )

    async def ready(self) -> None:
        """Wait until nothing is being stored. Raises ``Unloaded``.

        On return the state machine may be used until the next ``await``.
        """
        await self._writes.wait_until_idle()
        if self.is_unloaded:
            raise Unloaded

    async def join(self, request: JoinRequest, limits: GroupLimits) -> JoinAnswer:
        """Return the answer, when the rebalance allows."""
        with self._waiting.join(request.number) as answer:
            caller = self._caller(lambda group: classic_members.joining_member(group, request))
            async with self._matched(caller=caller) as matches:
                await self.ready()
                self._take_matches(matches)
                self._take(self._join(request, limits))
            return await answer

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Return the answer, when the leader's assignment is stored."""
        with self._waiting.sync(request.number) as answer:
            caller = self._caller(lambda group: classic_members.syncing_member(group, request))
            async with self._matched(caller=caller) as matches:
                await self.ready()
                self._take_matches(matches)
                self._take(any_group.sync(self.group, request, now_ms=self.now_ms()))
            return await answer

    async def heartbeat(self, caller: GroupCaller) -> ErrorCode:
        """Renew the member's session; return an error code."""
        await self.ready()
        error = any_group.heartbeat(self.group, caller, now_ms=self.now_ms())
        self._on_change(self)
        return error

    async def leave(self, identities: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """Return an error code for each member, once the changes are stored."""
        await self.ready()
        errors, step = any_group.leave(self.group, identities, now_ms=self.now_ms())
        self._take(step)
        if not self._writes.is_idle:
            await self._writes.finish()
            if self.is_unloaded:
                raise CoordinatorNotAvailable("the group could not be stored")
        return errors

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Return the member's assignment, once the heartbeat's changes are stored."""
        await self.claim()
        await self._may_decide()
        # A leave and a refused heartbeat need no patterns. The latter keeps no member alive either.
        if request.is_leaving:
            return await self._answered(*self._consumer_heartbeat(request, {}))
        try:
            caller = self._heartbeat_caller(request)
        except Refused as refusal:
            return await self._answered(refusal.answer, Step())
        async with self._matched(new_view(self.group, request, caller), caller) as matches:
            await self._may_decide()
            return await self._answered(*self._consumer_heartbeat(request, matches))

    async def share_heartbeat(self, request: ShareHeartbeat) -> HeartbeatAnswer:
        """Return a share group member's assignment, once the heartbeat's changes are stored."""
        await self.claim()
        await self._may_decide()
        return await self._answered(*self._share_heartbeat(request))

    async def match_patterns(self) -> None:
        """Give the group the matches of its patterns, valid until a member brings a new pattern.

        Must be called before the group's topics are used.
        """
        async with self._matched() as matches:
            self._take_matches(matches)

    async def claim(self) -> None:
        """Exclude all further writes of previous coordinators."""
        while not self.storage.is_claimed:
            await self.ready()
            if not self.storage.is_claimed:
                await self.exclusively(self.storage.claim)

    def expire(self) -> None:
        """Process deadlines. Does nothing during a write: that ends in a change.

        A member is spared while one of its own requests waits for patterns; other callers' requests
        keep no member in the group.
        """
        if self._writes.is_idle and not self.is_unloaded:
            group, now_ms = self.group, self.now_ms()
            if isinstance(group, ConsumerGroup):
                self._take(group.expire(now_ms, self._settings(), self._matching))
            elif isinstance(group, ClassicGroup):
                self._take(group.expire(now_ms, self._matching))
            else:
                self._take(group.expire(now_ms))

    async def exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``; events wait for it. It is finished even if cancelled."""
        await self.ready()
        return await self._writes.run_alone(
            lambda: self._checked(work), on_end=lambda: self._on_change(self)
        )

    async def delete(self) -> bool:
        """Remove the group, which must have no members, from the store and from memory.

        To be called within ``exclusively``. Durable on return; returns as ``GroupStorage.delete``.
        """
        had_pending = await self.storage.delete(self.record())
        self.group.kill()
        self.unload(ErrorCode.coordinator_not_available)
        return had_pending

    async def become_share_group(self) -> None:
        """Store an empty share group where none existed. Durable on return.

        To be called within ``exclusively``.
        """
        assert self.is_unstored
        group = ShareGroup(self.group.group_id, now_ms=self.now_ms())
        record = group.to_record(
            shard=self.shard,
            clock_offset_ms=self._environment.clock_offset_ms(),
            version=self.storage.version,
        )
        await self.storage.save(record)
        self.group = group

    async def unload_if_changed(self) -> None:
        """Unload the group if the stored one differs. Raises ``Unloaded``, ``TidelogError``.

        If only its offsets have changed, waiting members can go on waiting.
        """

        async def check() -> None:
            if not await self.storage.catch_up():
                self.unload(ErrorCode.not_coordinator)

        await self.exclusively(check)

    def unload(self, error: ErrorCode) -> None:
        """Answer all waiting requests with the error; the group is not used again."""
        if self.is_unloaded:
            return
        self.is_unloaded, self._fault = True, error
        self._waiting.fail(error)
        self._on_change(self)

    async def close(self) -> None:
        """Finish the writes and computations in progress."""
        if self._computing:
            await asyncio.wait(self._computing)
        await self._writes.finish()
        await self.storage.close()

    def _settings(self) -> ConsumerGroupSettings:
        return self._environment.settings(self.group.group_id)

    def _join(self, request: JoinRequest, limits: GroupLimits) -> Step:
        if isinstance(self.group, ConsumerGroup) and self.group.is_dead:
            raise Unloaded
        self.group, step = type_changes.join(
            self.group,
            request,
            now_ms=self.now_ms(),
            limits=limits,
            settings=self._settings(),
            topics=self._environment.topics(),
        )
        return step

    async def _answered(self, answer: HeartbeatAnswer, step: Step) -> HeartbeatAnswer:
        """Return the answer once the heartbeat's changes are stored."""
        self._take(step)
        # Even without changes of its own it may reveal changes that are not stored yet.
        if not self._writes.is_idle:
            await self._writes.finish()
            if self._fault is not ErrorCode.none:
                return HeartbeatAnswer(error=self._fault)
        return answer

    async def _may_decide(self) -> None:
        """Wait until changes can share the next write. Raises ``Unloaded``."""
        await self._writes.wait_until_shared()
        if self.is_unloaded:
            raise Unloaded

    async def _compute(self, group: ConsumerGroup, computation: TargetComputation) -> None:
        """Have targets computed in the background, then apply them."""
        try:
            targets = await self._environment.compute(computation)
        except Exception:
            logger.exception(
                "computing the assignment of a group broke", extra={"group_id": group.group_id}
            )
            self.unload(ErrorCode.unknown_server_error)
            return
        with contextlib.suppress(Unloaded):
            await self._may_decide()
            if self.group is group:
                self._take(group.computed(computation, targets, now_ms=self.now_ms()))

    def _caller(
        self, find: Callable[[ConsumerGroup], ConsumerMember | None]
    ) -> ConsumerMember | None:
        """Return the consumer group's member that sent a request, if there is one."""
        if not isinstance(self.group, ConsumerGroup):
            return None
        try:
            return find(self.group)
        except Refused:  # The decision returns the error.
            return None

    @contextlib.asynccontextmanager
    async def _matched(
        self, view: PatternView | None = None, caller: ConsumerMember | None = None
    ) -> AsyncIterator[Mapping[PatternView, Matches]]:
        """Match this pattern and those of the group that must be matched again.

        The caller is not removed until the end of the context: a member's session must not end
        because its request waits here.
        """
        views = set() if view is None else {view}
        if isinstance(self.group, ConsumerGroup):
            views.update(self.group.patterns_to_match(self._environment.topics()))
        if not views:
            yield {}
            return
        member_id = "" if caller is None else caller.member_id
        self._matching[member_id] += 1
        try:
            yield await self._environment.match(views)
        finally:
            self._matching[member_id] -= 1
            if not self._matching[member_id]:
                del self._matching[member_id]
            self._on_change(self)

    def _take_matches(self, matches: Mapping[PatternView, Matches]) -> None:
        if isinstance(self.group, ConsumerGroup):
            self.group.subscriptions.take_matches(matches)

    def _heartbeat_caller(self, request: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member that waits while patterns are matched. Raises ``Refused``."""
        return type_changes.heartbeat_caller(
            self.group,
            request,
            now_ms=self.now_ms(),
            settings=self._settings(),
            topics=self._environment.topics(),
        )

    def _consumer_heartbeat(
        self, request: ConsumerHeartbeat, matches: Mapping[PatternView, Matches]
    ) -> tuple[HeartbeatAnswer, Step]:
        self.group, answer, step = type_changes.consumer_heartbeat(
            self.group,
            request,
            matches,
            now_ms=self.now_ms(),
            settings=self._settings(),
            topics=self._environment.topics(),
        )
        return answer, step

    def _share_heartbeat(self, request: ShareHeartbeat) -> tuple[HeartbeatAnswer, Step]:
        self.group, answer, step = type_changes.share_heartbeat(
            self.group,
            request,
            is_absent=self._is_absent,
            now_ms=self.now_ms(),
            settings=self._environment.share_settings(self.group.group_id),
            topics=self._environment.topics(),
        )
        return answer, step

    def _take(self, step: Step) -> None:
        if step.computes is not None:
            assert isinstance(self.group, ConsumerGroup)
            computing = asyncio.create_task(self._compute(self.group, step.computes))
            self._computing.add(computing)
            computing.add_done_callback(self._computing.discard)
        if step.downgrade is not None:
            assert isinstance(self.group, ConsumerGroup)
            must_rebalance = step.downgrade.must_rebalance
            self.group = as_classic_group(
                self.group, must_rebalance=must_rebalance, now_ms=self.now_ms()
            )
        if not self._writes.take(step, self._save, on_saved=self._answer_saved):
            self._waiting.answer(step)
        self._on_change(self)

    async def _save(self) -> None:
        """Store the group; if that fails, unload it."""
        try:
            record = self.record()
            try:
                await self.storage.save(record)
            except VersionConflict:
                # An administrator may have reset offsets. The members that wait for this generation
                # have not read them yet, so they need not join again.
                if not (await self._is_still_ours() and await self.storage.catch_up()):
                    raise
                await self.storage.save(record)
        except TidelogError as error:
            logger.warning(
                "group could not be stored and is unloaded",
                extra={"group_id": self.group.group_id, "reason": str(error)},
            )
            self.unload(error_code(error))
        except BaseException:
            self.unload(ErrorCode.unknown_server_error)
            raise

    def _answer_saved(self, step: Step) -> None:
        if not self.is_unloaded:
            self._waiting.answer(step)
            self._on_change(self)

    async def _checked(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``; unload the group if the store may have another state."""
        try:
            return await work()
        except (VersionConflict, OutcomeUnknown) as error:
            self.unload(error_code(error))
            raise
