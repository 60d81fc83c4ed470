"""What retention removes, in total and locally."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.config import UNLIMITED, TopicConfig
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.retention.selection import (
    Limits,
    RetainedSegment,
    eviction_end_offset,
    local_limits,
    log_start_after_retention,
    log_start_after_tier_retention,
    retained_segments,
    retained_size_bytes,
    select_unretained,
    total_limits,
)
from tidelog_core.tier.tiered_segments import TieredSegments

from tests.support.segment_items import sealed_segment, segment_meta

DAY_MS = 86_400_000


def run(*segments: tuple[int, int, int, int]) -> list[RetainedSegment]:
    return [RetainedSegment(*segment) for segment in segments]


def unretained(segments: list[RetainedSegment], limits: Limits, **of: int) -> list[RetainedSegment]:
    size_bytes = of.get("active_size_bytes", 0) + sum(s.size_bytes for s in segments)
    return list(
        select_unretained(segments, limits, size_bytes=size_bytes, now_ms=of.get("now_ms", 0))
    )


def test_expired_segments_are_a_run_from_the_oldest() -> None:
    segments = run((0, 10, 5, 100), (10, 20, 5, 300), (20, 30, 5, 150))
    assert unretained(segments, Limits(300, -1), now_ms=401) == segments[:1]
    assert unretained(segments, Limits(300, -1), now_ms=400) == []
    assert unretained(segments, Limits(300, -1), now_ms=10_000) == segments
    assert unretained(segments, Limits(-1, -1), now_ms=10_000) == []
    assert unretained(segments, Limits(0, -1), now_ms=10_000) == segments


def test_excess_leaves_at_least_the_bytes_that_may_be_kept() -> None:
    segments = run((0, 10, 50, 0), (10, 20, 50, 0), (20, 30, 50, 0))
    assert unretained(segments, Limits(-1, 100), active_size_bytes=50) == segments[:2]
    assert unretained(segments, Limits(-1, 101), active_size_bytes=50) == segments[:1]
    assert unretained(segments, Limits(-1, 200), active_size_bytes=50) == []
    assert unretained(segments, Limits(-1, 0)) == segments
    assert unretained(segments, Limits(-1, -1)) == []


def test_what_is_too_old_and_what_is_too_much_are_one_run() -> None:
    segments = run((0, 10, 5, 100), (10, 20, 5, 300), (20, 30, 5, 150), (30, 40, 5, 100))
    assert unretained(segments, Limits(300, 15), now_ms=401) == segments[:1]
    assert unretained(segments, Limits(300, 10), now_ms=401) == segments[:2]


def test_minus_two_follows_the_total_retention() -> None:
    config = TopicConfig(retention_ms=DAY_MS, retention_bytes=500)
    assert local_limits(config) == Limits(DAY_MS, 500)
    config = TopicConfig(retention_ms=DAY_MS, local_retention_ms=-1, local_retention_bytes=10)
    assert local_limits(config) == Limits(-1, 10)


def test_a_topic_that_is_only_compacted_keeps_everything() -> None:
    config = TopicConfig(cleanup_policy=("compact",), retention_ms=1, retention_bytes=1)
    assert total_limits(config) == Limits(-1, -1)
    assert local_limits(config) == Limits(-1, -1)
    both = TopicConfig(cleanup_policy=("compact", "delete"), retention_ms=1, retention_bytes=1)
    assert total_limits(both) == Limits(1, 1)


def test_tiered_and_local_segments_make_one_line() -> None:
    tiered = [segment_meta(10, 20, max_timestamp_ms=-1, created_ms=77), segment_meta(0, 10)]
    local = [sealed_segment(10, 20), sealed_segment(15, 25), sealed_segment(20, 30, newest_ms=9)]
    line = list(retained_segments(TieredSegments(tiered), local))
    assert [(s.base_offset, s.end_offset) for s in line] == [(0, 10), (10, 20), (20, 25), (25, 30)]
    assert [s.newest_ms for s in line] == [1, 77, 0, 9]
    assert [s.size_bytes for s in line] == [1000, 1000, 50, 50]


def cut(draw: st.DrawFn, first: int, last: int) -> list[tuple[int, int]]:
    """Return the segments of one leader, which rolled where it liked."""
    points = sorted(draw(st.sets(st.integers(first, last), min_size=2, max_size=8)))
    return list(itertools.pairwise(points))


@st.composite
def rolled(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
    """Return what two leaders have tiered, what a third has on disk, and the bytes an offset."""
    tiered = cut(draw, 0, 30)
    if draw(st.booleans()):
        tiered += cut(draw, 10, 50)
    return tiered, cut(draw, 0, 60), draw(st.integers(1, 1000))


@given(rolled())
def test_every_record_counts_once_with_its_bytes(
    world: tuple[list[tuple[int, int]], list[tuple[int, int]], int],
) -> None:
    in_tier, on_disk, offset_bytes = world
    tiered = [
        segment_meta(base, end, size_bytes=(end - base) * offset_bytes) for base, end in in_tier
    ]
    local = [sealed_segment(base, end, size=(end - base) * offset_bytes) for base, end in on_disk]
    line = list(retained_segments(TieredSegments(tiered), local))
    tier_end = max(end for _, end in in_tier)
    held = {offset for base, end in in_tier for offset in range(base, end)}
    held |= {o for base, end in on_disk for o in range(base, end) if o >= tier_end}
    counted = [o for segment in line for o in range(segment.base_offset, segment.end_offset)]
    assert counted == sorted(held)
    assert sum(segment.size_bytes for segment in line) == len(held) * offset_bytes


@given(rolled(), st.integers(0, 70), st.integers(0, 30))
def test_overlapping_segments_do_not_make_retention_remove_more_than_it_may(
    world: tuple[list[tuple[int, int]], list[tuple[int, int]], int], kept: int, log_start: int
) -> None:
    in_tier, on_disk, offset_bytes = world
    tiered = [
        segment_meta(base, end, size_bytes=(end - base) * offset_bytes) for base, end in in_tier
    ]
    local = [sealed_segment(base, end, size=(end - base) * offset_bytes) for base, end in on_disk]
    line = list(retained_segments(TieredSegments(tiered), local))
    start = log_start_after_retention(
        retained_segments(TieredSegments(tiered), local, log_start_offset=log_start),
        Limits(UNLIMITED, kept * offset_bytes),
        log_start_offset=log_start,
        size_bytes=retained_size_bytes(TieredSegments(tiered), local, log_start_offset=log_start),
        now_ms=0,
    )
    left = sum(max(0, s.end_offset - max(s.base_offset, start)) for s in line)
    assert start == log_start or left >= kept


def test_the_log_start_moves_past_what_is_too_old_or_too_much() -> None:
    segments = run((0, 10, 50, 100), (10, 20, 50, 200), (20, 30, 50, 300))

    def start(limits: Limits, log_start: int = 0) -> int:
        kept = [segment for segment in segments if segment.end_offset > log_start]
        size_bytes = 10 + sum(segment.size_bytes for segment in kept)
        return log_start_after_retention(
            kept, limits, log_start_offset=log_start, size_bytes=size_bytes, now_ms=1000
        )

    assert start(Limits(-1, -1)) == 0
    assert start(Limits(850, -1)) == 10
    assert start(Limits(-1, 60)) == 20
    assert start(Limits(850, 60)) == 20
    assert start(Limits(850, -1), log_start=15) == 15
    # What DeleteRecords removed no longer counts against the bytes.
    assert start(Limits(-1, 60), log_start=10) == 20
    assert start(Limits(-1, 110), log_start=10) == 10


def test_only_what_is_wholly_in_the_tier_is_evicted() -> None:
    local = [sealed_segment(n, n + 10, newest_ms=n) for n in (0, 10, 20)]

    def end(limits: Limits, tiered_end: int) -> int | None:
        return eviction_end_offset(
            local, limits, tiered_end=tiered_end, size_bytes=300, now_ms=1000
        )

    assert end(Limits(0, -1), 30) == 30
    assert end(Limits(0, -1), 25) == 20
    assert end(Limits(0, -1), 5) is None
    assert end(Limits(-1, 0), 30) == 30
    assert end(Limits(-1, 200), 30) == 10
    assert end(Limits(-1, -1), 30) is None
    assert end(Limits(985, -1), 30) == 20
    assert end(Limits(985, 0), 30) == 30


def tiered(base: int, end: int, *, size: int = 100, newest_ms: int = 0) -> SegmentMeta:
    return segment_meta(base, end, size_bytes=size, max_timestamp_ms=newest_ms)


def test_who_knows_the_tier_alone_removes_no_more_than_the_leader() -> None:
    """What lies on the leader's disk only adds to what is kept by size."""
    finished = TieredSegments([tiered(0, 10), tiered(10, 20), tiered(20, 30)])
    limits = Limits(UNLIMITED, 150)
    alone = log_start_after_tier_retention(finished, limits, log_start_offset=0, now_ms=0)
    leader = log_start_after_retention(
        retained_segments(finished, ()), limits, log_start_offset=0, size_bytes=380, now_ms=0
    )
    assert (alone, leader) == (10, 20)


def test_nothing_goes_behind_a_gap_in_the_tier() -> None:
    """Its records may be on a disk, and young."""
    finished = TieredSegments([tiered(0, 10), tiered(20, 30)])
    limits = Limits(1000, UNLIMITED)
    after = log_start_after_tier_retention(finished, limits, log_start_offset=0, now_ms=5000)
    assert after == 10
    # Once the log starts behind the gap it is none.
    after = log_start_after_tier_retention(finished, limits, log_start_offset=25, now_ms=5000)
    assert after == 30
