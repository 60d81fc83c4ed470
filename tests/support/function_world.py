"""A cluster's metadata and bucket as nodes write them, in real stores."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

from tidelog_core.admin.topics.topic_commits import Deletion, deletion_writes
from tidelog_core.admin.topics.topic_plans import plan_deletion
from tidelog_core.config import NodeConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import (
    Broker,
    Cluster,
    DeletedTopic,
    Partition,
    ScrubOrphans,
    SegmentMeta,
    SegmentState,
    Topic,
)
from tidelog_core.metadata.store import ANY_VERSION, MetadataStore, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.retention.orphans import AgeLimits
from tidelog_core.tier.keys import (
    SegmentKey,
    SegmentKeys,
    parse_deletion_key,
    parse_log_start_key,
    parse_segment_key,
    segment_keys,
)
from tidelog_functions.cluster_reader import ClusterReader
from tidelog_functions.invocation import TimeLimit
from tidelog_functions.retention.cluster_pass import PassResult
from tidelog_functions.retention.handler import apply_retention
from tidelog_functions.scrub.handler import scrub
from tidelog_functions.scrub.settings import ScrubSettings
from tidelog_functions.scrub.sweep import Report

from tests.support.clock import Clock

CLUSTER_ID = "cluster-1"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
RECORDS_PER_SEGMENT = 10
LIMITS = AgeLimits(orphan_age_ms=DAY_MS, doubtful_age_ms=7 * DAY_MS)


class Steps:
    """A Lambda context whose time is over after ``count`` checks of the time left."""

    def __init__(self, count: int = 1_000_000) -> None:
        self._left = count + 1  # the first look is the limit's own

    def get_remaining_time_in_millis(self) -> int:
        self._left -= 1
        return 900_000 if self._left >= 0 else 0


class FunctionWorld:
    """Stores and the writes of nodes. Objects' times are real, so the clock starts now."""

    def __init__(self, store: MetadataStore, objects: ObjectStore) -> None:
        self.store = store
        self.objects = objects
        self.clock = Clock(time.time_ns() // 1_000_000)

    async def start(self) -> None:
        """Register the cluster and a node, unless that was done before."""
        if await self.store.get(records.cluster_key()) is not None:
            return
        broker = Broker(
            broker_id=1, incarnation=uuid4(), endpoints=plaintext_endpoints("127.0.0.1", 1)
        )
        await self.store.commit([records.put(Cluster(cluster_id=CLUSTER_ID)), records.put(broker)])

    async def create_topic(
        self, name: str = "events", *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> Topic:
        topic = Topic(
            name=name, topic_id=uuid4(), partition_count=partitions, configs=dict(configs or {})
        )
        items = [
            Partition(
                topic_id=topic.topic_id,
                partition=number,
                replicas=(1,),
                leader=1,
                leader_epoch=0,
                isr=(1,),
            )
            for number in range(partitions)
        ]
        await self.store.commit([*map(records.put, items), records.put(topic)])
        return dataclasses.replace(topic, version=1)

    async def delete_topic(self, topic: Topic) -> DeletedTopic:
        tombstone = plan_deletion(topic, now_ms=self.clock())
        await self.store.commit(deletion_writes(Deletion(topic, tombstone)))
        return tombstone

    async def start_copy(
        self, topic: Topic, base: int, *, partition: int = 0, size: int = 100, age_ms: int = 0
    ) -> SegmentMeta:
        """Copy a segment as a copier does, without the commit that finishes the copy."""
        segment = dataclasses.replace(
            self._segment(topic, base, partition),
            size_bytes=size,
            max_timestamp_ms=self.clock() - age_ms,
        )
        await self.store.commit([records.put(segment, is_logged=False)])
        keys = self.keys(topic, segment)
        await self.objects.put(keys.log, b"x" * size)
        await self.objects.put(keys.index, b"index")
        return dataclasses.replace(segment, version=1)

    async def finish_copy(self, segment: SegmentMeta) -> SegmentMeta:
        finished = dataclasses.replace(
            segment, state=SegmentState.COPY_FINISHED, index_size_bytes=5, chained_hash="00"
        )
        item = await self.store.get(records.partition_key(segment.topic_id, segment.partition))
        assert item is not None
        check = records.check(Partition.from_item(item))
        await self.store.commit([records.put(finished, is_logged=False)], checks=[check])
        return dataclasses.replace(finished, version=2)

    async def copy(
        self, topic: Topic, base: int, *, partition: int = 0, size: int = 100, age_ms: int = 0
    ) -> SegmentMeta:
        segment = await self.start_copy(topic, base, partition=partition, size=size, age_ms=age_ms)
        return await self.finish_copy(segment)

    async def delete_records(self, topic: Topic, offset: int, *, partition: int = 0) -> None:
        """Advance the log start as DeleteRecords does."""
        found = await self.partition(topic, partition)
        if offset > found.log_start_offset:
            moved = dataclasses.replace(found, log_start_offset=offset)
            await self.store.commit([records.put(moved)])

    async def put_orphan(self, topic: Topic, base: int, *, partition: int = 0) -> SegmentKeys:
        """Leave objects of an upload that came to its end after its item was gone."""
        segment = self._segment(topic, base, partition)
        keys = self.keys(topic, segment)
        await self.objects.put(keys.log, b"x")
        await self.objects.put(keys.index, b"i")
        return keys

    def _segment(self, topic: Topic, base: int, partition: int) -> SegmentMeta:
        return SegmentMeta(
            topic_id=topic.topic_id,
            partition=partition,
            base_offset=base,
            end_offset=base + RECORDS_PER_SEGMENT,
            leader_epoch=0,
            segment_id=uuid4(),
            state=SegmentState.COPY_STARTED,
            size_bytes=1,
            index_size_bytes=0,
            max_timestamp_ms=self.clock(),
            leader_epochs=((0, base),),
            chained_hash="",
            created_ms=self.clock(),
        )

    async def corrupt(self, item_id: records.ItemKey) -> None:
        """Overwrite an item with a body that no program writes."""
        await self.store.commit([Write(item_id, {"nonsense": 1}, ANY_VERSION, False)])

    # -- reading --

    def keys(self, topic: Topic, segment: SegmentMeta) -> SegmentKeys:
        return segment_keys(CLUSTER_ID, topic.name, segment)

    def index_key(self, topic: Topic, segment: SegmentMeta) -> SegmentKey:
        parsed = parse_segment_key(self.keys(topic, segment).index)
        assert parsed is not None
        return parsed

    async def partition(self, topic: Topic, number: int = 0) -> Partition:
        item = await self.store.get(records.partition_key(topic.topic_id, number))
        assert item is not None
        return Partition.from_item(item)

    async def segments(self, topic_id: UUID, partition: int = 0) -> list[SegmentMeta]:
        items = await self.store.list(records.segment_collection(topic_id, partition))
        return [SegmentMeta.from_item(item) for item in items]

    async def present(self) -> set[str]:
        """Return the objects' keys, without markers of log starts and deletions."""
        return {key async for key in self._keys() if not _tells(key)}

    async def told(self) -> set[str]:
        """Return the keys of the markers of log starts and deletions."""
        return {key async for key in self._keys() if _tells(key)}

    async def published_log_starts(self, topic: Topic, partition: int = 0) -> list[int]:
        """Return the log start offsets published in the bucket, ascending."""
        parsed = map(parse_log_start_key, sorted(await self.told()))
        return [
            one.offset
            for one in parsed
            if one is not None and (one.topic_id, one.partition) == (topic.topic_id, partition)
        ]

    async def _keys(self) -> AsyncIterator[str]:
        async for found in self.objects.list(""):
            yield found.key

    # -- the functions --

    async def retain(self, *keys: SegmentKey, steps: int = 1_000_000) -> PassResult:
        """Run the retention function: for events of these keys, or with none as scheduled."""
        return await run_retention(self.store, self.objects, self.clock, keys, steps=steps)

    async def scrub(
        self, *, limits: AgeLimits = LIMITS, dry_run: bool = False, steps: int = 1_000_000
    ) -> Report:
        return await scrub(
            self.store,
            self.objects,
            ClusterReader(self.store, NodeConfig()),
            settings=ScrubSettings(limits=limits, is_dry_run=dry_run),
            clock_ms=self.clock,
            limit=TimeLimit(Steps(steps)),
        )


async def run_retention(
    store: MetadataStore,
    objects: ObjectStore,
    clock: Clock,
    keys: tuple[SegmentKey, ...],
    *,
    steps: int = 1_000_000,
    may_expire: Callable[[], bool] = lambda: True,
) -> PassResult:
    return await apply_retention(
        store,
        objects,
        ClusterReader(store, NodeConfig()),
        keys=keys,
        is_scheduled=not keys,
        clock_ms=clock,
        may_expire=may_expire,
        limit=TimeLimit(Steps(steps)),
    )


def _tells(key: str) -> bool:
    return parse_log_start_key(key) is not None or parse_deletion_key(key) is not None


@asynccontextmanager
async def folder_world(folder: Path) -> AsyncIterator[FunctionWorld]:
    """Give a world of SQLite and a folder."""
    store = SqliteMetadataStore(folder / "metadata.db")
    objects = FolderObjectStore(folder / "objects")
    try:
        world = FunctionWorld(store, objects)
        await world.start()
        yield world
    finally:
        await objects.close()
        await store.close()


async def age_orphans(store: MetadataStore, *, by_ms: int) -> None:
    """Move the times at which the scrub first saw its orphans ``by_ms`` back."""
    for item in await store.list(records.SCRUB_ORPHANS_COLLECTION):
        orphans = ScrubOrphans.from_item(item)
        earlier = {name: ms - by_ms for name, ms in orphans.first_seen_ms.items()}
        older = dataclasses.replace(orphans, first_seen_ms=earlier)
        await store.commit([records.put(older, is_logged=False)])
