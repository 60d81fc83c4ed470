"""A partition's tiered segments are found without looking at all of them, and found right."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.retention.selection import retained_segments, retained_size_bytes
from tidelog_core.tier.planning import finished_segments, tiered_end_offset
from tidelog_core.tier.stretches import stretches_of
from tidelog_core.tier.tiered_segments import DROPPED_MIN, UNPACKED_COUNT_MAX, TieredSegments

from tests.support.segment_items import segment_meta

OFFSET_END = 40


def preferred(metas: Sequence[SegmentMeta]) -> SegmentMeta | None:
    """Return the one that begins last, the newest leader's and longest of those that do."""
    return max(
        metas,
        key=lambda m: (m.base_offset, m.leader_epoch, m.end_offset, m.rewrite_epoch, m.segment_id),
        default=None,
    )


def check(found: TieredSegments, metas: Sequence[SegmentMeta], timestamp_ms: int) -> None:
    """Compare everything that can be asked with what a look at all segments says."""
    ordered = finished_segments(metas)
    assert list(found) == ordered
    assert len(found) == len(ordered)
    assert (found.first, found.last) == (ordered[0] if ordered else None, _last(ordered))
    for offset in range(OFFSET_END + 1):
        holding = [m for m in metas if m.base_offset <= offset < m.end_offset]
        assert found.locate(offset) == preferred(holding)
        assert found.ending_at(offset) == preferred([m for m in metas if m.end_offset == offset])
        assert found.before(offset) == preferred([m for m in metas if m.base_offset < offset])
        assert found.tiered_end(offset) == tiered_end_offset(ordered, offset)
        assert found.below(offset) == [m for m in ordered if m.end_offset <= offset]
        reaching = [m for m in ordered if m.end_offset > offset]
        newest = found.newest(start_offset=offset)
        assert (newest is None) == (not reaching)
        if newest is not None:
            assert newest in reaching
            assert newest.max_timestamp_ms == max(m.max_timestamp_ms for m in reaching)
        since = [m for m in reaching if m.max_timestamp_ms >= timestamp_ms]
        assert list(found.since(timestamp_ms, start_offset=offset)) == since
        retained = list(retained_segments(found, (), log_start_offset=offset))
        every = list(retained_segments(TieredSegments(metas), ()))
        assert retained == [segment for segment in every if segment.end_offset > offset]
        size_bytes = retained_size_bytes(found, (), log_start_offset=offset)
        assert size_bytes == sum(segment.size_bytes for segment in retained)


def _last(metas: Sequence[SegmentMeta]) -> SegmentMeta | None:
    return metas[-1] if metas else None


@st.composite
def segment(draw: st.DrawFn) -> SegmentMeta:
    base = draw(st.integers(0, OFFSET_END - 1))
    end = draw(st.integers(base + 1, OFFSET_END))
    return segment_meta(
        base,
        end,
        segment_id=draw(st.uuids()),
        leader_epoch=draw(st.integers(5, 7)),
        rewrite_epoch=draw(st.integers(0, 1)),
        size_bytes=draw(st.integers(0, 99)),
        max_timestamp_ms=draw(times),
    )


times = st.integers(-1, 9)


@given(st.lists(segment(), max_size=8), times)
def test_whatever_the_segments_they_are_found_as_by_a_look_at_all(
    metas: list[SegmentMeta], timestamp_ms: int
) -> None:
    check(TieredSegments(metas), metas, timestamp_ms)


@given(st.lists(segment(), max_size=6), st.lists(segment(), max_size=4), st.data())
def test_segments_that_come_and_go_are_as_if_they_had_been_there_or_not(
    metas: list[SegmentMeta], added: list[SegmentMeta], data: st.DataObject
) -> None:
    found = TieredSegments(metas)
    left = list(metas)
    for one in {m.segment_id: m for m in added}.values():
        found.add(one)
        found.add(one)  # What is there is there once.
        left.append(one)
    for one in data.draw(st.lists(st.sampled_from(left), unique=True)) if left else ():
        found.remove(one)
        found.remove(one)  # What is gone is gone.
        left = [m for m in left if m.segment_id != one.segment_id]
        check(found, left, 3)


@given(st.lists(segment(), max_size=8), st.lists(segment(), max_size=8), times)
def test_segments_that_come_in_two_parts_are_as_if_they_had_come_together(
    first: list[SegmentMeta], second: list[SegmentMeta], timestamp_ms: int
) -> None:
    found = TieredSegments(first)
    found.extend(second)
    check(found, [*first, *second], timestamp_ms)


@given(st.lists(segment(), max_size=8), st.data())
def test_what_is_not_among_others_is_told_by_the_segments_ids(
    metas: list[SegmentMeta], data: st.DataObject
) -> None:
    others = data.draw(st.lists(st.sampled_from(metas), unique=True)) if metas else []
    written_again = [dataclasses.replace(one, version=one.version + 1) for one in others]
    left = TieredSegments(metas).without(TieredSegments(written_again))
    assert len(left) == len(metas) - len(others)
    assert {m.segment_id for m in left} == {m.segment_id for m in metas if m not in others}
    assert all(one in TieredSegments(metas) for one in others)


