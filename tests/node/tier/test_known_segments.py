"""What is known of a tier is served while it is read again, and it is read again seldom.

All is counted: what was served, and how many times the store was asked for all segments.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection

import pytest
from tidelog_core.errors import TierRewritten
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.store import ALL_KEYS, Item, KeyRange
from tidelog_core.tier.contents import OVERLAPPING_COUNT_MAX, READS_MAX
from tidelog_node.tier.known_segments import KnownSegments

from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import PARTITION, TOPIC_ID, neighbours, put_segments, segment_meta

SWAP_COUNT = 20


class HeldStore(MemoryMetadataStore):
    """Counts the readings of all segments, and lets them end when a test says so."""

    def __init__(self) -> None:
        super().__init__(latency=0)
        self.reading_count = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found = await super().list(collection, prefix=prefix, keys=keys)
        if not keys.start and not keys.is_descending:
            self.reading_count += 1
            await self.may_end.wait()
        return found


class HidingStore(MemoryMetadataStore):
    """Has readings meet a swap of the segments of [10, 30), and see neither form of those."""

    def __init__(self, hidden: Collection[int] = (10, 20)) -> None:
        """``hidden`` are the base offsets that such readings do not see."""
        super().__init__(latency=0)
        self.hidden = hidden
        self.swap_count = 0  # of readings that are still to meet one
        self.claim = RewriteClaim(
            topic_id=TOPIC_ID, partition=PARTITION, rewrite_epoch=1, holder=TOPIC_ID, expires_ms=0
        )

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found = await super().list(collection, prefix=prefix, keys=keys)
        if not self.swap_count:
            return found
        if not keys.start and not keys.is_descending:
            self.swap_count -= 1
            await self.commit([records.put(self.claim)])
            self.claim = dataclasses.replace(self.claim, version=self.claim.version + 1)
        return [one for one in found if SegmentMeta.from_item(one).base_offset not in self.hidden]


class Swaps:
    """Replaces pairs of segments by one each, as compaction does."""

    def __init__(self, store: MemoryMetadataStore, metas: list[SegmentMeta]) -> None:
        self.store, self.metas, self.count = store, metas, 0

    async def swap(self) -> SegmentMeta:
        old = self.metas[2 * self.count : 2 * self.count + 2]
        self.count += 1
        new = segment_meta(old[0].base_offset, old[1].end_offset)
        gone = [
            dataclasses.replace(one, state=SegmentState.DELETE_STARTED, version=1) for one in old
        ]
        await self.store.commit([records.put(one) for one in (*gone, new)])
        return new


def known_in(store: MemoryMetadataStore) -> tuple[KnownSegments, list[SegmentMeta]]:
    """Return the segments, and the list of those that they find replaced."""
    replaced: list[SegmentMeta] = []

    def note(metas: Collection[SegmentMeta]) -> None:
        replaced.extend(metas)

    return KnownSegments(store, TOPIC_ID, PARTITION, on_replaced=note), replaced


async def test_segments_are_served_while_swaps_go_on() -> None:
    store, metas = HeldStore(), neighbours(2 * SWAP_COUNT)
    await put_segments(store, metas)
    known, replaced = known_in(store)
    swaps, served = Swaps(store, metas), 0
    await known.segments()
    store.may_end.clear()
    readings: list[asyncio.Task[object]] = []
    for _ in range(SWAP_COUNT):
        await swaps.swap()
        known.invalidate()
        readings.append(asyncio.create_task(known.caught_up()))
        await asyncio.sleep(0)
        served += (await known.segments()).locate(5) is not None
    assert served == SWAP_COUNT
    store.may_end.set()
    await asyncio.gather(*readings)
    # The first, and one for all the swaps; another where one came after it had begun.
    assert store.reading_count <= 3
    assert not known.is_stale
    assert len(await known.segments()) == SWAP_COUNT
    assert {one.segment_id for one in metas} <= {one.segment_id for one in replaced}


async def test_a_caller_waits_for_one_reading_and_not_for_the_swaps_to_end() -> None:
    store, metas = HeldStore(), neighbours(2 * SWAP_COUNT)
    await put_segments(store, metas)
    known, _ = known_in(store)
    swaps = Swaps(store, metas)
    await known.segments()
    store.may_end.clear()
    new = await swaps.swap()
    known.invalidate()
    waiting = asyncio.create_task(known.caught_up())
    while store.reading_count < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await swaps.swap()
    known.invalidate()
    store.may_end.set()
    assert new in await waiting
    assert store.reading_count == 2
    assert known.is_stale  # The second swap is still to be read.


async def test_changes_during_a_reading_are_in_what_it_read() -> None:
    store, metas = HeldStore(), neighbours(4)
    await put_segments(store, metas)
    known, _ = known_in(store)
    await known.segments()
    store.may_end.clear()
    known.invalidate()
    waiting = asyncio.create_task(known.caught_up())
    while store.reading_count < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    copied = segment_meta(40, 50)
    known.add(copied)
    known.remove(metas[0])
    assert copied in await known.segments()
    store.may_end.set()
    found = await waiting
    assert copied in found
    assert metas[0] not in found
    # What was unfinished when it was read may not be any more.
    await known.contents()
    assert store.reading_count == 3


async def test_a_reader_that_gives_up_leaves_the_reading_to_the_next() -> None:
    store = HeldStore()
    await put_segments(store, neighbours(4))
    known, _ = known_in(store)
    store.may_end.clear()
    first, second = (asyncio.create_task(known.segments()) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    store.may_end.set()
    assert len(await second) == 4


async def test_what_was_just_read_is_handed_out_once_without_reading_it_again() -> None:
    store = HeldStore()
    await put_segments(
        store, [*neighbours(4), segment_meta(40, 50, state=SegmentState.DELETE_STARTED)]
    )
    known, _ = known_in(store)
    await known.segments()
    assert len((await known.contents()).unfinished) == 1
    assert store.reading_count == 1
    # Only its caller knows what has become of those since.
    assert len((await known.contents()).unfinished) == 1
    assert store.reading_count == 2
    known.invalidate()
    await known.caught_up()
    known.remove(neighbours(1)[0])
    await known.contents()
    assert store.reading_count == 4


async def test_offsets_in_a_gap_have_all_segments_read_once() -> None:
    store, metas = HeldStore(), neighbours(9)
    await put_segments(store, metas[:3] + metas[6:])
    known, _ = known_in(store)
    await known.segments()
    for offset in (30, 45, 59, 30, 45):
        assert (await known.search(offset, tiered_end=0)).locate(offset) is None
    assert store.reading_count == 2
    # What closes the gap is found without.
    await put_segments(store, metas[3:6])
    assert (await known.search(45, tiered_end=0)).locate(45) is not None
    assert (await known.search(30, tiered_end=0)).locate(30) is not None
    await put_segments(store, [segment_meta(90, 100)])
    assert (await known.search(95, tiered_end=0)).locate(95) is not None
    assert store.reading_count == 2


async def test_a_segment_that_begins_far_below_is_found_once_the_local_log_is_evicted_for_it() -> (
    None
):
    """Another leader's long segment, copied after all were read in vain for an offset in a gap."""
    store, short = HeldStore(), neighbours(3 * OVERLAPPING_COUNT_MAX)
    end = short[-1].end_offset
    await put_segments(store, [*short, segment_meta(end + 100, end + 110)])
    known, _ = known_in(store)
    assert (await known.search(end + 50, tiered_end=end)).locate(end + 50) is None
    long = segment_meta(5, end + 100)
    await put_segments(store, [long])
    assert (await known.search(end + 50, tiered_end=end + 100)).locate(end + 50) == long
    # Nothing has moved since: what is not here is nowhere.
    count = store.reading_count
    for _ in range(3):
        assert (await known.search(end + 200, tiered_end=end + 100)).locate(end + 200) is None
    assert store.reading_count == count


