"""Which part of a log is compacted, and when that is worth it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.compaction.selection import (
    Cleanable,
    SegmentLimits,
    find_cleanable,
    next_check_ms,
)
from tidelog_core.config import TopicConfig
from tidelog_core.log.cleaned_segments import SegmentToClean

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import append, open_log

HOUR_MS = 3_600_000


def segment(
    base_offset: int, *, end_offset: int | None = None, size_bytes: int = 100, age_ms: int = 0
) -> SegmentToClean:
    """Return a segment of ten offsets, all of its records of one time."""
    return SegmentToClean(
        base_offset,
        base_offset + 10 if end_offset is None else end_offset,
        size_bytes,
        index_entry_count=1,
        first_timestamp_ms=NOW_MS - age_ms,
        max_timestamp_ms=NOW_MS - age_ms,
    )


def found(*segments: SegmentToClean, dirty_from: int = 0, **config: Any) -> Cleanable:
    return find_cleanable(segments, TopicConfig(**config), dirty_from=dirty_from, now_ms=NOW_MS)


def test_a_log_is_due_when_more_than_the_ratio_of_it_is_dirty() -> None:
    segments = [segment(0), segment(10), segment(20), segment(30)]
    half = found(*segments, dirty_from=20)
    assert (half.clean_bytes, half.dirty_bytes, half.dirty_ratio) == (200, 200, 0.5)
    assert not half.is_due(TopicConfig(min_cleanable_dirty_ratio=0.5))
    assert half.is_due(TopicConfig(min_cleanable_dirty_ratio=0.49))


def test_a_segment_that_is_partly_dirty_counts_as_dirty() -> None:
    assert found(segment(0), segment(10), dirty_from=15).dirty_bytes == 100


def test_nothing_dirty_is_never_due() -> None:
    config = TopicConfig(min_cleanable_dirty_ratio=0, max_compaction_lag_ms=1)
    clean = found(segment(0, age_ms=HOUR_MS), dirty_from=10, max_compaction_lag_ms=1)
    assert not clean.is_due(config)
    assert not found(max_compaction_lag_ms=1).is_due(config)


def test_what_has_waited_for_the_greatest_lag_is_due_whatever_its_part() -> None:
    config: dict[str, Any] = {"max_compaction_lag_ms": HOUR_MS, "min_cleanable_dirty_ratio": 1.0}
    young, old = segment(10, age_ms=HOUR_MS), segment(10, age_ms=HOUR_MS + 1)
    large = segment(0, size_bytes=10_000, age_ms=2 * HOUR_MS)
    assert not found(large, young, dirty_from=10, **config).is_due(TopicConfig(**config))
    assert found(large, old, dirty_from=10, **config).is_due(TopicConfig(**config))


def test_what_has_not_waited_for_the_least_lag_is_left_alone_with_all_behind_it() -> None:
    segments = [
        segment(0, age_ms=HOUR_MS),
        segment(10, age_ms=HOUR_MS - 1),
        segment(20, age_ms=HOUR_MS),
    ]
    lagging = found(*segments, min_compaction_lag_ms=HOUR_MS)
    assert lagging.segments == (segments[0],)
    assert found(*segments, dirty_from=20, min_compaction_lag_ms=HOUR_MS).segments == tuple(
        segments
    )


def test_segments_become_one_as_long_as_they_fit_into_one() -> None:
    limits = SegmentLimits.of(TopicConfig(segment_bytes=100, segment_index_bytes=3 * 12))
    before: dict[str, Any] = {
        "base_offset": 0,
        "size_bytes": 60,
        "entry_count": 3,
        "has_records": True,
    }
    following = segment(10, size_bytes=40)
    assert limits.allow(following, **before)
    assert not limits.allow(following, **{**before, "size_bytes": 61})
    assert not limits.allow(following, **{**before, "entry_count": 4})
    assert limits.allow(segment(10, end_offset=2**31, size_bytes=40), **before)
    assert not limits.allow(segment(10, end_offset=2**31 + 1, size_bytes=40), **before)
    assert not dataclasses.replace(limits, apart_at=10).allow(following, **before)
    empty = {**before, "has_records": False}
    assert limits.allow(segment(10, size_bytes=100), **empty)
    assert limits.allow(segment(10, size_bytes=2**31 - 61), **empty)
    assert not limits.allow(segment(10, size_bytes=2**31 - 60), **empty)
    assert not limits.allow(following, **{**empty, "entry_count": 4})


def test_only_what_is_sealed_flushed_replicated_and_stable_is_looked_at(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200, cleanup_policy=("compact",))
    for _ in range(3):
        append(log, batch(key=b"key"))
    log.roll()
    assert log.segments_to_clean() == ()  # not flushed
    log.flush()
    assert [one.end_offset for one in log.segments_to_clean()] == [2, 3]
    opening = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    append(log, batch(key=b"key", is_transactional=True, **opening))
    log.roll()
    log.append_as_leader(batch(key=b"key"), leader_epoch=0)
    log.roll()
    log.flush()
    assert [one.end_offset for one in log.segments_to_clean()] == [2, 3]
    log.close()


def test_the_greatest_lag_seals_the_active_segment_of_a_compacted_topic(tmp_path: Path) -> None:
    clock = Clock()
    for policy, is_rolled in ((("delete",), False), (("compact",), True)):
        log = open_log(
            tmp_path / policy[0], clock, cleanup_policy=policy, max_compaction_lag_ms=HOUR_MS
        )
        append(log, batch(key=b"key"))
        clock.now_ms += HOUR_MS
        assert not log.maybe_roll()
        clock.now_ms += 1
        assert log.maybe_roll() is is_rolled
        log.close()


@given(
    ages=st.lists(st.integers(0, 50), max_size=5),
    dirty_from=st.integers(0, 50),
    lags=st.tuples(st.integers(0, 40), st.integers(1, 60)),
    ratio=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_nothing_is_due_before_the_time_to_look_again(
    ages: list[int], dirty_from: int, lags: tuple[int, int], ratio: float
) -> None:
    """And never, where there is no such time."""
    config = TopicConfig(
        min_compaction_lag_ms=lags[0],
        max_compaction_lag_ms=lags[1],
        min_cleanable_dirty_ratio=ratio,
    )
    segments = [segment(10 * number, age_ms=age) for number, age in enumerate(ages)]

    def at(now_ms: int) -> Cleanable:
        return find_cleanable(segments, config, dirty_from=dirty_from, now_ms=now_ms)

    if at(NOW_MS).is_due(config):
        return
    check_ms = next_check_ms(segments, at(NOW_MS), config)
    until_ms = NOW_MS + 200 if check_ms is None else check_ms
    assert check_ms is None or check_ms > NOW_MS
    assert not any(at(now_ms).is_due(config) for now_ms in range(NOW_MS, until_ms))
