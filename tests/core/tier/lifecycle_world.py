"""One partition's tier, everyone who changes it, and what must be so after each of their steps.

A step is one call to a store: before each, its caller waits for its turn, and a seed says whose
turn it is. A call for several objects is several steps in any order, as a store may take them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from tidelog_core.metadata.records import SegmentMeta, SegmentState
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
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.restoration.selection import BrokenSegment, CompleteSegment, select_segments
from tidelog_core.restoration.survey import assess_segment
from tidelog_core.tier.bucket import sort_listing
from tidelog_core.tier.keys import parse_log_start_key, parse_segment_key, segment_keys
from tidelog_core.tier.lifecycle import is_valid_transition, read_segments
from tidelog_core.tier.planning import finished_segments

from tests.support.compacted_tier import plain
from tests.support.docs_reader import reader
from tests.support.memory_store import MemoryMetadataStore
from tests.support.random_logs import RandomLog
from tests.support.tiered_partition import CLUSTER_ID, TOPIC, TieredPartition
from tests.support.watched_stores import Process

DELAY_MS = 60_000
CONFIGS = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "300",
    "retention.ms": "-1",
    "retention.bytes": "500",
    "file.delete.delay.ms": str(DELAY_MS),
}
FIRST_EPOCH = 3
COPIED_BEFORE = 3  # segments
KEYS = ("ab", "ac", "ad", "be", "af", "ca")  # of the records of each segment
MARKED = SegmentState.DELETE_STARTED
FINISHED = SegmentState.COPY_FINISHED


class Stage:
    """Gives one actor after the other its turn, in an order that a seed gives."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._moved = asyncio.Event()

    async def turn(self, actor: str) -> None:
        """Wait for the actor's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[actor].append(turn)
        self._moved.set()
        await turn

    async def play(
        self, actors: Mapping[str, Coroutine[Any, Any, None]], world: LifecycleWorld
    ) -> int:
        """Run the actors until all have ended; return in how many steps."""
        tasks = {name: asyncio.create_task(actor) for name, actor in actors.items()}
        for task in tasks.values():
            task.add_done_callback(lambda _: self._moved.set())
        steps = 0
        while True:
            while any(not task.done() and not self._waiting[name] for name, task in tasks.items()):
                self._moved.clear()
                await self._moved.wait()
            await world.check()
            ready = [name for name in tasks if self._waiting[name]]
            if not ready:
                break
            self._waiting[self.random.choice(ready)].popleft().set_result(None)
            await asyncio.sleep(0)
            steps += 1
        await asyncio.gather(*tasks.values())
        return steps


class SteppedMetadata:
    """The metadata store as one actor sees it, which may die or hear nothing at a step."""

    def __init__(self, world: LifecycleWorld, actor: str, process: Process) -> None:
        self._world, self._actor, self._process = world, actor, process
        self._store: MetadataStore = world.store

    async def _step(self, step: Coroutine[Any, Any, Any], *, is_write: bool = False) -> Any:
        try:
            await self._world.stage.turn(self._actor)
            number = self._process.operation_count
            self._process.before(is_write=is_write)
            found = await step
            self._process.after(number)
        finally:
            step.close()
        return found

    async def get(self, id: ItemKey) -> Item | None:
        found: Item | None = await self._step(self._store.get(id))
        return found

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        found: dict[ItemKey, Item] = await self._step(self._store.get_many(ids))
        return found

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found: list[Item] = await self._step(self._store.list(collection, prefix=prefix, keys=keys))
        return found

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        await self._step(self._store.commit(writes, checks=checks), is_write=True)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        return await self._store.changes_since(version)

    async def increment(self, id: ItemKey, by: int) -> int:
        return await self._store.increment(id, by)

    async def close(self) -> None:
        """The store outlives the actor."""


class SteppedObjects:
    """The bucket as one actor sees it. What is only read is no step."""

    def __init__(self, world: LifecycleWorld, actor: str, process: Process) -> None:
        self._world, self._actor, self._process = world, actor, process
        self._objects = world.objects

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        await self._write(key, self._objects.put(key, data, kms_key_id=kms_key_id))

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        await self.put(key, path.read_bytes(), kms_key_id=kms_key_id)

    async def replace(self, key: str, data: bytes) -> None:
        await self._write(key, self._objects.replace(key, data))

    async def _write(self, key: str, write: Coroutine[Any, Any, None]) -> None:
        try:
            await self._world.stage.turn(self._actor)
            number = self._process.operation_count
            self._process.before(is_write=True)
            await self._world.judge_put(key)
            await write
            self._process.after(number)
        finally:
            write.close()

    async def get(self, key: str) -> bytes:
        return await self._objects.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._objects.get_range(key, start, end)

    async def head(self, key: str) -> ObjectMeta:
        return await self._objects.head(key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for found in self._objects.list(prefix, start_after=start_after):
            yield found

    async def delete(self, keys: Sequence[str]) -> None:
        for key in self._world.stage.random.sample(list(keys), len(keys)):
            await self._world.stage.turn(self._actor)
            number = self._process.operation_count
            self._process.before(is_write=True)
            await self._world.judge_delete(key)
            await self._objects.delete([key])
            self._process.after(number)

    async def close(self) -> None:
        """The bucket outlives the actor."""


class LifecycleWorld:
    """The truth, and what is wrong with it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.stage = Stage(seed)
        self.store = MemoryMetadataStore(latency=0)
        self.objects = MemoryObjectStore()
        self.tier = TieredPartition(self.store, self.objects, folder, configs=CONFIGS)
        self.clock = self.tier.clock
        self.log_ends: dict[int, int] = {}  # of each epoch's leader
        self.segments: list[list[bytes]] = []  # as every leader has rolled them
        # Put when nobody waited for them any more, by a leader that did not know that yet.
        self.late: set[UUID] = set()
        self._states: dict[UUID, SegmentState] = {}
        self._were_read: dict[UUID, SegmentMeta] = {}
        self._log_start = 0
        self._passed: list[tuple[int, int]] = []  # log starts, and when each was stored

    async def start(self) -> None:
        """Have a leader that has copied some of its segments."""
        await self.tier.create()
        log = RandomLog()
        for keys in KEYS:
            self.segments.append([plain(log, *keys), plain(log, keys[0])])
        plain(log, "z")  # in the active segment
        self.log_ends[FIRST_EPOCH] = log.end_offset
        for batches in self.segments[:COPIED_BEFORE]:
            copied = await self.tier.copy(batches)
            self._states[copied.segment_id] = copied.state
        await self.check()

    def stores(self, actor: str, process: Process) -> tuple[SteppedMetadata, SteppedObjects]:
        """Return the stores as the actor sees them."""
        return SteppedMetadata(self, actor, process), SteppedObjects(self, actor, process)

    async def metas(self) -> list[SegmentMeta]:
        return await read_segments(self.store, self.tier.topic.topic_id, 0)

    async def published_log_start(self) -> int:
        """Return where the bucket says that the log starts."""
        found = [parse_log_start_key(key) for key in await self._keys()]
        return max((one.offset for one in found if one is not None), default=0)

    # -- what must be so --

    async def judge_put(self, key: str) -> None:
        parsed, start = parse_segment_key(key), parse_log_start_key(key)
        if start is not None:
            assert start.offset <= (await self.tier.stored_partition()).log_start_offset
        if parsed is not None and self._states.get(parsed.segment_id) in (None, MARKED):
            self.late.add(parsed.segment_id)

    async def judge_delete(self, key: str) -> None:
        """Check that the object may go now: no reader can be pointed at it any more."""
        parsed = parse_segment_key(key)
        if parsed is None:
            return
        metas = {meta.segment_id: meta for meta in await self.metas()}
        meta = metas.get(parsed.segment_id)
        assert meta is None or (meta.state is MARKED and meta.deletable_ms <= self.clock()), key
        was_read = self._were_read.get(parsed.segment_id)
        if was_read is None or await self.published_log_start() >= was_read.end_offset:
            return
        newer = [
            one
            for one in self._were_read.values()
            if one.rewrite_epoch > was_read.rewrite_epoch
            and one.base_offset <= was_read.base_offset
            and one.end_offset >= was_read.end_offset
        ]
        assert newer, f"{key} went, and the bucket does not say why"

    async def check(self) -> None:
        """Check everything that must be so between any two steps."""
        metas = await self.metas()
        partition = await self.tier.stored_partition()
        end = self.log_ends[partition.leader_epoch]
        assert self._log_start <= partition.log_start_offset <= end
        if partition.log_start_offset > self._log_start:
            self._log_start = partition.log_start_offset
            self._passed.append((self._log_start, self.clock()))
        self._check_states(metas)
        tiered_end = max((meta.end_offset for meta in finished_segments(metas)), default=0)
        assert tiered_end <= end
        found = {one.key: one async for one in self.objects.list("")}
        for meta in finished_segments(metas):
            keys = segment_keys(CLUSTER_ID, TOPIC, meta)
            sizes = (found[keys.log].size_bytes, found[keys.index].size_bytes)
            assert sizes == (meta.size_bytes, meta.index_size_bytes)
        await self._check_strangers(found, tiered_end)
        await self._check_restoration(found, tiered_end)

    def _check_states(self, metas: Sequence[SegmentMeta]) -> None:
        now = {meta.segment_id: meta for meta in metas}
        for segment_id in self._states.keys() | now.keys():
            before, meta = self._states.get(segment_id), now.get(segment_id)
            after = None if meta is None else meta.state
            assert before is after or is_valid_transition(before, after), (before, after)
            if meta is None:
                del self._states[segment_id]
                continue
            self._states[segment_id] = meta.state
            if meta.state is FINISHED:
                self._were_read[segment_id] = meta
            passed_ms = [ms for start, ms in self._passed if start >= meta.end_offset]
            if before is FINISHED and meta.state is MARKED and passed_ms:
                assert meta.deletable_ms >= passed_ms[0] + DELAY_MS

    async def _check_strangers(self, found: Mapping[str, ObjectMeta], tiered_end: int) -> None:
        """Read as docs/read_segments.py does."""
        data = {key: await self.objects.get(key) for key in found}
        problems: list[str] = []
        sizes = {key: one.size_bytes for key, one in found.items()}
        read = reader.read_bucket(sizes, data.__getitem__, problems.append)
        assert [one for one in problems if not self._is_late(one.partition(":")[0])] == []
        starts = reader.log_starts(sizes)
        for name, segments in read.items():
            start = starts[name]
            list(reader.read_records(segments, data.__getitem__, start))
            assert tiered_end <= max((one.end for one in segments), default=start)

    async def _check_restoration(self, found: Mapping[str, ObjectMeta], tiered_end: int) -> None:
        """Select as ``tidelog restore`` does."""
        clusters, foreign = sort_listing(found.values())
        assert foreign == clusters[CLUSTER_ID].foreign == []
        (topic,) = clusters[CLUSTER_ID].topics.values()
        complete, broken = [], []
        for segment in topic.partitions.get(0, ()):
            if segment.index is not None:
                data = await self.objects.get(segment.index_key)
                one = assess_segment(segment, data)
                (complete if isinstance(one, CompleteSegment) else broken).append(one)
        assert all(isinstance(one, CompleteSegment) for one in complete)
        assert all(isinstance(one, BrokenSegment) and self._is_late(one.key) for one in broken)
        chosen = select_segments(
            [one for one in complete if isinstance(one, CompleteSegment)],
            published_start=topic.log_starts.get(0, 0),
        )
        assert chosen.problems == ()
        ends = [one.meta.end_offset for one in chosen.segments]
        assert tiered_end <= max(ends, default=chosen.log_start_offset)

    def _is_late(self, key: str) -> bool:
        parsed = parse_segment_key(key)
        return parsed is not None and parsed.segment_id in self.late

    async def check_rest(self) -> None:
        """Check that nothing is left but what readers use and what came too late."""
        metas = await self.metas()
        assert all(meta.state is FINISHED for meta in metas)
        start = (await self.tier.stored_partition()).log_start_offset
        assert all(meta.end_offset > start for meta in metas)
        pairs = [segment_keys(CLUSTER_ID, TOPIC, meta) for meta in metas]
        named = {key for pair in pairs for key in (pair.log, pair.index)}
        there = {key for key in await self._keys() if parse_segment_key(key) is not None}
        assert named <= there
        assert all(self._is_late(key) for key in there - named)

    async def _keys(self) -> list[str]:
        return [found.key async for found in self.objects.list("")]
