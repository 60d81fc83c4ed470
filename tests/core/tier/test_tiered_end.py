"""What is tiered of a partition is found without reading what was known before."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.store import ALL_KEYS, Item, KeyRange
from tidelog_core.tier.contents import OVERLAPPING_COUNT_MAX, read_tiered_end
from tidelog_core.tier.planning import tiered_end_offset

from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import segment_meta

TOPIC_ID: UUID = segment_meta().topic_id
PARTITION: int = segment_meta().partition


class CountingStore(MemoryMetadataStore):
    """Counts the items that listings have returned."""

    def __init__(self) -> None:
        super().__init__(latency=0)
        self.listed_count = 0

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found = await super().list(collection, prefix=prefix, keys=keys)
        self.listed_count += len(found)
        return found


async def store_of(metas: list[SegmentMeta]) -> CountingStore:
    store = CountingStore()
    for at in range(0, len(metas), 90):
        some = metas[at : at + 90]
        await store.commit([records.put(one, is_logged=False) for one in some])
    return store


@st.composite
def copied(draw: st.DrawFn) -> tuple[list[SegmentMeta], int]:
    """Return what leaders have copied one after the other, and how many of it are known."""
    metas: list[SegmentMeta] = []
    end = 0
    for _ in range(draw(st.integers(1, OVERLAPPING_COUNT_MAX))):
        # A new leader copies its own segment whole that holds the tier's end.
        base = end if draw(st.booleans()) else draw(st.integers(0, end))
        end = draw(st.integers(end + 1, end + 5))
        metas.append(segment_meta(base, end))
    return metas, draw(st.integers(0, len(metas)))


@given(copied(), st.booleans())
async def test_the_tiers_end_is_found_from_where_it_was_before(
    world: tuple[list[SegmentMeta], int], has_copy_under_way: bool
) -> None:
    metas, known_count = world
    known_end = tiered_end_offset(metas[:known_count], 0)
    end = tiered_end_offset(metas, 0)
    started = (
        [segment_meta(end, end + 3, state=SegmentState.COPY_STARTED)] if has_copy_under_way else []
    )

    store = await store_of([*metas, *started])
    assert await read_tiered_end(store, TOPIC_ID, PARTITION, known_end) == end


async def test_a_look_at_the_tiers_end_reads_what_is_new_of_many_segments() -> None:
    metas = [segment_meta(n * 10, n * 10 + 10) for n in range(1000)]

    store = await store_of(metas)
    assert await read_tiered_end(store, TOPIC_ID, PARTITION, 9_950) == 10_000
    assert store.listed_count == OVERLAPPING_COUNT_MAX + 5


async def test_a_segment_that_begins_long_before_the_known_end_still_closes_the_gap() -> None:
    short = [segment_meta(n, n + 1) for n in range(5 * OVERLAPPING_COUNT_MAX)]
    known_end = short[-1].end_offset
    long, after = segment_meta(0, known_end + 5), segment_meta(known_end + 5, known_end + 9)

    store = await store_of([*short, long, after])
    assert await read_tiered_end(store, TOPIC_ID, PARTITION, known_end) == after.end_offset
