"""Stores that fail at a chosen operation, and that check every deletion.

The process of a function dies before or after any operation on a store, or an operation
fails or has an unknown outcome. Every write is checked against the real stores below when
it is made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from enum import Enum
from pathlib import Path
from uuid import UUID

from tidelog_core.errors import ObjectNotFound, OutcomeUnknown, StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState
from tidelog_core.metadata.store import (
    ALL_KEYS,
    Changes,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    KeyRange,
    MetadataStore,
    Write,
)
from tidelog_core.objects.store import ObjectMeta, ObjectStore
from tidelog_core.tier.keys import (
    parse_deletion_key,
    parse_log_start_key,
    parse_segment_key,
)


class Crash(Exception):
    """The process is gone."""


class Fault(Enum):
    """The fault of the chosen operation."""

    DIES_BEFORE = "dies before"
    DIES_AFTER = "dies after"
    FAILS = "fails"  # not done, and raises
    UNKNOWN = "unknown"  # done, but the answer is lost; reads fail


class Process:
    """One run of a function: counts its operations and dies at one of them."""

    def __init__(self, fault_at: int | None = None, fault: Fault = Fault.DIES_BEFORE) -> None:
        self._fault_at = fault_at
        self._fault = fault
        self._is_dead = False
        self.operation_count = 0

    def before(self, *, is_write: bool) -> None:
        if self._is_dead:
            raise Crash
        self.operation_count += 1
        if self.operation_count - 1 != self._fault_at:
            return
        if self._fault is Fault.FAILS or (self._fault is Fault.UNKNOWN and not is_write):
            raise StoreUnavailable("injected")
        if self._fault is Fault.DIES_BEFORE:
            self._is_dead = True
            raise Crash

    def after(self, number: int) -> None:
        if number == self._fault_at and self._fault is Fault.UNKNOWN:
            raise OutcomeUnknown("injected")
        if number == self._fault_at and self._fault is Fault.DIES_AFTER:
            self._is_dead = True
        if self._is_dead:
            raise Crash


class Witness:
    """Records when log starts moved, and checks every deletion and marker."""

    def __init__(self, store: MetadataStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._passed_ms: dict[tuple[UUID, int], list[tuple[int, int]]] = {}
        self.delay_ms: dict[UUID, int] = {}  # of every topic
        self.deleted_topics_ms: dict[UUID, int] = {}
        self.wrong: list[str] = []

    def note(self, partition: Partition) -> None:
        """Note a log start that is stored."""
        moves = self._passed_ms.setdefault((partition.topic_id, partition.partition), [])
        if moves and partition.log_start_offset < moves[-1][0]:
            self.wrong.append(f"log start of {partition} went back from {moves[-1][0]}")
        if not moves or partition.log_start_offset > moves[-1][0]:
            moves.append((partition.log_start_offset, self._clock()))

    async def judge_told(self, key: str) -> None:
        """Check that the marker may be written now: it never goes beyond the metadata."""
        start, deletion = parse_log_start_key(key), parse_deletion_key(key)
        if start is not None:
            item = await self._store.get(records.partition_key(start.topic_id, start.partition))
            stored = 0 if item is None else Partition.from_item(item).log_start_offset
            if start.offset > stored and start.topic_id not in self.deleted_topics_ms:
                self.wrong.append(f"{key} is told, but the log starts at {stored}")
        elif deletion is None or deletion.topic_id not in self.deleted_topics_ms:
            self.wrong.append(f"{key} is told of nothing that is so")

    async def judge(self, key: str, objects: ObjectStore) -> None:
        """Check that the object may be deleted now; an absent one may."""
        try:
            await objects.head(key)
        except ObjectNotFound:
            return
        parsed, start = parse_segment_key(key), parse_log_start_key(key)
        deletion = parse_deletion_key(key)
        if deletion is not None and [m async for m in objects.list(f"{deletion.folder}/")]:
            self.wrong.append(f"{key} went before all that it tells of")
        if start is not None and start.topic_id not in self.deleted_topics_ms:
            told = await published_log_start(objects, key)
            if told <= start.offset:
                self.wrong.append(f"{key} went, and the log start that it tells of with it")
        if parsed is None:
            return
        deleted_ms = self.deleted_topics_ms.get(parsed.topic_id)
        if deleted_ms is not None:
            if self._clock() < deleted_ms + 60_000:
                self.wrong.append(f"{key} went too soon after its topic")
            folder = "/".join(key.split("/")[:2])
            if [m.key async for m in objects.list(f"{folder}.")] != [f"{folder}.deleted.json"]:
                self.wrong.append(f"{key} went before the bucket was told of the deletion")
            return
        items = await self._store.list(
            records.segment_collection(parsed.topic_id, parsed.partition)
        )
        metas = {meta.segment_id: meta for meta in map(SegmentMeta.from_item, items)}
        meta = metas.get(parsed.segment_id)
        if meta is None:
            return  # No item names it.
        if meta.state is not SegmentState.DELETE_STARTED:
            self.wrong.append(f"{key} went while it was {meta.state}")
            return
        if await published_log_start(objects, key) < meta.end_offset:
            self.wrong.append(f"{key} went before the bucket was told of the log start")
        moves = self._passed_ms.get((meta.topic_id, meta.partition), [])
        passed = [ms for start, ms in moves if start >= meta.end_offset]
        if not passed or self._clock() < passed[0] + self.delay_ms[meta.topic_id]:
            self.wrong.append(f"{key} went before readers could be done")


async def published_log_start(objects: ObjectStore, key: str) -> int:
    """Return where the bucket says that the log starts of the partition that the key is of."""
    folder = key.rpartition("/")[0]
    told = [parse_log_start_key(found.key) async for found in objects.list(f"{folder}/")]
    return max((start.offset for start in told if start is not None), default=0)


class WatchedMetadata:
    """A ``MetadataStore`` as one process sees it."""

    def __init__(self, store: MetadataStore, process: Process, witness: Witness) -> None:
        self._store = store
        self._process = process
        self._witness = witness

    async def get(self, id: ItemKey) -> Item | None:
        number = self._process.operation_count
        self._process.before(is_write=False)
        found = await self._store.get(id)
        self._process.after(number)
        return found

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        number = self._process.operation_count
        self._process.before(is_write=False)
        found = await self._store.get_many(ids)
        self._process.after(number)
        return found

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        number = self._process.operation_count
        self._process.before(is_write=False)
        found = await self._store.list(collection, prefix=prefix, keys=keys)
        self._process.after(number)
        return found

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        number = self._process.operation_count
        self._process.before(is_write=True)
        await self._store.commit(writes, checks=checks)
        for write in writes:
            is_partition = write.id.collection.startswith(records.PARTITION_COLLECTION_PREFIX)
            if is_partition and write.body is not None:
                item = Item(write.id, write.expected_version + 1, write.body)
                self._witness.note(Partition.from_item(item))
        self._process.after(number)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        return await self._store.changes_since(version)

    async def increment(self, id: ItemKey, by: int) -> int:
        return await self._store.increment(id, by)

    async def close(self) -> None:
        """The store outlives the process."""


class WatchedObjects:
    """An ``ObjectStore`` as one process sees it."""

    def __init__(self, store: ObjectStore, process: Process, witness: Witness) -> None:
        self._store = store
        self._process = process
        self._witness = witness

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Put a marker of a log start or a deletion: functions put nothing else."""
        number = self._process.operation_count
        self._process.before(is_write=True)
        await self._witness.judge_told(key)
        await self._store.put(key, data, kms_key_id=kms_key_id)
        self._process.after(number)

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        await self._store.put_file(key, path, kms_key_id=kms_key_id)

    async def replace(self, key: str, data: bytes) -> None:
        """Replace a marker of a log start or a deletion."""
        number = self._process.operation_count
        self._process.before(is_write=True)
        await self._witness.judge_told(key)
        await self._store.replace(key, data)
        self._process.after(number)

    async def get(self, key: str) -> bytes:
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        return await self._store.get_range(key, start, end)

    async def head(self, key: str) -> ObjectMeta:
        return await self._store.head(key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        number = self._process.operation_count
        self._process.before(is_write=False)
        async for found in self._store.list(prefix, start_after=start_after):
            yield found
        self._process.after(number)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete one after the other: a crash may come between any two."""
        for key in keys:
            number = self._process.operation_count
            self._process.before(is_write=True)
            await self._witness.judge(key, self._store)
            await self._store.delete([key])
            self._process.after(number)

    async def close(self) -> None:
        """The store outlives the process."""
