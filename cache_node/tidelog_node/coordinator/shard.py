"""The groups of one shard, while this node coordinates it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.errors import CorruptItem, NotCoordinator, TidelogError
from tidelog_core.metadata.groups import GroupRecord, group_collection
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore

from tidelog_node.coordinator.loaded_group import LoadedGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leadership:
    """Which reign over the shard this is: another one must load everything anew."""

    topic_id: UUID
    leader_epoch: int


class Shard:
    """Loads the shard's groups once, and single ones again after they had to be unloaded."""

    def __init__(
        self,
        index: int,
        leadership: Leadership,
        store: MetadataStore,
        *,
        restore: Callable[[int, GroupRecord], LoadedGroup],
    ) -> None:
        self.index = index
        self.leadership = leadership
        self.groups: dict[str, LoadedGroup] = {}
        self._store = store
        self._restore = restore
        self._stale: set[str] = set()  # in the store perhaps, but not in memory
        self._loading: asyncio.Task[TidelogError | None] | None = None
        self._is_loaded = False
        self._is_closed = False

    def begin_loading(self) -> None:
        """Load in the background, so that sessions of members who died are noticed."""
        if not self._is_loaded and self._loading is None:
            self._loading = asyncio.create_task(self._load())

    async def loaded(self) -> None:
        """Wait until all groups are there. Raises what kept them away."""
        while not self._is_loaded:
            self.begin_loading()
            assert self._loading is not None
            error = await asyncio.shield(self._loading)
            self._check_open()
            if error is not None:
                raise error

    async def find(self, group_id: str) -> LoadedGroup | None:
        """Return the group, or ``None`` where there is none of this id."""
        await self.loaded()
        if group_id in self._stale:
            item = await self._store.get(ItemKey(group_collection(self.index), group_id))
            self._check_open()
            # Someone else may have loaded it while we waited.
            if group_id in self._stale:
                if item is not None:
                    self.groups[group_id] = self._restore(self.index, GroupRecord.from_item(item))
                self._stale.discard(group_id)
        return self.groups.get(group_id)

    async def find_all(self) -> list[LoadedGroup]:
        """Return every group of the shard."""
        await self.loaded()
        for group_id in tuple(self._stale):
            with contextlib.suppress(CorruptItem):
                await self.find(group_id)
        return list(self.groups.values())

    def forget(self, group: LoadedGroup, *, is_stored: bool) -> None:
        """Drop a group that was unloaded; ``is_stored`` has it loaded again when needed."""
        group_id = group.group.group_id
        if self.groups.get(group_id) is group:
            del self.groups[group_id]
            if is_stored:
                self._stale.add(group_id)

    async def close(self) -> None:
        """Send everyone who waits to the next coordinator, and finish what is being stored."""
        self._is_closed = True
        if self._loading is not None:
            await asyncio.wait([self._loading])
        groups = list(self.groups.values())
        self.groups.clear()
        for group in groups:
            group.unload(ErrorCode.not_coordinator)
        for group in groups:
            await group.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotCoordinator(f"group shard {self.index} has moved")

    async def _load(self) -> TidelogError | None:
        try:
            items = await self._store.list(group_collection(self.index))
            for item in items:
                self._load_one(item)
            self._is_loaded = True
        except TidelogError as error:
            return error
        finally:
            self._loading = None
        return None

    def _load_one(self, item: Item) -> None:
        try:
            self.groups[item.id.key] = self._restore(self.index, GroupRecord.from_item(item))
        except CorruptItem as error:
            # One broken group must not take the others with it.
            logger.error("group cannot be loaded", extra={"problem": str(error)})
            self._stale.add(item.id.key)
