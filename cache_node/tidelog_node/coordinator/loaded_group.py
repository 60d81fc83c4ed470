"""One group in memory: its state machine, those who wait for it, and its storage.

An event is decided at once, without waiting. If the group then has to be stored, the
answers wait for that, and so does every later event: nobody ever hears of a state that
a crash could take back. If storing fails, the group is unloaded: everyone who waits is
told to try again, and the next request loads what the store has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    OutcomeUnknown,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.groups import CommittedOffset, GroupRecord

from tidelog_node.coordinator.events import (
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    RequestNumber,
    Step,
    SyncAnswer,
    SyncRequest,
)
from tidelog_node.coordinator.failures import error_code
from tidelog_node.coordinator.group_state import ClassicGroup
from tidelog_node.coordinator.storage import GroupStorage

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Unloaded(Exception):
    """The group was unloaded between finding and using it: find it again."""


class LoadedGroup:
    """The only one that touches its state machine."""

    def __init__(
        self,
        group: ClassicGroup,
        storage: GroupStorage,
        *,
        shard: int,
        now_ms: Callable[[], int],
        clock_offset_ms: Callable[[], int],
        on_change: Callable[[LoadedGroup], None],
        is_still_ours: Callable[[], Awaitable[bool]],
    ) -> None:
        """``is_still_ours`` looks in the store whether this node still coordinates the group."""
        self.group = group
        self.storage = storage
        self.shard = shard
        self.is_unloaded = False
        self._now_ms = now_ms
        self._clock_offset_ms = clock_offset_ms
        self._on_change = on_change  # after every event: deadlines may be nearer, or it unloaded
        self._is_still_ours = is_still_ours
        self._joins: dict[RequestNumber, asyncio.Future[JoinAnswer]] = {}
        self._syncs: dict[RequestNumber, asyncio.Future[SyncAnswer]] = {}
        self._storing: asyncio.Task[Any] | None = None

    @property
    def is_vacant(self) -> bool:
        """Whether nothing would be lost by forgetting the group: it was never stored."""
        return (
            self.group.is_vacant
            and self.storage.version == 0
            and self.storage.is_idle
            and self._storing is None
        )

    def record(self) -> GroupRecord:
        """Return the group as it would be stored now."""
        return self.group.to_record(
            shard=self.shard,
            clock_offset_ms=self._clock_offset_ms(),
            version=self.storage.version,
        )

    async def ready(self) -> None:
        """Wait until nothing is being stored. Raises ``Unloaded``.

        On return the state machine may be used until the next ``await``.
        """
        while self._storing is not None:
            await asyncio.wait([self._storing])
        if self.is_unloaded:
            raise Unloaded

    async def join(self, request: JoinRequest, limits: GroupLimits) -> JoinAnswer:
        """Return the answer, when the rebalance allows."""
        await self.ready()
        answer: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        self._joins[request.number] = answer
        try:
            self._take(self.group.join(request, now_ms=self._now_ms(), limits=limits))
            return await answer
        finally:
            self._joins.pop(request.number, None)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Return the answer, when the leader's assignment is stored."""
        await self.ready()
        answer: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        self._syncs[request.number] = answer
        try:
            self._take(self.group.sync(request, now_ms=self._now_ms()))
            return await answer
        finally:
            self._syncs.pop(request.number, None)

    async def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return what the member should know."""
        await self.ready()
        return self.group.heartbeat(
            member_id,
            group_instance_id=group_instance_id,
            generation=generation,
            now_ms=self._now_ms(),
        )

    async def leave(self, identities: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """Return an error code for each member, once what follows is stored."""
        await self.ready()
        errors, step = self.group.leave(identities, now_ms=self._now_ms())
        self._take(step)
        if self._storing is not None:
            await asyncio.wait([self._storing])
            if self.is_unloaded:
                raise CoordinatorNotAvailable("the group could not be stored")
        return errors

    def expire(self) -> None:
        """Let time pass. Does nothing while the group is being stored: that ends in a change."""
        if self._storing is None and not self.is_unloaded:
            self._take(self.group.expire(self._now_ms()))

    async def commit_offsets(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        offsets: Mapping[tuple[str, UUID], Mapping[int, CommittedOffset]],
    ) -> ErrorCode:
        """Store the offsets if the caller may commit. Durable on return of ``none``."""
        await self.ready()
        while offsets and not self.storage.is_claimed:
            await self.exclusively(lambda: self.storage.save(self.record()))
            await self.ready()
        error = self.group.validate_commit(
            member_id,
            group_instance_id=group_instance_id,
            generation=generation,
            now_ms=self._now_ms(),
        )
        try:
            if error is ErrorCode.none and offsets:
                await self.storage.commit_offsets(offsets)
        except (VersionConflict, OutcomeUnknown) as problem:
            self.unload(error_code(problem))
            raise
        finally:
            self._on_change(self)  # a group made for this commit may have nothing to keep it
        return error

    async def exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what the work returns; events wait meanwhile. It ends even if the caller goes."""
        await self.ready()
        task = asyncio.create_task(self._worked(work))
        self._storing = task
        return await asyncio.shield(task)

    async def unload_if_changed(self) -> None:
        """Unload the group if the store says something else. Raises ``Unloaded``, ``TidelogError``.

        Where only its offsets were changed, members who wait may go on waiting.
        """

        async def look() -> None:
            if not await self.storage.catch_up():
                self.unload(ErrorCode.not_coordinator)

        await self.exclusively(look)

    def unload(self, error: ErrorCode) -> None:
        """Answer everyone who waits with the error, and never be used again."""
        if self.is_unloaded:
            return
        self.is_unloaded = True
        for join in self._joins.values():
            if not join.done():
                join.set_result(JoinAnswer(error=error))
        for sync in self._syncs.values():
            if not sync.done():
                sync.set_result(SyncAnswer(error=error))
        self._on_change(self)

    async def close(self) -> None:
        """Finish what is being stored."""
        if self._storing is not None:
            await asyncio.wait([self._storing])
        await self.storage.close()

    def _take(self, step: Step) -> None:
        if step.must_store:
            self._storing = asyncio.create_task(self._store(self.record(), step))
        else:
            self._answer(step)
        self._on_change(self)

    async def _store(self, record: GroupRecord, step: Step) -> None:
        try:
            try:
                await self.storage.save(record)
            except VersionConflict:
                # An administrator may have reset offsets just now. Those who wait for this
                # generation have not read them yet, so they need not join anew for that.
                if not (await self._is_still_ours() and await self.storage.catch_up()):
                    raise
                await self.storage.save(record)
        except TidelogError as error:
            logger.warning(
                "group could not be stored and is unloaded",
                extra={"group": self.group.group_id, "problem": str(error)},
            )
            self.unload(error_code(error))
        except BaseException:
            self.unload(ErrorCode.unknown_server_error)
            raise
        finally:
            self._storing = None
        if not self.is_unloaded:
            self._answer(step)
            self._on_change(self)

    async def _worked(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except (VersionConflict, OutcomeUnknown) as error:
            self.unload(error_code(error))
            raise
        finally:
            self._storing = None
            self._on_change(self)

    def _answer(self, step: Step) -> None:
        for number, join_answer in step.joins:
            join = self._joins.get(number)
            if join is not None and not join.done():
                join.set_result(join_answer)
        for number, sync_answer in step.syncs:
            sync = self._syncs.get(number)
            if sync is not None and not sync.done():
                sync.set_result(sync_answer)
