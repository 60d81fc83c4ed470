"""The groups of one shard, while this node coordinates it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.stored_groups import read_group, read_groups
from tidelog_core.errors import CoordinatorNotAvailable, CorruptItem
from tidelog_core.metadata.coordination.member_pages import StoredGroup
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.coordinator.led_shards import Leadership, LedShard
from tidelog_node.coordinator.loaded_group import LoadedGroup

logger = logging.getLogger(__name__)


class GroupShard(LedShard):
    """Loads the shard's groups once, and unloaded ones again when they are needed."""

    kind = "group"

    def __init__(
        self,
        index: int,
        leadership: Leadership,
        store: MetadataStore,
        *,
        restore: Callable[[int, StoredGroup], LoadedGroup],
    ) -> None:
        super().__init__(index, leadership, store)
        self.groups: dict[str, LoadedGroup] = {}
        self._restore = restore
        self._stale: set[str] = set()  # perhaps stored, but not in memory

    async def find(self, group_id: str) -> LoadedGroup | None:
        """Return the group, ``None`` if there is none of this id."""
        await self.loaded()
        if group_id in self._stale:
            stored = await read_group(self._store, self.index, group_id)
            self.check_open()
            # Another task may have loaded it during the read.
            if group_id in self._stale:
                if stored is not None:
                    self.groups[group_id] = self._restore(self.index, stored)
                self._stale.discard(group_id)
        return self.groups.get(group_id)

    async def find_all(self) -> list[LoadedGroup]:
        """Return every group of the shard."""
        await self.loaded()
        for group_id in tuple(self._stale):
            with contextlib.suppress(CorruptItem, CoordinatorNotAvailable):
                await self.find(group_id)
        return list(self.groups.values())

    def forget(self, group: LoadedGroup, *, is_stored: bool) -> None:
        """Drop an unloaded group; with ``is_stored`` it is loaded again when needed."""
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
        for group_id, stored in (await read_groups(self._store, self.index)).items():
            if isinstance(stored, StoredGroup):
                self.groups[group_id] = self._restore(self.index, stored)
            else:
                logger.error("group cannot be loaded", extra={"reason": str(stored)})
                self._stale.add(group_id)
