"""The groups of one shard, while this node coordinates it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.groups import GroupRecord, group_collection
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore

from tidelog_node.coordinator.led_shards import Leadership, LedShard
from tidelog_node.coordinator.loaded_group import LoadedGroup

logger = logging.getLogger(__name__)


class Shard(LedShard):
    """Loads the shard's groups once, and single ones again after they had to be unloaded."""

    kind = "group"

    def __init__(
        self,
        index: int,
        leadership: Leadership,
        store: MetadataStore,
        *,
        restore: Callable[[int, GroupRecord], LoadedGroup],
    ) -> None:
        super().__init__(index, leadership, store)
        self.groups: dict[str, LoadedGroup] = {}
        self._restore = restore
        self._stale: set[str] = set()  # in the store perhaps, but not in memory

    async def find(self, group_id: str) -> LoadedGroup | None:
        """Return the group, or ``None`` where there is none of this id."""
        await self.loaded()
        if group_id in self._stale:
            item = await self._store.get(ItemKey(group_collection(self.index), group_id))
            self.check_open()
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

    async def _unload_all(self) -> None:
        groups = list(self.groups.values())
        self.groups.clear()
        for group in groups:
            group.unload(ErrorCode.not_coordinator)
        for group in groups:
            await group.close()

    async def _read_all(self) -> None:
        for item in await self._store.list(group_collection(self.index)):
            self._load_one(item)

    def _load_one(self, item: Item) -> None:
        try:
            self.groups[item.id.key] = self._restore(self.index, GroupRecord.from_item(item))
        except CorruptItem as error:
            # One broken group must not take the others with it.
            logger.error("group cannot be loaded", extra={"problem": str(error)})
            self._stale.add(item.id.key)
