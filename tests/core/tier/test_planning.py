"""Which segments to copy, read and clean up."""

from __future__ import annotations

from pathlib import Path

from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata.records import SegmentState
from tidelog_core.tier.planning import (
    finished_segments,
    select_copies,
    select_leftovers,
    tiered_end_offset,
)

from tests.core.tier.test_keys import meta


def sealed(base: int, end: int, *, size: int = 100, newest_ms: int = 0) -> SealedSegment:
    path = Path(f"/nowhere/{base}")
    return SealedSegment(base, end, size, newest_ms, path, path, path, path, path, (), newest_ms)


def test_only_settled_segments_behind_the_tier_are_copied_oldest_first() -> None:
    segments = [sealed(20, 30), sealed(0, 10), sealed(10, 20), sealed(30, 40)]
    chosen = select_copies(segments, tiered_end=10, up_to=30)
    assert [s.base_offset for s in chosen] == [10, 20]
    assert select_copies(segments, tiered_end=40, up_to=100) == []


def test_a_segment_that_the_tier_holds_in_part_is_copied_whole() -> None:
    chosen = select_copies([sealed(0, 10), sealed(10, 20)], tiered_end=15, up_to=20)
    assert [s.base_offset for s in chosen] == [10]


def test_the_tiered_end_stops_at_a_gap() -> None:
    metas = [meta(30, 40), meta(10, 20), meta(0, 10)]
    assert tiered_end_offset(metas, 0) == 20
    assert tiered_end_offset(metas, 5) == 20
    assert tiered_end_offset(metas, 25) == 25
    assert tiered_end_offset(metas, 35) == 40
    assert tiered_end_offset([], 7) == 7


def test_the_tiered_end_crosses_overlaps() -> None:
    assert tiered_end_offset([meta(0, 15), meta(5, 12), meta(12, 20)], 0) == 20


def test_unfinished_segments_are_not_read() -> None:
    started = meta(state=SegmentState.COPY_STARTED)
    deleting = meta(state=SegmentState.DELETE_STARTED)
    done = meta()
    assert finished_segments([started, deleting, done]) == [done]


def test_leftovers_are_what_nobody_works_on() -> None:
    mine = meta(state=SegmentState.COPY_STARTED)
    left = meta(state=SegmentState.COPY_STARTED)
    deleting = meta(state=SegmentState.DELETE_STARTED)
    found = select_leftovers([mine, left, deleting, meta()], under_way={mine.segment_id}, now_ms=0)
    assert found == [left, deleting]