async def test_nobody_decides_by_a_reading_that_swaps_have_met() -> None:
    metas = neighbours(9)
    store = HidingStore()
    await put_segments(store, metas)
    store.swap_count = 3 * READS_MAX
    known, _ = known_in(store)
    assert (await known.segments()).locate(15) is None  # Readers have nothing better.
    assert (await known.segments()).locate(5) is not None
    for decide in (known.whole, known.contents):
        with pytest.raises(TierRewritten):
            await decide()
    assert store.swap_count == 0
    assert (await known.whole()).tiered_end(0) == metas[-1].end_offset
    assert known.is_settled
    assert (await known.contents()).finished is await known.segments()


async def test_an_offset_in_what_may_be_a_gap_of_the_reading_is_not_called_missing() -> None:
    metas = neighbours(9)
    store = HidingStore()
    await put_segments(store, metas)
    store.swap_count = 2 * READS_MAX
    known, _ = known_in(store)
    await known.segments()
    with pytest.raises(TierRewritten):
        await known.search(15, tiered_end=90)
    assert (await known.search(15, tiered_end=90)).locate(15) is not None


async def test_decisions_go_on_by_the_last_whole_reading_while_swaps_meet_all_later_ones() -> None:
    metas = neighbours(9)
    store = HidingStore()
    await put_segments(store, metas)
    known, _ = known_in(store)
    await known.whole()
    store.swap_count = 2 * READS_MAX
    known.invalidate()
    assert (await known.caught_up()).locate(15) is None
    assert not known.is_settled
    known.add(segment_meta(90, 100))
    known.remove(metas[0])
    assert [m.base_offset for m in await known.whole()] == list(range(10, 100, 10))
    assert (await known.contents()).finished is await known.whole()
    # Whoever does not know what became of a step of his own reads again.
    store.swap_count = READS_MAX
    known.distrust()
    with pytest.raises(TierRewritten):
        await known.whole()
    assert (await known.whole()).tiered_end(0) == 90


@pytest.mark.parametrize("hidden", [(), (0,), (10, 20), (80,)])
async def test_a_reading_that_swaps_have_met_is_whole_if_it_lacks_nothing_that_was_known(
    hidden: tuple[int, ...],
) -> None:
    metas = neighbours(9)
    store = HidingStore(hidden)
    await put_segments(store, metas)
    known, _ = known_in(store)
    before = await known.whole()
    store.swap_count = READS_MAX
    known.invalidate()
    latest = await known.caught_up()
    assert store.swap_count == 0
    assert latest is not before
    assert (await known.whole() is latest) == known.is_settled == (not hidden)


async def test_a_reading_that_swaps_have_met_is_not_whole_where_nothing_was_known() -> None:
    store = HidingStore(hidden=())
    await put_segments(store, neighbours(9))
    store.swap_count = 2 * READS_MAX
    known, _ = known_in(store)
    with pytest.raises(TierRewritten):
        await known.whole()


async def test_a_reading_that_began_before_it_was_distrusted_is_not_decided_by() -> None:
    store, metas = HeldStore(), neighbours(4)
    await put_segments(store, metas)
    known, _ = known_in(store)
    store.may_end.clear()
    reading = asyncio.create_task(known.segments())
    while store.reading_count < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    known.distrust()
    await put_segments(store, [segment_meta(40, 50)])
    store.may_end.set()
    assert len(await reading) == 4
    assert (await known.whole()).end_offset == 50
    assert store.reading_count == 2