IDS = (UUID(int=1), UUID(int=2))


@pytest.mark.parametrize("ids", [IDS, IDS[::-1]])
@pytest.mark.parametrize("new_end", [50, 100, 150])
def test_of_segments_that_begin_together_the_newest_leaders_is_read_and_counts(
    ids: tuple[UUID, UUID], new_end: int
) -> None:
    """Whatever their ids, in whatever order they come, and as Spark plans it."""
    old = segment_meta(0, 100, leader_epoch=5, segment_id=ids[0], size_bytes=1_000)
    new = segment_meta(
        0, new_end, leader_epoch=6, leader_epochs=((5, 0),), segment_id=ids[1], size_bytes=500
    )
    end = max(100, new_end)
    for order in ([old, new], [new, old]):
        found = TieredSegments(order)
        assert [found.locate(offset) for offset in (0, new_end - 1)] == [new, new]
        assert found.locate(end - 1) == (new if new_end >= 100 else old)
        retained = [(one.base_offset, one.end_offset) for one in retained_segments(found, ())]
        assert retained == ([(0, 50), (50, 100)] if new_end < 100 else [(0, new_end)])
        assert found.bytes_above(0) == (1_000 if new_end < 100 else 500)
        for stretch in stretches_of(order):
            for offset in range(stretch.start_offset, stretch.end_offset):
                assert found.locate(offset) == stretch.segment


@given(st.lists(segment(), max_size=8, unique_by=lambda one: one.segment_id))
def test_of_segments_that_begin_together_nodes_and_spark_read_the_same(
    metas: list[SegmentMeta],
) -> None:
    """Where no newer leader's log says that the rest of an older one's was truncated."""
    together = [dataclasses.replace(one, base_offset=0, leader_epochs=((5, 0),)) for one in metas]
    found = TieredSegments(together)
    for stretch in stretches_of(together):
        for offset in range(stretch.start_offset, stretch.end_offset):
            assert found.locate(offset) == stretch.segment


def test_looking_up_the_same_segment_again_makes_nothing_new() -> None:
    found = TieredSegments(segment_meta(n, n + 1) for n in range(4 * UNPACKED_COUNT_MAX))
    assert found.locate(7) is found.locate(7)
    before = found.locate(7)
    list(found)
    assert found.locate(7) is before  # Who goes through all of them keeps none.
    for offset in range(4 * UNPACKED_COUNT_MAX):
        found.locate(offset)
    assert found.locate(7) is not before  # So many do not stay.


def test_unfinished_segments_are_left_out() -> None:
    done = segment_meta()
    others = [
        segment_meta(state=SegmentState.COPY_STARTED),
        segment_meta(state=SegmentState.DELETE_STARTED),
    ]
    assert list(TieredSegments([*others, done])) == [done]


def test_a_reader_goes_on_over_what_was_there_while_segments_come_and_go() -> None:
    metas = [segment_meta(n, n + 1) for n in range(4 * DROPPED_MIN)]
    found = TieredSegments(metas)
    reading = iter(found)
    seen = [next(reading)]
    for one in metas[: 2 * DROPPED_MIN]:
        found.remove(one)
    found.add(segment_meta(5000, 5001))
    seen += reading
    assert seen[: len(metas)] == metas
    assert [m.base_offset for m in found] == [*range(2 * DROPPED_MIN, 4 * DROPPED_MIN), 5000]


def test_a_log_that_is_copied_and_expires_for_ever_stays_right() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    found, left, end = TieredSegments(), list[SegmentMeta](), 0
    for _ in range(4 * DROPPED_MIN):
        if left and chance.random() < 0.47:
            found.remove(left.pop(0))
        else:
            gap, length = chance.choice([0, 0, 0, 2]), chance.randint(1, 3)
            left.append(segment_meta(end + gap, end + gap + length, size_bytes=length))
            found.add(left[-1])
            end += gap + length
    assert list(found) == left
    start = left[0].base_offset if left else end
    assert found.tiered_end(start) == tiered_end_offset(left, start)
    assert found.bytes_above(start) == sum(m.size_bytes for m in left)


@pytest.mark.parametrize("count", [50_000])
def test_a_segments_way_costs_the_same_beside_many_as_beside_few(count: int) -> None:
    def seconds(beside: int) -> float:
        metas = [segment_meta(n * 10, n * 10 + 10) for n in range(beside + 200)]
        found = TieredSegments(metas[:beside])
        begun = time.thread_time()
        for number in range(200):
            new, old = metas[beside + number], metas[number]
            assert found.before(new.base_offset) is not None
            found.add(new)
            start = old.end_offset
            assert found.tiered_end(start) == new.end_offset
            assert found.locate(new.base_offset - 5) is not None
            assert found.below(start) == [old]
            found.remove(old)
        return time.thread_time() - begun

    few = min(seconds(500) for _ in range(3))
    many = min(seconds(count) for _ in range(2))
    assert many < 5 * few + 0.01, (few, many)  # Looking at all of them would be 100 times as much.
