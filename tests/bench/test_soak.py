"""What the soak decides by: trends, and whether a record is what was written."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.soak.__main__ import LIMITS
from bench.soak.shape import ABORTED, make_value, read_value
from bench.soak.verdicts import Limit, judge, theil_sen

SECONDS = [5.0 * number for number in range(300)]  # 25 minutes, as a soak is judged
LIMIT = Limit("memory", 0.05, 2.0)


@given(slope=st.floats(-5, 5), start=st.floats(0, 1000), seed=st.integers(0, 2**32))
def test_a_fifth_of_the_samples_may_be_anything_without_moving_the_trend(
    slope: float, start: float, seed: int
) -> None:
    rng = random.Random(seed)
    times = SECONDS[:60]
    values = [start + slope * second for second in times]
    for index in rng.sample(range(60), 12):
        values[index] = rng.uniform(-1e6, 1e6)
    assert abs(theil_sen(times, values) - slope) < 1e-6


def test_noise_spikes_and_falls_are_flat() -> None:
    rng = random.Random(1)
    noisy = [100 + rng.gauss(0, 1) for _ in SECONDS]
    spiky = [100.0 + 200 * (number % 12 == 0) for number in range(300)]
    falling = [100 - second / 60 for second in SECONDS]
    for values in (noisy, spiky, falling):
        assert judge(LIMIT, SECONDS, values).is_good


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.figure)
def test_what_doubles_in_an_hour_fails_every_limit(limit: Limit) -> None:
    rng = random.Random(1)
    start = 10 * limit.noise_floor
    values = [start * (1 + second / 3600) + rng.gauss(0, start / 50) for second in SECONDS]
    assert not judge(limit, SECONDS, values).is_good


def test_a_leak_of_a_tenth_an_hour_is_seen_behind_noise_of_a_hundredth() -> None:
    rng = random.Random(1)
    leak = [100 * (1 + 0.1 * second / 3600) + rng.gauss(0, 1) for second in SECONDS]
    assert not judge(LIMIT, SECONDS, leak).is_good


def test_a_figure_that_is_once_too_large_fails_however_flat_it_is() -> None:
    limit = Limit("disk", 0.05, 2.0, at_most=150)
    values = [100.0] * 300
    assert judge(limit, SECONDS, values).is_good
    values[40] = 151.0
    assert not judge(limit, SECONDS, values).is_good


def test_too_few_samples_are_no_good_verdict() -> None:
    assert not judge(LIMIT, SECONDS[:9], [100.0] * 9).is_good


@given(number=st.integers(0, 2**40), is_aborted=st.booleans(), at=st.integers(0, 1023))
def test_a_record_tells_its_number_and_any_damage_to_its_body(
    number: int, is_aborted: bool, at: int
) -> None:
    number |= ABORTED * is_aborted
    value = make_value(number, 77, 1024)
    assert len(value) == 1024
    assert read_value(value) == (number, 77)
    damaged = bytearray(value)
    damaged[at] ^= 1
    if 8 <= at < 16:  # of the due time, which nothing else tells
        assert read_value(bytes(damaged))[1] != 77
    else:
        with pytest.raises(ValueError, match="not what was written"):
            read_value(bytes(damaged))
