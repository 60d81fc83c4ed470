"""Stores that count the DynamoDB units and S3 requests of their calls.

Each wraps a real store and does not change its results. The DynamoDB units of a call are computed
from the requests of ``dynamodb_items``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog_core.metadata.store import (
    ALL_KEYS,
    ANY_VERSION,
    Changes,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    KeyRange,
    MetadataStore,
    Write,
)
from tidelog_core.metadata.stores import dynamodb_items as items
from tidelog_core.metadata.stores import dynamodb_units as units
from tidelog_core.objects.store import ObjectMeta, ObjectStore

LIST_PAGE_KEYS = 1000  # of a LIST, and of a DeleteObjects. Source: S3 API reference.


@dataclass(slots=True)
class Usage:
    """The units used so far, by kind of collection: the part of its name before a colon."""

    write_units: Counter[str] = field(default_factory=Counter)
    read_units: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    transactions: int = 0
    logged_commits: int = 0
    requests: Counter[str] = field(default_factory=Counter)  # of S3, by method

    def count_write(self, collection: str, amount: int) -> None:
        """Add write units of an item of the collection."""
        self.write_units[collection.partition(":")[0]] += amount

    def count_read(self, collection: str, amount: float) -> None:
        """Add read units of items of the collection."""
        self.read_units[collection.partition(":")[0]] += amount


class MeteredStore:
    """A ``MetadataStore``; ``usage`` may be replaced between two calls."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._entries: dict[int, int] = {}  # cluster version -> size of its changelog entry
        self._version = ClusterVersion(0)  # of the last commit through this store
        self.usage = Usage()

    async def get(self, id: ItemKey) -> Item | None:
        """Forward; at least one unit."""
        found = await self._store.get(id)
        size_bytes = 0 if found is None else units.item_size_bytes(found)
        self.usage.count_read(id.collection, units.read_units(size_bytes))
        return found

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Forward; each item costs as much as a single read."""
        found = await self._store.get_many(ids)
        for item_id in ids:
            size_bytes = units.item_size_bytes(found[item_id]) if item_id in found else 0
            self.usage.count_read(item_id.collection, units.read_units(size_bytes))
        return found

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        """Forward; a query's size is rounded up once, not for each item."""
        found = await self._store.list(collection, prefix=prefix, keys=keys)
        size_bytes = sum(map(units.item_size_bytes, found))
        self.usage.count_read(collection, units.read_units(size_bytes))
        return found

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        """Forward; count it if it succeeds."""
        before = await self._sizes_bytes([write.id for write in writes])
        checked = await self._sizes_bytes(
            [check.id for check in checks if check.expected_version != ANY_VERSION]
        )
        await self._store.commit(writes, checks=checks)
        logged = [write.id for write in writes if write.is_logged]
        is_alone = len(writes) == 1 and not checks and not logged
        cost = units.write_units if is_alone else units.transaction_write_units
        for write in writes:
            size_bytes = max(before[write.id], units.written_size_bytes(write))
            self.usage.count_write(write.id.collection, cost(size_bytes))
        for item_id, size_bytes in checked.items():
            self.usage.count_write(item_id.collection, cost(size_bytes))
        self.usage.transactions += not is_alone
        if logged:
            self._version = (await self._store.changes_since(self._version)).version
            self._entries[self._version] = units.changelog_entry_size_bytes(logged)
            self.usage.logged_commits += 1
            for collection, amount in units.logging_units(logged).items():
                self.usage.count_write(collection, amount)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        """Forward; count the version's item, and new entries if there are some."""
        changes = await self._store.changes_since(version)
        self.usage.count_read(items.CLUSTER_VERSION.collection, 1)
        if changes.version != version and changes.keys is not None:
            size_bytes = sum(
                self._entries.get(v, 0) for v in range(version + 1, changes.version + 1)
            )
            self.usage.count_read(items.CHANGELOG_COLLECTION, units.eventual_read_units(size_bytes))
        return changes

    async def increment(self, id: ItemKey, by: int) -> int:
        """Forward; a single write."""
        self.usage.count_write(id.collection, 1)
        return await self._store.increment(id, by)

    async def close(self) -> None:
        """Close the real one."""
        await self._store.close()

    async def _sizes_bytes(self, ids: Sequence[ItemKey]) -> dict[ItemKey, int]:
        found = await self._store.get_many(ids)
        return {each: units.item_size_bytes(found[each]) if each in found else 0 for each in ids}


class MeteredObjects:
    """An ``ObjectStore`` that counts requests as S3 bills them; DELETEs are free."""

    def __init__(self, store: ObjectStore, usage: Usage) -> None:
        self._store = store
        self.usage = usage

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Forward."""
        self.usage.requests["PUT"] += 1
        await self._store.put(key, data, kms_key_id=kms_key_id)

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Forward; one PUT, up to the multipart threshold."""
        self.usage.requests["PUT"] += 1
        await self._store.put_file(key, path, kms_key_id=kms_key_id)

    async def replace(self, key: str, data: bytes) -> None:
        """Forward."""
        self.usage.requests["PUT"] += 1
        await self._store.replace(key, data)

    async def get(self, key: str) -> bytes:
        """Forward."""
        self.usage.requests["GET"] += 1
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        """Forward."""
        self.usage.requests["GET"] += 1
        return await self._store.get_range(key, start, end)

    async def head(self, key: str) -> ObjectMeta:
        """Forward; billed like a GET."""
        self.usage.requests["GET"] += 1
        return await self._store.head(key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Forward, page by page."""
        self.usage.requests["LIST"] += 1
        count = 0
        async for found in self._store.list(prefix, start_after=start_after):
            count += 1
            self.usage.requests["LIST"] += count > LIST_PAGE_KEYS and count % LIST_PAGE_KEYS == 1
            yield found

    async def delete(self, keys: Sequence[str]) -> None:
        """Forward; one request for every thousand keys."""
        self.usage.requests["DELETE"] += -(-len(keys) // LIST_PAGE_KEYS)
        await self._store.delete(keys)

    async def close(self) -> None:
        """Close the real one."""
        await self._store.close()
