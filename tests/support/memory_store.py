"""A metadata store in memory that fails on command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence

from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from tidelog_core.metadata.store import (
    ALL_KEYS,
    ANY_VERSION,
    COMMIT_WRITES_MAX,
    Changes,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    KeyRange,
    Write,
)


class MemoryMetadataStore:
    """One truth that several coordinators of a test may share."""

    def __init__(self, latency: float = 0.001) -> None:
        self.latency = latency  # seconds, of every call
        self.is_available = True
        # Called before each commit; may return an error to raise, with or without writing.
        self.on_commit: Callable[[Sequence[Write]], Exception | None] = lambda _: None
        self.commits: list[Sequence[Write]] = []
        self.list_count = 0
        self._items: dict[ItemKey, tuple[int, str]] = {}
        self._changes: list[tuple[int, ItemKey]] = []
        self._version = 0

    async def get(self, id: ItemKey) -> Item | None:
        await self._call()
        return self._item(id)

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        await self._call()
        found = {item_id: self._item(item_id) for item_id in ids}
        return {item_id: item for item_id, item in found.items() if item is not None}

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        self.list_count += 1
        await self._call()
        start, end = keys.bounds(prefix)
        found = [k for k in self._items if k.collection == collection and k.key >= start]
        found = sorted(k for k in found if end is None or k.key < end)
        if keys.is_descending:
            found.reverse()
        return [item for key in found[: keys.limit] if (item := self._item(key)) is not None]

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        assert len(writes) + len(checks) <= COMMIT_WRITES_MAX
        await self._call()
        error = self.on_commit(writes)
        if error is not None and not isinstance(error, OutcomeUnknown):
            raise error
        stale = [
            (c.id.collection, c.id.key)
            for c in (*writes, *checks)
            if c.expected_version not in (ANY_VERSION, self._items.get(c.id, (0, ""))[0])
        ]
        if stale:
            raise VersionConflict(stale)
        self.commits.append(writes)
        for write in writes:
            version = self._items.pop(write.id, (0, ""))[0]
            if write.body is not None:
                self._items[write.id] = (version + 1, json.dumps(write.body))
        if any(write.is_logged for write in writes):
            self._version += 1
            self._changes += [(self._version, write.id) for write in writes if write.is_logged]
        if error is not None:
            raise error

    async def changes_since(self, version: ClusterVersion) -> Changes:
        await self._call()
        keys = frozenset(key for at, key in self._changes if at > version)
        return Changes(ClusterVersion(self._version), keys)

    async def increment(self, id: ItemKey, by: int) -> int:
        await self._call()
        version, text = self._items.get(id, (0, '{"value": 0}'))
        value = int(json.loads(text)["value"]) + by
        self._items[id] = (version + 1, json.dumps({"value": value}))
        return value

    async def close(self) -> None:
        pass

    async def _call(self) -> None:
        await asyncio.sleep(self.latency)
        if not self.is_available:
            raise StoreUnavailable("the store is away")

    def _item(self, id: ItemKey) -> Item | None:
        found = self._items.get(id)
        return None if found is None else Item(id, found[0], json.loads(found[1]))
