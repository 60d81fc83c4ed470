"""The counters of a node, which bound what clients can make of them."""

from __future__ import annotations

import pytest
from tidelog_node.counters import (
    BUCKET_COUNT,
    ERRORS_MAX,
    OTHER_TOPICS,
    TOPICS_MAX,
    Durations,
    NodeCounters,
    TopicTraffics,
)
from tidelog_node.monitoring.request_source import histogram


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0, 0), (-1, 0), (1e-7, 0), (1e-6, 1), (3e-6, 2), (0.001, 10), (1, 20), (1e9, 27)],
)
def test_durations_are_counted_by_powers_of_two(seconds: float, bucket: int) -> None:
    durations = Durations()
    durations.observe(seconds)
    assert [place for place, count in enumerate(durations.counts) if count] == [bucket]
    assert durations.total_us == max(0, int(seconds * 1e6))


def test_a_histogram_has_every_duration_below_its_bound() -> None:
    durations = Durations()
    given = [2**power / 1e6 * 0.9 for power in range(BUCKET_COUNT)] + [3600.0]
    for seconds in given:
        durations.observe(seconds)
    found = histogram(durations)
    assert len(found.counts) == len(found.bounds) + 1
    assert sum(found.counts) == len(given)
    for place, bound in enumerate(found.bounds):
        assert sum(found.counts[: place + 1]) == sum(seconds < bound for seconds in given)


def test_topics_beyond_the_limit_share_one_counter() -> None:
    topics = TopicTraffics()
    for number in range(TOPICS_MAX):
        topics.of(f"t{number}").produced_bytes += 1
    topics.of("late").produced_bytes += 2
    topics.of("later").produced_bytes += 3
    named = topics.named()
    assert len(named) == TOPICS_MAX + 1
    assert named[OTHER_TOPICS].produced_bytes == 5
    topics.forget("t0")
    assert topics.of("late") is not topics.of("later") or TOPICS_MAX == 1
    assert "t0" not in topics.named()


def test_kinds_of_errors_are_bounded() -> None:
    counters = NodeCounters()
    for code in range(ERRORS_MAX + 10):
        counters.note_error(1, code)
    counters.note_error(1, 0)
    assert len(counters.errors) == ERRORS_MAX
    assert counters.errors[1, 0] == 2
