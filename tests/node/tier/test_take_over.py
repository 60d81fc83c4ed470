"""What is decided by a partition's tier while its segments are swapped behind the node's back.

DynamoDB's listings are read-committed: one that a swap meets may lack the segments in their old and
in their new form. The node hears of the swap later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.compaction.rewrite import Rewrite
from tidelog_core.errors import StorageError, TierRewritten
from tidelog_core.log.record_source import ReadLimits
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SEGMENT_COLLECTION_PREFIX, Partition, SegmentMeta
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.store import ALL_KEYS, ANY_VERSION, Item, KeyRange, Write
from tidelog_core.objects.location import open_object_store
from tidelog_core.tier.contents import READS_MAX
from tidelog_core.tier_compaction.groups import group_segments
from tidelog_core.tier_compaction.partition_tier import PartitionTier
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.led_partition import LedPartition

from tests.support.segment_items import segment_meta
from tests.support.tier_node import TierNode, running_node
from tests.support.tier_segments import BASE_TIMESTAMP_MS
from tests.support.waiting import eventually_async

OLD_MS, YOUNG_MS = BASE_TIMESTAMP_MS, BASE_TIMESTAMP_MS + 10_000
RETENTION_MS = 5_000
DAY_MS = 86_400_000  # longer than file.delete.delay.ms


class Swaps:
    """Has each of the next readings of a partition's tier meet a swap of one segment."""

    def __init__(self, node: TierNode, replica: Replica, *, hidden_base: int) -> None:
        self.count = 0  # of readings that are still to meet one
        self.on_swap: Callable[[], None] = lambda: None
        self._store, self._list = node.store, node.store.list
        self._hidden_base = hidden_base
        self._claim = RewriteClaim(
            topic_id=replica.topic_id,
            partition=0,
            rewrite_epoch=1,
            holder=replica.topic_id,
            expires_ms=0,
        )

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        items = await self._list(collection, prefix=prefix, keys=keys)
        if not self.count or not collection.startswith(SEGMENT_COLLECTION_PREFIX):
            return items
        self.count -= 1
        self.on_swap()
        await self._store.commit([Write(self._claim.item_id, self._claim.to_body(), ANY_VERSION)])
        metas = map(SegmentMeta.from_item, items)
        return [
            item
            for item, one in zip(items, metas, strict=True)
            if one.base_offset != self._hidden_base
        ]


@asynccontextmanager
async def leading(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    segments: list[tuple[int, int, int]],
    hidden_base: int,
) -> AsyncIterator[tuple[TierNode, LedPartition, Swaps]]:
    """Run a node that leads a log of 150 records, with finished segments [start, end) of a time."""
    async with running_node(folder) as node:
        replica = await node.create_topic(configs={"retention.ms": str(RETENTION_MS)})
        node.produce(replica, 15)
        node.clock.now_ms = OLD_MS + RETENTION_MS + 1_000
        metas = [
            segment_meta(
                base, end, topic_id=replica.topic_id, partition=0, max_timestamp_ms=newest_ms
            )
            for base, end, newest_ms in segments
        ]
        await node.store.commit([records.put(one, is_logged=False) for one in metas])
        swaps = Swaps(node, replica, hidden_base=hidden_base)
        monkeypatch.setattr(node.store, "list", swaps.list)
        yield node, node.tier._partitions.lead(replica), swaps


AHEAD = [(0, 100, YOUNG_MS), (100, 200, YOUNG_MS)]  # of a log that ends at 150


async def test_a_swap_during_a_take_over_has_the_partition_taken_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered = AHEAD[:1]
    async with leading(tmp_path, monkeypatch, segments=tiered, hidden_base=-1) as (
        node,
        led,
        swaps,
    ):
        swaps.count, swaps.on_swap = 1, led.note_swap
        await node.tier._copier.take_over(led)
        assert not led.is_taken_over
        await node.tier._copier.take_over(led)
        assert led.is_taken_over
        assert led.replica.log.tiered_up_to == 100


async def test_a_log_behind_its_tier_is_not_led_because_swaps_hid_the_tiers_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(tmp_path, monkeypatch, segments=AHEAD, hidden_base=100) as (
        node,
        led,
        swaps,
    ):
        swaps.count = READS_MAX
        with pytest.raises(TierRewritten):
            await node.tier._copier.take_over(led)
        assert swaps.count == 0
        assert not led.is_taken_over
        assert not led.replica.log.is_offline
        with pytest.raises(StorageError, match="lost records"):
            await node.tier._copier.take_over(led)
        assert led.replica.log.is_offline


