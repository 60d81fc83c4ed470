"""A partition's tier is read in pages, and little memory holds what is known of it."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import tracemalloc
from pathlib import Path

import pytest
from tidelog_core.errors import CorruptItem, TierRewritten
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.store import (
    ALL_KEYS,
    Item,
    KeyRange,
    Write,
)
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.tier.contents import PAGE_ITEMS_MAX, READS_MAX, read_changing_tier, read_tier
from tidelog_core.tier.planning import finished_segments

from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import (
    PARTITION,
    TOPIC_ID,
    SwappingStore,
    neighbours,
    put_segments,
    segment_meta,
)

SEGMENT_SIZE_BYTES_MAX = 320  # what a leader keeps of a segment, lists and allocator included
READING_SIZE_BYTES_MAX = 2 * 4_000 * PAGE_ITEMS_MAX  # beside it: a page, and the one before


def mixed(count: int) -> list[SegmentMeta]:
    """Return segments of which some begin at the same offset, and some are not finished."""
    states = [SegmentState.COPY_FINISHED] * 5
    states += [SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED]
    return [
        segment_meta(number // 2 * 10, number // 2 * 10 + 10 + number % 3, state=states[number % 7])
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "count", [0, 1, PAGE_ITEMS_MAX, PAGE_ITEMS_MAX + 1, 2 * PAGE_ITEMS_MAX + 7]
)
async def test_all_segments_are_read_whatever_pages_they_come_in(count: int) -> None:
    metas = mixed(count)

    store = MemoryMetadataStore(latency=0)
    await put_segments(store, metas)
    found = await read_tier(store, TOPIC_ID, PARTITION)
    assert list(found.finished) == finished_segments(metas)
    unfinished = [one for one in metas if one.state is not SegmentState.COPY_FINISHED]
    assert {one.segment_id for one in found.unfinished} == {m.segment_id for m in unfinished}
    assert len(found.unfinished) == len(unfinished)
    assert bool(found) == bool(metas)


async def test_what_is_swapped_between_two_pages_leaves_no_gap() -> None:
    metas = neighbours(2 * PAGE_ITEMS_MAX)

    store = SwappingStore(metas, swap_count=READS_MAX - 1)
    await put_segments(store, metas)
    found = await read_tier(store, TOPIC_ID, PARTITION)
    assert list(found.finished) == finished_segments(store.metas)
    assert found.finished.tiered_end(0) == metas[-1].end_offset


async def test_a_tier_that_is_rewritten_with_every_reading_is_not_returned_with_its_gaps() -> None:
    metas = neighbours(PAGE_ITEMS_MAX + 50)

    store = SwappingStore(metas, swap_count=READS_MAX)
    await put_segments(store, metas)
    with pytest.raises(TierRewritten) as raised:
        await read_tier(store, TOPIC_ID, PARTITION)
    assert raised.value.retriable
    assert store.swap_count == 0
    found = await read_tier(store, TOPIC_ID, PARTITION)
    assert found.finished.tiered_end(0) == metas[-1].end_offset


async def test_the_last_reading_of_a_changing_tier_says_that_it_may_have_gaps() -> None:
    metas = neighbours(PAGE_ITEMS_MAX + 50)

    store = SwappingStore(metas, swap_count=40)
    await put_segments(store, metas)
    found = await read_changing_tier(store, TOPIC_ID, PARTITION)
    assert found
    assert not found.is_whole
    assert store.swap_count == 40 - READS_MAX
    store.swap_count = 0
    assert (await read_changing_tier(store, TOPIC_ID, PARTITION)).is_whole


class TornPageStore(SwappingStore):
    """Has a page without the segments that were swapped, in either form, as DynamoDB may."""

    async def swap(self) -> None:
        old = self.metas[1:3]
        new = segment_meta(old[0].base_offset, old[1].end_offset)
        self.metas[1:3] = [new]
        gone = [dataclasses.replace(m, state=SegmentState.DELETE_STARTED, version=1) for m in old]
        await self.commit([records.put(one) for one in (*gone, new, self.claim)])
        self.claim = dataclasses.replace(self.claim, version=self.claim.version + 1)

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        is_torn = self.swap_count > 0
        found = await super().list(collection, prefix=prefix, keys=keys)
        return found[:1] + found[3:] if is_torn else found


async def test_a_swap_within_the_only_page_leaves_no_gap() -> None:
    metas = neighbours(5)
    for _ in range(2):
        store = TornPageStore(metas, swap_count=1)
        await put_segments(store, metas)
        found = await read_tier(store, TOPIC_ID, PARTITION)
        assert found.finished.tiered_end(0) == metas[-1].end_offset
        assert list(found.finished) == finished_segments(store.metas)


async def test_an_item_that_cannot_be_read_is_an_error_on_any_page() -> None:
    metas = neighbours(PAGE_ITEMS_MAX + 3)

    store = MemoryMetadataStore(latency=0)
    await put_segments(store, metas)
    await store.commit([Write(metas[-1].item_id, {"state": "copy-finished"}, 1)])
    with pytest.raises(CorruptItem, match="missing"):
        await read_tier(store, TOPIC_ID, PARTITION)


async def test_what_is_kept_of_many_segments_is_small_and_reading_them_takes_little_more(
    tmp_path: Path,
) -> None:
    async def traced_bytes(count: int) -> tuple[int, int]:
        """Return the bytes that stay after the reading, and those at its peak."""
        store = SqliteMetadataStore(tmp_path / f"{count}.db")
        metas = [
            segment_meta(n * 10, n * 10 + 10, chained_hash=f"{n:064x}", created_ms=10**12 + n)
            for n in range(count)
        ]
        await put_segments(store, metas)
        del metas
        await read_tier(store, TOPIC_ID, PARTITION)  # What comes with the first reading stays.
        gc.collect()
        tracemalloc.start()
        found = await read_tier(store, TOPIC_ID, PARTITION)
        await asyncio.sleep(0)  # lets the loop forget the last page
        gc.collect()
        stays, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(found.finished) == count
        await store.close()
        return stays, peak

    few, many = PAGE_ITEMS_MAX, 6 * PAGE_ITEMS_MAX
    few_bytes, _ = await traced_bytes(few)
    many_bytes, many_peak = await traced_bytes(many)
    assert many_bytes - few_bytes < SEGMENT_SIZE_BYTES_MAX * (many - few), (few_bytes, many_bytes)
    assert many_peak - many_bytes < READING_SIZE_BYTES_MAX, (many_bytes, many_peak)
