"""The groups that a node coordinates: finds, loads, wakes and unloads them.

A group belongs to a shard, and a shard to the leader of that partition of ``__consumer_offsets``.
While this node leads it, the shard's groups are in memory, and every change is stored before a
client can see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from tidelog_core.admin.groups.group_admin import validate_group_id
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    StoreUnavailable,
    TidelogError,
)
from tidelog_core.metadata.coordination.consumer_groups import Partitions
from tidelog_core.metadata.coordination.groups import (
    GROUP_COLLECTION_PREFIX,
    shard_of_group,
)
from tidelog_core.metadata.coordination.member_pages import StoredGroup
from tidelog_core.metadata.store import ItemKey
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC

from tidelog_node.coordinator.group_environment import GroupEnvironment
from tidelog_node.coordinator.group_items import DEFAULT_PAGE_LIMITS, PageLimits
from tidelog_node.coordinator.group_settings import GroupSettings
from tidelog_node.coordinator.group_shard import GroupShard
from tidelog_node.coordinator.group_storage import GroupStorage
from tidelog_node.coordinator.led_shards import Leadership, LedShards
from tidelog_node.coordinator.loaded_group import LoadedGroup, Unloaded
from tidelog_node.coordinator.offset_page_cache import OffsetPageCache
from tidelog_node.coordinator.sweeper import Sweeper
from tidelog_node.coordinator.wakeups import Wakeups
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.assignment.target_computation import TargetComputation, in_thread
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ASSIGNED_AT_ONCE_MEMBERS_MAX
from tidelog_node.groups.consumer.pattern_matches import PatternMatcher
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIND_ATTEMPTS_MAX = 5
FENCED_RETRY_MS = 500


class HostedGroups:
    """Every group that this node coordinates. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        clock: Callable[[], float] | None = None,
        page_limits: PageLimits = DEFAULT_PAGE_LIMITS,
        assigned_at_once_members_max: int = ASSIGNED_AT_ONCE_MEMBERS_MAX,
        compute: Callable[[TargetComputation], Awaitable[Mapping[str, Partitions]]] = in_thread,
    ) -> None:
        self._node = node
        self.settings = GroupSettings(
            node, assigned_at_once_members_max=assigned_at_once_members_max
        )
        self._clock = time.monotonic if clock is None else clock
        self._page_limits = page_limits
        self.pages = OffsetPageCache()
        self._wakeups: Wakeups[LoadedGroup] = Wakeups(self._now_ms, self._expire)
        self._patterns = PatternMatcher(node.view.image.topics)
        self._environment = GroupEnvironment(
            now_ms=self._now_ms,
            clock_offset_ms=self._clock_offset_ms,
            settings=self.settings.consumer,
            share_settings=self.settings.share,
            topics=lambda: self._node.view.image.topics,
            match=self._patterns.match,
            compute=compute,
        )
        self._shards = LedShards(node, CONSUMER_OFFSETS_TOPIC, open_shard=self._open_shard)
        self._is_closed = False
        self._reloading: set[asyncio.Task[None]] = set()
        self._sweeper = Sweeper(node, self._shards, clock_offset_ms=self._clock_offset_ms)
        self._sweeping: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Start to coordinate the shards that the cluster's image gives to this node."""
        self._patterns.take_topics(
            self._node.view.image.topics, self._node.view.image.topics.keys()
        )
        self._unsubscribe = self._node.view.subscribe(
            lambda image, changed: self._patterns.take_topics(image.topics, changed)
        )
        self._unwatch = self._node.view.watch(GROUP_COLLECTION_PREFIX, self._on_group_changes)
        self._shards.start()
        self._sweeping = asyncio.create_task(self._sweeper.run())

    async def close(self) -> None:
        """Finish the writes in progress and send waiting clients to the next coordinator.

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
        while self._reloading:
            await asyncio.wait(self._reloading)
        self._wakeups.close()

    async def use(
        self,
        group_id: str,
        use: Callable[[LoadedGroup], Awaitable[T]],
        *,
        create: bool = False,
    ) -> T | None:
        """Return the result of ``use`` for the group, ``None`` if there is no such group."""
        for _ in range(FIND_ATTEMPTS_MAX):
            shard = self.shard_of(group_id)
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

    def shard_of(self, group_id: str) -> GroupShard:
        """Return the group's shard. Raises ``NotCoordinator`` if another node leads it."""
        validate_group_id(group_id)
        if not self._node.membership.can_serve():
            # Another node may coordinate the group by now, unknown to this one.
            raise NotCoordinator("this node's lease has lapsed")
        shard = self._shards.find(lambda count: shard_of_group(group_id, count))
        if shard is None:
            raise NotCoordinator(f"this node does not coordinate group {group_id!r}")
        return shard

    def loaded(self) -> list[Group]:
        """Return the groups that are in memory just now, without waiting for others."""
        return [loaded.group for shard in self._shards for loaded in shard.groups.values()]

    async def all(self) -> list[Group]:
        """Return the groups that this node coordinates."""
        self._shards.follow(self._node.view.image)
        found = [await shard.find_all() for shard in self._shards]
        return [loaded.group for some in found for loaded in some]

    def shard_leadership(self, index: int) -> Leadership:
        """Return this node's leader term of a shard. Raises ``NotCoordinator`` without one."""
        if not self._node.membership.can_serve():
            raise NotCoordinator("this node's lease has lapsed")
        self._shards.follow(self._node.view.image)
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"this node does not coordinate group shard {index}")
        return shard.leadership

    async def refresh_view(self) -> None:
        """Read the last writes into the view, so that this node's subscribers act on them."""
        with contextlib.suppress(StoreUnavailable):
            await self._node.view.refresh()

    # -- shards and groups that come and go --

    def _open_shard(self, index: int, leadership: Leadership) -> GroupShard:
        return GroupShard(index, leadership, self._node.store, restore=self._restored)

    def _expire(self, loaded: LoadedGroup) -> None:
        """Process a group's deadlines, unless another node may coordinate it."""
        if self._node.membership.can_serve():
            loaded.expire()
        elif not loaded.is_unloaded:
            self._wakeups.schedule(loaded, self._now_ms() + FENCED_RETRY_MS)

    def _on_group_changes(self, keys: Collection[ItemKey]) -> None:
        """Reload groups that an administrator changed in the store.

        A coordinator's own writes of groups are not in the changelog. Correctness does not depend
        on this: a change missed here is found by the group's next write, which conflicts.
        """
        for key in keys:
            index = key.collection.removeprefix(GROUP_COLLECTION_PREFIX)
            # A foreign key must not break the reading of the others.
            shard = self._shards.get(int(index)) if index.isdecimal() else None
            if shard is not None and not self._is_closed:
                reloading = asyncio.create_task(self._reload_if_changed(shard, key.key))
                self._reloading.add(reloading)
                reloading.add_done_callback(self._reloading.discard)

    async def _reload_if_changed(self, shard: GroupShard, group_id: str) -> None:
        try:
            group = await shard.find(group_id)
            if group is not None:
                await group.unload_if_changed()
        except (TidelogError, Unloaded) as error:
            # The next request for the group fails the same way and reports it.
            logger.warning(
                "changed group cannot be read",
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
                settings=self.settings.share(record.group_id),
                topics=self._node.view.image.topics,
            )
        elif record.consumer is None:
            group = ClassicGroup.restore(record, now_ms=now_ms, clock_offset_ms=clock_offset_ms)
        else:
            group = ConsumerGroup.restore(
                record,
                now_ms=now_ms,
                clock_offset_ms=clock_offset_ms,
                settings=self.settings.consumer(record.group_id),
                topics=self._node.view.image.topics,
            )
        return self._host(shard_index, group, stored=stored)

    def _host(self, shard_index: int, group: Group, *, stored: StoredGroup | None) -> LoadedGroup:
        shard = self._shards.get(shard_index)

        async def is_still_ours() -> bool:
            self._shards.follow(await self._node.view.refresh())
            return shard is not None and self._shards.get(shard_index) is shard

        storage = GroupStorage(
            self._node.store,
            self.pages,
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

    # -- clocks: events and deadlines use one that never jumps, stored times the wall clock --

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _clock_offset_ms(self) -> int:
        return self._node.clock_ms() - self._now_ms()
