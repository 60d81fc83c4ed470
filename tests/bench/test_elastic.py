"""The pauses of a producer while nodes come and go."""

from __future__ import annotations

from bench.elastic import Acks, longest_gap


def test_a_gap_is_counted_inside_of_the_time_alone() -> None:
    times = [0.0, 1.0, 1.5, 4.0, 9.0]
    assert longest_gap(times, 0.5, 2.0) == 0.5
    assert longest_gap(times, 1.0, 5.0) == 2.5
    assert longest_gap(times, 5.0, 8.0) == 3.0
    assert longest_gap([], 1.0, 3.0) == 2.0


def test_the_partition_that_waited_longest_counts() -> None:
    acks = Acks()
    acks.times[0] = [1.0, 1.5, 2.0]
    acks.times[1] = [1.0, 2.0]
    assert acks.longest_gap(1.0, 2.0) == 1.0
    assert acks.count == 5