MIXED = [(0, 50, OLD_MS), (50, 100, YOUNG_MS), (100, 150, OLD_MS)]


@pytest.mark.parametrize("was_read_before", [False, True])
async def test_retention_does_not_pass_over_a_segment_that_swaps_hide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_read_before: bool
) -> None:
    """A leader that has read its tier before does not even wait for the swaps to end."""
    async with leading(tmp_path, monkeypatch, segments=MIXED, hidden_base=50) as (
        node,
        led,
        swaps,
    ):
        if was_read_before:
            await node.tier._copier.take_over(led)
            led.note_swap()
            led.remote.invalidate()
        swaps.count = 2 * READS_MAX
        await node.tier.apply_retention()
        assert swaps.count == READS_MAX
        assert await log_start_of(node, led) == (50 if was_read_before else 0)
        swaps.count, led.not_before = 0, 0.0
        await node.tier.apply_retention()
        assert await log_start_of(node, led) == 50


async def test_a_reader_at_the_end_of_what_compaction_left_does_not_pass_over_a_segment_that_swaps_hide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path) as node:
        evicting = {"local.retention.bytes": "0", "retention.ms": "-1"}
        replica = await node.create_topic(configs=evicting)
        node.produce_segments(replica, 2)

        async def is_evicted() -> bool:
            return replica.log.local_log_start_offset == 100

        await eventually_async(is_evicted)
        await empty_end_of_first_segment(node, replica)
        swaps = Swaps(node, replica, hidden_base=50)
        swaps.count = READS_MAX
        monkeypatch.setattr(node.store, "list", swaps.list)
        remote = node.tier._partitions.new_remote_log(replica)
        assert (await remote.segments()).end_offset == 50
        found = await remote.read(45, ReadLimits(1))
        assert found is not None
        assert found.start_offset == 50


async def empty_end_of_first_segment(node: TierNode, replica: Replica) -> None:
    """Replace the segment by one without its last batch, as a compaction of both would."""
    objects = open_object_store(node.objects_url)
    tier = PartitionTier(
        store=node.store,
        objects=objects,
        cluster_id=node.view.image.cluster_id,
        topic=node.view.image.topics[replica.partition.topic],
        partition=0,
        config=replica.config,
        key_filter_records_max=1000,
        clock_ms=node.clock,
    )
    async with tier.claimed() as swaps:
        segments = (await tier.live()).segments
        rewrite = Rewrite(end_offset=100, keep=lambda record: record.offset < 40)
        done = await tier.rewrite(
            swaps,
            deque([next(group_segments(segments))]),
            rewrite.batch,
            facts=await tier.facts_of(segments),
            compacted_up_to=0,
            limits=None,
        )
    assert done.new is not None
    await objects.close()


async def log_start_of(node: TierNode, led: LedPartition) -> int:
    item = await node.store.get(records.partition_key(led.replica.topic_id, 0))
    assert item is not None
    return Partition.from_item(item).log_start_offset


async def test_times_are_looked_up_while_swaps_meet_every_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects that compaction has replaced are deleted before it ends."""
    async with running_node(tmp_path) as node:
        configs = {"local.retention.bytes": "0", "retention.ms": "-1"}
        replica = await node.create_topic(configs=configs)
        node.produce_segments(replica, 2)
        await eventually_async(lambda: replica.log.local_log_start_offset == 100)
        remote = node.tier.remote_log(replica)
        wanted = await remote.offset_for_timestamp(BASE_TIMESTAMP_MS + 5, start_offset=0)
        assert wanted is not None
        objects = len(await node.objects())
        await empty_end_of_first_segment(node, replica)
        await node.view.refresh()
        swaps = Swaps(node, replica, hidden_base=-1)
        swaps.count = 1_000_000
        monkeypatch.setattr(node.store, "list", swaps.list)
        node.clock.now_ms += DAY_MS

        async def is_replaced_deleted() -> bool:
            await node.tier.apply_retention()
            return len(await node.objects()) == objects

        await eventually_async(is_replaced_deleted)
        assert (await node.read(replica, 0, max_bytes=100_000)).slice is not None
        found = await remote.offset_for_timestamp(BASE_TIMESTAMP_MS + 5, start_offset=0)
        assert found == wanted
