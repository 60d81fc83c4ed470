"""What an event reads of a partition: no more beside many segments, and enough to be right."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.config import UNLIMITED
from tidelog_core.errors import TierRewritten
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState
from tidelog_core.metadata.store import COMMIT_WRITES_MAX
from tidelog_core.retention.selection import Limits, log_start_after_tier_retention
from tidelog_core.tier.contents import PAGE_ITEMS_MAX
from tidelog_core.tier.tiered_segments import TieredSegments
from tidelog_functions.retention import due_segments
from tidelog_functions.retention.due_segments import (
    EVENT_COUNT_MAX,
    EVENT_PAGE_SEGMENTS,
    EVENT_SIZES_MAX,
    read_due,
)

from bench.day.meter import MeteredStore
from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import SwappingStore, put_segments, segment_meta

NOW_MS = 1_000_000
YOUNG_MS = NOW_MS - 10
RETENTION_MS = 1_000
BY_TIME = Limits(RETENTION_MS, UNLIMITED)
TOPIC_ID, NUMBER = segment_meta().topic_id, segment_meta().partition


def partition(log_start_offset: int = 0) -> Partition:
    return Partition(
        topic_id=TOPIC_ID,
        partition=NUMBER,
        replicas=(1,),
        leader=1,
        leader_epoch=0,
        isr=(1,),
        log_start_offset=log_start_offset,
    )


def segments(count: int, *, old_count: int = 0, size_bytes: int = 100) -> list[SegmentMeta]:
    """Return segments of which the first ones are too old."""
    return [
        segment_meta(
            10 * number,
            10 * number + 10,
            size_bytes=size_bytes,
            max_timestamp_ms=0 if number < old_count else YOUNG_MS,
        )
        for number in range(count)
    ]


async def metered(metas: list[SegmentMeta]) -> MeteredStore:
    store = MemoryMetadataStore(latency=0)
    for at in range(0, len(metas), COMMIT_WRITES_MAX):
        some = metas[at : at + COMMIT_WRITES_MAX]
        await store.commit([records.put(one, is_logged=False) for one in some])
    return MeteredStore(store)


def read(
    metas: list[SegmentMeta], limits: Limits, *, log_start_offset: int = 0, is_event: bool = True
) -> tuple[int, list[SegmentMeta], int]:
    """Return the units that were read, the segments, and where the log is to start."""

    async def run() -> tuple[int, list[SegmentMeta], int]:
        store = await metered(metas)
        found, start = await read_due(
            store, partition(log_start_offset), limits, now_ms=NOW_MS, is_event=is_event
        )
        return sum(store.usage.read_units.values()), found, start

    return asyncio.run(run())


def test_an_event_reads_as_much_beside_many_segments_as_beside_few() -> None:
    few, _, few_start = read(segments(100, old_count=3), BY_TIME)
    many, found, many_start = read(segments(3_000, old_count=3), BY_TIME)
    assert few_start == many_start == 30
    assert len(found) == EVENT_PAGE_SEGMENTS
    assert many == few <= 7
    every, _, _ = read(segments(3_000, old_count=3), BY_TIME, is_event=False)
    assert every > 50 * many


def test_an_event_reads_on_until_it_meets_a_segment_to_keep() -> None:
    metas = segments(1_000, old_count=300)
    _, found, start = read(metas, BY_TIME)
    assert start == 3_000
    assert 300 < len(found) < 700


def test_what_is_below_the_log_start_is_read_to_be_marked() -> None:
    metas = segments(600)
    _, found, start = read(metas, BY_TIME, log_start_offset=1_000)
    assert start == 1_000
    assert {m.base_offset for m in found} >= set(range(0, 1_000, 10))
    assert len(found) < 600


@pytest.mark.parametrize("count", [EVENT_SIZES_MAX - 10, 3_000])
def test_an_event_judges_the_bytes_of_a_small_partition_alone(count: int) -> None:
    metas = segments(count, old_count=2)
    units, found, start = read(metas, Limits(RETENTION_MS, 100 * (count - 7)))
    if count < EVENT_SIZES_MAX:
        assert (len(found), start) == (count, 70)
    else:
        assert start == 20  # Those that are too old go all the same.
        assert EVENT_SIZES_MAX <= len(found) < 2 * EVENT_SIZES_MAX
        assert units <= 40
    _, _, scheduled = read(metas, Limits(RETENTION_MS, 100 * (count - 7)), is_event=False)
    assert scheduled == 70


@pytest.mark.parametrize("is_event", [True, False])
async def test_what_is_swapped_between_two_pages_is_not_counted_in_both_forms(
    is_event: bool,
) -> None:
    metas = [segment_meta(10 * n, 10 * n + 10, size_bytes=100) for n in range(PAGE_ITEMS_MAX + 50)]

    class LeavingLittle(SwappingStore):
        async def swap(self) -> None:
            """Compact the last segment of the first page and the first one of the second."""
            at = EVENT_PAGE_SEGMENTS if is_event else PAGE_ITEMS_MAX
            old = self.metas[at - 1 : at + 1]
            new = segment_meta(old[0].base_offset, old[1].end_offset, size_bytes=10)
            self.metas[at - 1 : at + 1] = [new]
            gone = [
                dataclasses.replace(m, state=SegmentState.DELETE_STARTED, version=1) for m in old
            ]
            await self.commit([records.put(one) for one in (*gone, new, self.claim)])

    limits = Limits(UNLIMITED, 100 * (len(metas) - 2) - 50)  # The swap leaves less than a segment
    # above that, so none may go.

    async def run() -> int:
        store = LeavingLittle(metas, swap_count=1)
        await put_segments(store, metas)
        try:
            found = await read_due(store, partition(), limits, now_ms=NOW_MS, is_event=is_event)
        except TierRewritten:
            assert is_event
            found = await read_due(store, partition(), limits, now_ms=NOW_MS, is_event=is_event)
        else:
            assert not is_event
        return found[1]

    # Which of the segments that begin together a page ends with is left to chance.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_segments, "EVENT_SIZES_MAX", len(metas) + 1)
        assert [await run() for _ in range(3)] == [0, 0, 0]


def test_an_event_stops_after_many_segments_that_are_too_old_and_the_next_goes_on() -> None:
    metas = segments(2 * EVENT_COUNT_MAX, old_count=2 * EVENT_COUNT_MAX)
    _, found, start = read(metas, BY_TIME)
    assert EVENT_COUNT_MAX <= len(found) < EVENT_COUNT_MAX + PAGE_ITEMS_MAX
    assert start == found[-1].base_offset  # The last one of a page is judged with the next one.
    left = [one for one in metas if one.end_offset > start]
    assert read(left, BY_TIME, log_start_offset=start)[2] > start
    assert read(metas, BY_TIME, is_event=False)[2] == metas[-1].end_offset


def test_an_event_judges_each_segment_once_however_many_are_too_old() -> None:
    judged: list[int] = []
    parts_above = TieredSegments.parts_above

    def counted(self: TieredSegments, offset: int) -> Iterator[tuple[SegmentMeta, int]]:
        for part in parts_above(self, offset):
            judged.append(part[1])
            yield part

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_segments, "EVENT_PAGE_SEGMENTS", 20)
        patch.setattr(TieredSegments, "parts_above", counted)
        read(segments(900, old_count=900), BY_TIME)
    assert sorted(judged) == sorted(set(judged))
    assert len(judged) == 900


@st.composite
def any_segment(draw: st.DrawFn) -> SegmentMeta:
    base = draw(st.integers(0, 30))
    made = segment_meta(
        base,
        base + draw(st.integers(1, 8)),
        max_timestamp_ms=draw(st.sampled_from((0, 0, YOUNG_MS))),
        state=draw(st.sampled_from((SegmentState.COPY_FINISHED,) * 3 + tuple(SegmentState))),
        size_bytes=draw(st.integers(0, 9)),
        leader_epoch=draw(st.integers(5, 6)),
    )
    return dataclasses.replace(made, segment_id=draw(st.uuids(version=4)))


@given(
    st.lists(any_segment(), max_size=12, unique_by=lambda one: one.segment_id),
    st.integers(0, 35),
    st.sampled_from((UNLIMITED, 0, 10, 40)),
    st.sampled_from((UNLIMITED, RETENTION_MS)),
)
def test_an_event_removes_what_the_schedule_would_and_never_more(
    metas: list[SegmentMeta], log_start_offset: int, retention_bytes: int, retention_ms: int
) -> None:
    limits = Limits(retention_ms, retention_bytes)

    def wanted(known: Limits) -> int:
        return log_start_after_tier_retention(
            TieredSegments(metas), known, log_start_offset=log_start_offset, now_ms=NOW_MS
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_segments, "EVENT_PAGE_SEGMENTS", 2)
        patch.setattr(due_segments, "EVENT_SIZES_MAX", 7)
        _, found, start = read(metas, limits, log_start_offset=log_start_offset)
    is_all = len(found) == len(metas)
    if is_all and retention_bytes != UNLIMITED:
        assert start in {wanted(limits), wanted(limits.without_size())}
    else:
        assert start == wanted(limits.without_size())
    assert log_start_offset <= start <= max(log_start_offset, wanted(limits))
    # Whatever ends before that is marked by this event. One that lies within a segment to keep, as
    # copies of two leaders can, is left to the schedule.
    kept = [m for m in metas if m.state is SegmentState.COPY_FINISHED and m.end_offset > start]
    first_kept = min((m.base_offset for m in kept), default=math.inf)
    gone = [m for m in metas if m.end_offset <= start and m.base_offset < first_kept]
    assert {m.segment_id for m in gone} <= {m.segment_id for m in found}


def test_segments_that_begin_together_are_judged_together() -> None:
    """One that is to be kept may begin where the last one of a page does."""
    old = segment_meta(0, 50, max_timestamp_ms=0)
    young = segment_meta(0, 5, max_timestamp_ms=YOUNG_MS, leader_epoch=old.leader_epoch + 1)
    pair = sorted((old, young), key=lambda one: str(one.segment_id))
    if pair[0] is young:  # The one that is too old is to come first.
        young = dataclasses.replace(young, segment_id=old.segment_id)
        old = dataclasses.replace(old, segment_id=pair[0].segment_id)
    later = segments(20)[5:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_segments, "EVENT_PAGE_SEGMENTS", 1)
        assert read([old, young, *later], BY_TIME)[2] == 0
