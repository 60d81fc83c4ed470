"""A stream's look at a tier reads what is new of it, and misses nothing for that."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from uuid import UUID, uuid4

from tidelog_core.metadata import records
from tidelog_core.metadata.records import (
    Cluster,
    Partition,
    SegmentMeta,
    SegmentState,
    Topic,
    segment_collection,
)
from tidelog_core.metadata.store import ALL_KEYS, Item, KeyRange
from tidelog_core.model import TopicPartition
from tidelog_spark.options.option_values import Subscribe
from tidelog_spark.options.positions import Positions
from tidelog_spark.stores.catalog import Catalog, load_catalog
from tidelog_spark.stores.partition_log import PartitionLog
from tidelog_spark.streaming.stream_planner import listing_starts

from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import segment_meta

T0 = TopicPartition("t", 0)


class Tier(MemoryMetadataStore):
    """A cluster of one partition; counts the segments that were listed."""

    def __init__(self) -> None:
        super().__init__(latency=0)
        self.topic_id: UUID = uuid4()
        self.listed_count = 0

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found = await super().list(collection, prefix=prefix, keys=keys)
        if collection == segment_collection(self.topic_id, 0):
            self.listed_count += len(found)
        return found

    async def create(self) -> None:
        topic = Topic(name="t", topic_id=self.topic_id, partition_count=1)
        partition = Partition(
            topic_id=self.topic_id, partition=0, replicas=(1,), leader=1, leader_epoch=0, isr=(1,)
        )
        cluster = Cluster(cluster_id="c")
        await self.commit([records.put(topic), records.put(partition), records.put(cluster)])

    async def add(self, *segments: SegmentMeta) -> None:
        await self.commit([records.put(segment, is_logged=False) for segment in segments])

    def segment(self, base: int, end: int, **fields: object) -> SegmentMeta:
        return segment_meta(base, end, topic_id=self.topic_id, partition=0, **fields)


class CatalogReader:
    """Looks at the tier as a stream's planner does."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.catalog: Catalog | None = None

    async def read(self, offset: int, *, topic_id: UUID | None = None) -> PartitionLog:
        """Return the log for who has read to the offset."""
        read_to = Positions({T0: offset}, {"t": topic_id or self.tier.topic_id})
        starts = {} if self.catalog is None else listing_starts(self.catalog, read_to)
        self.catalog = await load_catalog(self.tier, Subscribe(("t",)), list_from=starts)
        return self.catalog.logs[0]


async def filled(*ends: int) -> CatalogReader:
    """Return who looks at a tier of segments that follow one another, ending there."""
    tier = Tier()
    await tier.create()
    await tier.add(*(tier.segment(base, end) for base, end in pairwise((0, *ends))))
    return CatalogReader(tier)


async def test_a_look_lists_what_is_read_and_what_is_new() -> None:
    reader = await filled(*range(10, 810, 10))
    assert (await reader.read(0)).end_offset == 800
    reader.tier.listed_count = 0
    await reader.tier.add(reader.tier.segment(800, 810))
    log = await reader.read(800)
    assert (log.end_offset, log.listed_from) == (810, 790)
    assert reader.tier.listed_count == 2
    every = await load_catalog(reader.tier, Subscribe(("t",)))
    assert (await reader.read(755)).between(795, 810) == every.logs[0].between(795, 810)


async def test_a_new_leaders_segment_that_begins_below_is_found_by_the_gap_it_leaves() -> None:
    reader = await filled(*range(10, 110, 10))
    await reader.read(0)
    await reader.tier.add(reader.tier.segment(60, 130, leader_epoch=6))
    # Alone it is not seen before all are listed again, and nothing is taken for lost.
    assert (await reader.read(100)).end_offset == 100
    await reader.tier.add(reader.tier.segment(130, 140, leader_epoch=6))
    log = await reader.read(100)
    assert (log.end_offset, log.listed_from, log.holes(100, 140)) == (140, 0, [])


async def test_a_segment_that_replaced_several_is_found() -> None:
    reader = await filled(10, 20, 30, 40)
    await reader.read(0)
    replaced = [s.segment for s in (await reader.read(25)).stretches]
    one = reader.tier.segment(10, 40, rewrite_epoch=1)
    gone = [replace(s, state=SegmentState.DELETE_STARTED) for s in replaced]
    await reader.tier.add(one, *gone, reader.tier.segment(40, 50))
    log = await reader.read(25)
    assert log.holes(25, 50) == []
    assert log.stretches[-2].segment.segment_id == one.segment_id


async def test_a_copy_under_way_where_the_listing_begins_hides_nothing_that_was_there() -> None:
    reader = await filled(10, 20, 30)
    await reader.read(0)
    started = reader.tier.segment(20, 30, state=SegmentState.COPY_STARTED)
    await reader.tier.add(started)
    assert (await reader.read(30)).end_offset == 30


async def test_offsets_of_a_topic_of_before_say_nothing_of_the_one_of_its_name() -> None:
    reader = await filled(10, 20, 30)
    await reader.read(0)
    assert (await reader.read(30, topic_id=UUID(int=1))).listed_from == 0
