"""The group coordinator of a node: finds groups, wakes them, and loads and drops shards.

A group belongs to a shard, a shard to the leader of that partition of
``__consumer_offsets``. While this node leads it, the shard's groups are in memory and
every change to them is in the store before it is told to anyone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups import validate_group_id
from tidelog_core.admin.offset_pages import read_offsets
from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    NonEmptyGroup,
    NotCoordinator,
    StoreUnavailable,
    TidelogError,
)
from tidelog_core.metadata.consumer_groups import Partitions
from tidelog_core.metadata.groups import (
    GROUP_COLLECTION_PREFIX,
    CommittedOffset,
    shard_of_group,
)
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.member_pages import StoredGroup
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Check, ItemKey, MetadataStore, Write
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

from tidelog_node.coordinator.group_items import DEFAULT_PAGE_LIMITS, PageLimits
from tidelog_node.coordinator.led_shards import Leadership, LedShards
from tidelog_node.coordinator.loaded_group import GroupEnvironment, LoadedGroup, Unloaded
from tidelog_node.coordinator.shard import Shard
from tidelog_node.coordinator.storage import GroupStorage, OffsetPages
from tidelog_node.coordinator.sweeping import Sweeper
from tidelog_node.coordinator.wakeups import Wakeups
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.assignment.assignors import ASSIGNORS
from tidelog_node.groups.assignment.target_computation import TargetComputation, in_thread
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic_messages import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    RequestNumber,
    SyncAnswer,
    SyncRequest,
)
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import (
    ASSIGNED_AT_ONCE_MEMBERS_MAX,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
)
from tidelog_node.groups.consumer.pattern_matches import PatternMatcher
from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, HeartbeatAnswer
from tidelog_node.groups.share.heartbeat import ShareGroupSettings, ShareHeartbeat
from tidelog_node.groups.share.share_group import ShareGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIND_ATTEMPTS_MAX = 5
MEMBER_ID_PREFIX_LENGTH_MAX = 255  # in characters; with the rest it must fit an answer
FENCED_RETRY_MS = 500


class GroupCoordinator:
    """Every consumer group that this node coordinates. For the tasks of one event loop."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        view: ClusterView,
        node_config: Callable[[], NodeConfig],
        broker_id: int,
        clock: Callable[[], float] | None = None,
        wall_clock_ms: Callable[[], int] = wall_clock_ms,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        leads: Callable[[Partition], bool] | None = None,
        can_serve: Callable[[], bool] = lambda: True,
        page_limits: PageLimits = DEFAULT_PAGE_LIMITS,
        may_expire: Callable[[], bool] = lambda: True,
        assigned_at_once_members_max: int = ASSIGNED_AT_ONCE_MEMBERS_MAX,
        compute: Callable[[TargetComputation], Awaitable[Mapping[str, Partitions]]] = in_thread,
    ) -> None:
        """``leads`` says which shards are this process's, ``can_serve`` whether it may answer.

        By default a shard is ours where the image says so, and every moment is good.
        ``may_expire`` says whether the wall clock can be trusted to tell what is too old.
        """
        self._store = store
        self._view = view
        self._node_config = node_config
        self._broker_id = broker_id
        self._clock = time.monotonic if clock is None else clock
        self._wall_clock_ms = wall_clock_ms
        self._new_id = new_id
        self._can_serve = can_serve
        self._page_limits = page_limits
        self._assigned_at_once_members_max = assigned_at_once_members_max
        self._numbers = itertools.count(1)
        self._pages = OffsetPages()
        self._wakeups: Wakeups[LoadedGroup] = Wakeups(self._now_ms, self._expire)
        self._patterns = PatternMatcher(view.image.topics)
        self._environment = GroupEnvironment(
            now_ms=self._now_ms,
            clock_offset_ms=self._clock_offset_ms,
            settings=self._consumer_settings,
            share_settings=self._share_settings,
            topics=lambda: self._view.image.topics,
            match=self._patterns.match,
            compute=compute,
        )
        self._shards = LedShards(
            CONSUMER_OFFSETS_TOPIC,
            view,
            leads=_names_leader(broker_id) if leads is None else leads,
            open_shard=self._open_shard,
        )
        self._is_closed = False
        self._looking: set[asyncio.Task[None]] = set()
        self._sweeper = Sweeper(
            self._shards,
            store=store,
            view=view,
            node_config=node_config,
            wall_clock_ms=wall_clock_ms,
            clock_offset_ms=self._clock_offset_ms,
            may_expire=may_expire,
        )
        self._sweeping: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Begin to coordinate what the cluster's image says is ours."""
        self._patterns.take_topics(self._view.image.topics, self._view.image.topics.keys())
        self._unsubscribe = self._view.subscribe(
            lambda image, changed: self._patterns.take_topics(image.topics, changed)
        )
        self._unwatch = self._view.watch(GROUP_COLLECTION_PREFIX, self._look_again)
        self._shards.start()
        self._sweeping = asyncio.create_task(self._sweeper.run())

    async def close(self) -> None:
        """Finish what is being stored and send everyone who waits to the next coordinator.

        A second call does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._shards.stop()
        self._unwatch()
        self._unsubscribe()
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        await self._shards.close()
        while self._looking:
            await asyncio.wait(self._looking)
        self._wakeups.close()

    # Membership.

    def new_member_id(self, prefix: str | None) -> str:
        """Return an id that no member has: the client's or instance's id and a random part."""
        if prefix is None:
            return self._new_id()
        return f"{prefix[:MEMBER_ID_PREFIX_LENGTH_MAX]}-{self._new_id()}"

    def next_number(self) -> RequestNumber:
        """Return a number for a request that waits for its answer."""
        return RequestNumber(next(self._numbers))

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Return the answer when the rebalance allows, which may take minutes."""
        config = self._node_config()
        shortest_ms = config.group_min_session_timeout_ms
        longest_ms = config.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return JoinAnswer(error=ErrorCode.invalid_session_timeout, member_id=request.member_id)
        limits = GroupLimits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
        )
        answer = await self._use(
            group_id,
            lambda group: group.join(request, limits),
            create=request.member_id == UNKNOWN_MEMBER_ID,
        )
        if answer is None:
            return JoinAnswer(error=ErrorCode.unknown_member_id, member_id=request.member_id)
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Return the answer when the leader's assignment is stored."""
        answer = await self._use(group_id, lambda group: group.sync(request))
        return SyncAnswer(error=ErrorCode.unknown_member_id) if answer is None else answer

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Renew the member's session; the answer tells it whether to rejoin."""
        error = await self._use(
            group_id, lambda group: group.heartbeat(member_id, group_instance_id, generation)
        )
        return ErrorCode.unknown_member_id if error is None else error

    async def leave(
        self, group_id: str, identities: Sequence[MemberIdentity]
    ) -> Sequence[ErrorCode]:
        """Remove the members; one error code each."""
        errors = await self._use(group_id, lambda group: group.leave(identities))
        return [ErrorCode.unknown_member_id for _ in identities] if errors is None else errors

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> HeartbeatAnswer:
        """Renew the member's session and return what it may read (KIP-932)."""
        answer = await self._use(
            group_id,
            lambda group: group.share_heartbeat(request),
            create=request.member_epoch == JOIN_EPOCH,
        )
        if answer is not None:
            return answer
        kind = "Group" if request.is_leaving else "Share group"
        return _not_found(kind, group_id)

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat
    ) -> HeartbeatAnswer:
        """Renew the member's session and return what it is to have (KIP-848)."""
        answer = await self._use(
            group_id,
            lambda group: group.consumer_heartbeat(request),
            create=request.member_epoch == JOIN_EPOCH,
        )
        if answer is not None:
            return answer
        kind = "Group" if request.is_leaving else "Consumer group"
        return _not_found(kind, group_id)

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that members may ask for, the default first; never none."""
        return self._node_config().group_consumer_assignors or tuple(ASSIGNORS)

    def preferred_assignor(self, group: ConsumerGroup) -> str:
        """Return the assignor that the group's next assignment is made by."""
        return group.preferred_assignor(self._consumer_settings(group.group_id))

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the topic's name, or ``None`` where it was deleted."""
        return self._view.image.topic_names.get(topic_id)

    # Groups as a whole.

    async def describe(self, group_id: str) -> Group | None:
        """Return the group to be read before the next ``await``, or ``None``."""
        return await self._use(group_id, _ready_group)

    async def list_groups(self) -> list[Group]:
        """Return the groups that this node coordinates."""
        self._shards.follow(self._view.image)
        found = [await shard.find_all() for shard in self._shards]
        return [loaded.group for some in found for loaded in some]

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Delete an empty group with its offsets. Durable on return of ``none``."""
        error = await self._use(group_id, self._delete_if_empty)
        return ErrorCode.group_id_not_found if error is None else error

    # Offsets.

    async def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, UUID], Mapping[int, CommittedOffset]],
        *,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        knows_epochs: bool = True,
    ) -> ErrorCode:
        """Store offsets, by topic and partition. Durable on return of ``none``.

        ``knows_epochs`` is false before version 9 of OffsetCommit. GROUP_ID_NOT_FOUND where
        a member of a group that is not there commits; older versions know ILLEGAL_GENERATION.
        """
        error = await self._use(
            group_id,
            lambda group: group.commit_offsets(
                member_id, group_instance_id, generation, offsets, knows_epochs=knows_epochs
            ),
            create=generation <= NO_GENERATION,
        )
        if error is None:
            return ErrorCode.group_id_not_found if knows_epochs else ErrorCode.illegal_generation
        return error

    async def fetch_offsets(
        self, group_id: str, partitions: Mapping[str, Collection[int]] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of the partitions by topic, or of all with ``None``.

        What is committed of a topic that is not there counts for nothing. An image that is behind
        may not show the topic yet, so the newest one decides, also on who coordinates the group.
        """
        is_behind = False

        def is_topic(name: str, topic_id: UUID) -> bool:
            nonlocal is_behind
            is_known = self._is_topic(name, topic_id)
            is_behind |= not is_known
            return is_known

        await self._shard_of(group_id).loaded()
        found = await read_offsets(self._store, group_id, partitions, is_topic=is_topic)
        if not is_behind:
            return found
        await self._view.refresh()
        await self._shard_of(group_id).loaded()
        return await read_offsets(self._store, group_id, partitions, is_topic=self._is_topic)

    async def validate_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return whether the caller may be told committed offsets.

        Only members of consumer groups say who they are. Their commits of older epochs may
        have been refused, so they must not go on from what they do not know about.
        """
        if member_id is None and epoch < 0:
            return ErrorCode.none
        group = await self._use(group_id, _ready_group)
        if not isinstance(group, ConsumerGroup):
            return ErrorCode.none
        return group.validate_fetch(member_id, epoch)

    async def delete_offsets(
        self, group_id: str, partitions: Mapping[str, Collection[int]]
    ) -> tuple[ErrorCode, frozenset[str]]:
        """Remove offsets; return an error or the topics that members still consume."""
        result = await self._use(group_id, lambda group: self._delete_offsets(group, partitions))
        return (ErrorCode.group_id_not_found, frozenset()) if result is None else result

    async def change_empty_share_group(
        self,
        group_id: str,
        change: Callable[[], Awaitable[tuple[T, Sequence[Write]]]],
        *,
        create: bool = False,
    ) -> T:
        """Do what the change decides on, in a share group that nobody can join meanwhile.

        ``change`` returns what to answer and the writes; durable on return. With ``create`` a
        group that is not there is made, if there is anything to write. Raises
        ``GroupIdNotFound``, ``NonEmptyGroup``.
        """

        async def use(loaded: LoadedGroup) -> T:
            async def work() -> T:
                is_new = create and loaded.is_unstored
                if not is_new and not isinstance(loaded.group, ShareGroup):
                    raise GroupIdNotFound(f"Group {group_id} is not a share group.")
                if not loaded.group.is_empty:
                    raise NonEmptyGroup("The group is not empty.")
                await loaded.storage.claim()
                answer, writes = await change()
                if is_new and writes:
                    await loaded.become_share_group()
                await loaded.storage.write_in_parts(writes)
                return answer

            return await loaded.exclusively(work)

        found = await self._use(group_id, use, create=create)
        if found is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        await self._look_at_changes()
        return found

    # Offsets that wait for the end of a transaction: ``TransactionalOffsets`` keeps them.

    def shard_leadership(self, index: int) -> Leadership:
        """Return this node's leader term of a shard. Raises ``NotCoordinator`` without one."""
        if not self._can_serve():
            raise NotCoordinator("this node's lease has lapsed")
        self._shards.follow(self._view.image)
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"this node does not coordinate group shard {index}")
        return shard.leadership

    def shard_index(self, group_id: str) -> int:
        """Return the group's shard. Raises ``NotCoordinator`` where it is another node's."""
        return self._shard_of(group_id).index

    async def commit_transactional(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, UUID], Mapping[int, CommittedOffset]],
        write: Callable[[Mapping[tuple[str, UUID], Mapping[int, CommittedOffset]]], Write],
        checks: Sequence[Check],
        *,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
    ) -> ErrorCode:
        """Do ``write`` of the offsets, for later, if the caller may commit for the group.

        The offsets are given to it at times after what is committed now. Durable on return of
        ``none``. ILLEGAL_GENERATION where a member of a group that is not there commits.
        """
        error = await self._use(
            group_id,
            lambda group: group.commit_transactional(
                member_id,
                group_instance_id,
                generation,
                offsets=offsets,
                write=write,
                checks=checks,
            ),
            create=generation <= NO_GENERATION,
        )
        return ErrorCode.illegal_generation if error is None else error

    async def commit_pending(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, UUID], Mapping[int, CommittedOffset]],
        *,
        also: Write,
        checks: Sequence[Check],
    ) -> None:
        """Store offsets of a transaction that was committed, and ``also``. Durable on return."""

        async def commit(group: LoadedGroup) -> bool:
            await group.commit_pending(offsets, also=also, checks=checks)
            return True

        await self._use(group_id, commit, create=True)

    # Finding groups.

    async def _use(
        self,
        group_id: str,
        use: Callable[[LoadedGroup], Awaitable[T]],
        *,
        create: bool = False,
    ) -> T | None:
        """Return what ``use`` makes of the group, or ``None`` where there is none."""
        for _ in range(FIND_ATTEMPTS_MAX):
            shard = self._shard_of(group_id)
            group = await shard.find(group_id)
            if group is None:
                if not create:
                    return None
                group = self._host(
                    shard.index, ClassicGroup(group_id, now_ms=self._now_ms()), stored=None
                )
                shard.groups[group_id] = group
            try:
                return await use(group)
            except Unloaded:
                continue
        raise CoordinatorNotAvailable(f"group {group_id!r} keeps being unloaded")

    def _shard_of(self, group_id: str) -> Shard:
        validate_group_id(group_id)
        if not self._can_serve():
            # Another node may coordinate the group by now, without this one having heard of it.
            raise NotCoordinator("this node's lease has lapsed")
        shard = self._shards.find(lambda count: shard_of_group(group_id, count))
        if shard is None:
            raise NotCoordinator(f"this node does not coordinate group {group_id!r}")
        return shard

    def _open_shard(self, index: int, leadership: Leadership) -> Shard:
        return Shard(index, leadership, self._store, restore=self._restored)

    def _expire(self, loaded: LoadedGroup) -> None:
        """Let time pass for a group, but not for one that another node may coordinate."""
        if self._can_serve():
            loaded.expire()
        elif not loaded.is_unloaded:
            self._wakeups.schedule(loaded, self._now_ms() + FENCED_RETRY_MS)

    def _look_again(self, keys: Collection[ItemKey]) -> None:
        """Have groups that an administrator changed in the store read again.

        A coordinator's own writes of groups are not in the changelog. Nothing hangs on
        this: a group that was missed here is found out by its next write, which loses.
        """
        for key in keys:
            index = key.collection.removeprefix(GROUP_COLLECTION_PREFIX)
            # What a stranger wrote must not end the reading of everything else.
            shard = self._shards.get(int(index)) if index.isdecimal() else None
            if shard is not None and not self._is_closed:
                looking = asyncio.create_task(self._reload_if_changed(shard, key.key))
                self._looking.add(looking)
                looking.add_done_callback(self._looking.discard)

    async def _reload_if_changed(self, shard: Shard, group_id: str) -> None:
        try:
            group = await shard.find(group_id)
            if group is not None:
                await group.unload_if_changed()
        except (TidelogError, Unloaded) as error:
            # Whoever needs the group next meets the same and is told.
            logger.warning(
                "changed group is not read again",
                extra={"group_id": group_id, "reason": str(error)},
            )

    def _restored(self, shard_index: int, stored: StoredGroup) -> LoadedGroup:
        record = stored.record
        now_ms, clock_offset_ms = self._now_ms(), self._clock_offset_ms()
        group: Group
        if record.share is not None:
            group = ShareGroup.restore(
                record,
                now_ms=now_ms,
                clock_offset_ms=clock_offset_ms,
                settings=self._share_settings(record.group_id),
                topics=self._view.image.topics,
            )
        elif record.consumer is None:
            group = ClassicGroup.restore(record, now_ms=now_ms, clock_offset_ms=clock_offset_ms)
        else:
            group = ConsumerGroup.restore(
                record,
                now_ms=now_ms,
                clock_offset_ms=clock_offset_ms,
                settings=self._consumer_settings(record.group_id),
                topics=self._view.image.topics,
            )
        return self._host(shard_index, group, stored=stored)

    def _host(self, shard_index: int, group: Group, *, stored: StoredGroup | None) -> LoadedGroup:
        shard = self._shards.get(shard_index)

        async def is_still_ours() -> bool:
            self._shards.follow(await self._view.refresh())
            return shard is not None and self._shards.get(shard_index) is shard

        storage = GroupStorage(
            self._store,
            self._pages,
            shard=shard_index,
            group_id=group.group_id,
            stored=stored,
            limits=self._page_limits,
        )
        loaded = LoadedGroup(
            group,
            storage,
            shard=shard_index,
            environment=self._environment,
            on_change=self._changed,
            is_still_ours=is_still_ours,
        )
        if group.wake_at_ms is not None:
            self._wakeups.schedule(loaded, group.wake_at_ms)
        return loaded

    def _changed(self, loaded: LoadedGroup) -> None:
        shard = self._shards.get(loaded.shard)
        if loaded.is_unloaded or loaded.is_vacant:
            is_stored = loaded.is_unloaded and not loaded.group.is_dead
            loaded.is_unloaded = True
            self._wakeups.cancel(loaded)
            if shard is not None:
                shard.forget(loaded, is_stored=is_stored)
        elif loaded.group.wake_at_ms is not None:
            self._wakeups.schedule(loaded, loaded.group.wake_at_ms)

    # Parts of the requests above.

    async def _delete_if_empty(self, loaded: LoadedGroup) -> ErrorCode:
        async def delete() -> ErrorCode:
            if not loaded.group.is_empty:
                return ErrorCode.non_empty_group
            if await loaded.delete() or isinstance(loaded.group, ShareGroup):
                await self._look_at_changes()
            return ErrorCode.none

        return await loaded.exclusively(delete)

    async def _look_at_changes(self) -> None:
        """Let this node see what was just written, as far as it leads what that is about."""
        with contextlib.suppress(StoreUnavailable):
            await self._view.refresh()

    async def _delete_offsets(
        self, loaded: LoadedGroup, partitions: Mapping[str, Collection[int]]
    ) -> tuple[ErrorCode, frozenset[str]]:
        async def remove() -> tuple[ErrorCode, frozenset[str]]:
            group = loaded.group
            if isinstance(group, ShareGroup):
                return ErrorCode.group_id_not_found, frozenset()
            is_empty = group.is_empty
            if not is_empty and not group.uses_consumer_protocol:
                return ErrorCode.non_empty_group, frozenset()
            consumed = frozenset(
                topic for topic in partitions if not is_empty and group.is_subscribed_to(topic)
            )
            free = {topic: frozenset(partitions[topic]) for topic in partitions.keys() - consumed}
            if free:
                await loaded.storage.remove_offsets(lambda page: free[page.topic], free)
                if await loaded.storage.drop_pending(free):
                    await self._look_at_changes()
            return ErrorCode.none, consumed

        await loaded.match_patterns()
        return await loaded.exclusively(remove)

    def _is_topic(self, name: str, topic_id: UUID) -> bool:
        return self._view.image.topic_names.get(topic_id) == name

    def _consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        config = self._node_config()
        own = self._view.image.group_config(group_id, config)
        policy = config.group_consumer_migration_policy
        return ConsumerGroupSettings(
            session_timeout_ms=own.consumer_session_timeout_ms,
            heartbeat_interval_ms=own.consumer_heartbeat_interval_ms,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            members_max=config.group_consumer_max_size,
            classic_members_max=config.group_max_size,
            assignors=self.assignors,
            can_upgrade=policy in ("bidirectional", "upgrade"),
            can_downgrade=policy in ("bidirectional", "downgrade"),
            assigned_at_once_members_max=self._assigned_at_once_members_max,
        )

    def _share_settings(self, group_id: str) -> ShareGroupSettings:
        config = self._node_config()
        own = self._view.image.group_config(group_id, config)
        return ShareGroupSettings(
            session_timeout_ms=own.share_session_timeout_ms,
            heartbeat_interval_ms=own.share_heartbeat_interval_ms,
            members_max=config.group_share_max_size,
        )

    # Clocks: events and deadlines go by a clock that never jumps, stored times by the wall's.

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _clock_offset_ms(self) -> int:
        return self._wall_clock_ms() - self._now_ms()


def _not_found(kind: str, group_id: str) -> HeartbeatAnswer:
    message = f"{kind} {group_id} not found."
    return HeartbeatAnswer(error=ErrorCode.group_id_not_found, message=message)


def _names_leader(broker_id: int) -> Callable[[Partition], bool]:
    return lambda partition: partition.leader == broker_id


async def _ready_group(loaded: LoadedGroup) -> Group:
    await loaded.ready()
    return loaded.group
