"""Which segments to copy, read and clean up."""

from __future__ import annotations

from tidelog_core.metadata.records import SegmentState
from tidelog_core.tier.planning import (
    finished_segments,
    select_copies,
    select_leftovers,
    tiered_end_offset,
)

from tests.support.segment_items import sealed_segment, segment_meta


def test_only_settled_segments_behind_the_tier_are_copied_oldest_first() -> None:
    segments = [
        sealed_segment(20, 30),
        sealed_segment(0, 10),
        sealed_segment(10, 20),
        sealed_segment(30, 40),
    ]
    chosen = select_copies(segments, tiered_end=10, up_to=30)
    assert [s.base_offset for s in chosen] == [10, 20]
    assert select_copies(segments, tiered_end=40, up_to=100) == []


def test_a_segment_that_the_tier_holds_in_part_is_copied_whole() -> None:
    chosen = select_copies([sealed_segment(0, 10), sealed_segment(10, 20)], tiered_end=15, up_to=20)
    assert [s.base_offset for s in chosen] == [10]


def test_the_tiered_end_stops_at_a_gap() -> None:
    metas = [segment_meta(30, 40), segment_meta(10, 20), segment_meta(0, 10)]
    assert tiered_end_offset(metas, 0) == 20
    assert tiered_end_offset(metas, 5) == 20
    assert tiered_end_offset(metas, 25) == 25
    assert tiered_end_offset(metas, 35) == 40
    assert tiered_end_offset([], 7) == 7


def test_the_tiered_end_crosses_overlaps() -> None:
    assert (
        tiered_end_offset([segment_meta(0, 15), segment_meta(5, 12), segment_meta(12, 20)], 0) == 20
    )


def test_unfinished_segments_are_not_read() -> None:
    started = segment_meta(state=SegmentState.COPY_STARTED)
    deleting = segment_meta(state=SegmentState.DELETE_STARTED)
    done = segment_meta()
    assert finished_segments([started, deleting, done]) == [done]


def test_leftovers_are_what_nobody_works_on() -> None:
    mine = segment_meta(state=SegmentState.COPY_STARTED)
    left = segment_meta(state=SegmentState.COPY_STARTED)
    deleting = segment_meta(state=SegmentState.DELETE_STARTED)
    found = select_leftovers(
        [mine, left, deleting, segment_meta()], under_way={mine.segment_id}, now_ms=0
    )
    assert found == [left, deleting]
