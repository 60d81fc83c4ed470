"""How fast objects are put, and when they are put again."""

from __future__ import annotations

import random

from tidelog_core.diskless.chain.put_pace import (
    SAMPLE_COUNT_MAX,
    SAMPLE_COUNT_MIN,
    LatencyPercentile,
    PaceLimits,
    PutPace,
)


def test_the_percentile_is_that_of_the_last_answers() -> None:
    percentile = LatencyPercentile()
    for _ in range(SAMPLE_COUNT_MIN - 1):
        percentile.add(1.0)
    assert percentile.value(95) is None
    drawn = random.Random(7)
    values = [drawn.random() * 100 for _ in range(3 * SAMPLE_COUNT_MAX)]
    for value in values:
        percentile.add(value)
    last = sorted(values[-SAMPLE_COUNT_MAX:])
    assert percentile.value(95) == last[int(SAMPLE_COUNT_MAX * 0.95)]
    assert percentile.value(100) == last[-1]


def test_a_hedge_waits_for_the_percentile_within_bounds() -> None:
    pace = PutPace(PaceLimits(first_hedge_ms=300, hedge_ms_min=20))
    assert pace.hedge_delay_ms(0) == 300
    for _ in range(SAMPLE_COUNT_MIN):
        pace.on_answer(80.0)
    assert pace.hedge_delay_ms(0) == 80
    for _ in range(SAMPLE_COUNT_MAX):
        pace.on_answer(1.0)
    assert pace.hedge_delay_ms(0) == 20
    assert PutPace(PaceLimits(hedge_percentile=0)).hedge_delay_ms(0) is None


def test_a_throttled_store_gets_half_and_then_more_again() -> None:
    pace = PutPace(PaceLimits(in_flight_max=8))
    for left in (4, 2, 1, 1):
        pace.on_throttled(0)
        assert pace.in_flight_max == left
    assert pace.hedge_delay_ms(999) is None
    assert pace.hedge_delay_ms(1_000) is not None
    for _ in range(28):
        pace.on_answer(10.0)
    assert pace.in_flight_max == 8


def test_puts_a_second_are_bounded() -> None:
    pace = PutPace(PaceLimits(puts_per_second_max=10))
    for _ in range(10):
        assert pace.token_delay_ms(0) == 0
        pace.take_token(0)
    pace.take_token(0)
    assert pace.token_delay_ms(0) == 100
    assert pace.token_delay_ms(100) == 0
    free = PutPace(PaceLimits(puts_per_second_max=0))
    for _ in range(1_000):
        free.take_token(0)
    assert free.token_delay_ms(0) == 0


def test_after_a_busy_minute_nothing_waits_for_more_than_one_token() -> None:
    """Full buffers need no token: at 100 MB/s they are 25 a second. An object that follows waited
    90 s for what they had overdrawn.
    """
    pace = PutPace(PaceLimits(puts_per_second_max=10))
    for number in range(25 * 60):
        pace.take_token(40.0 * number)
    assert 0 <= pace.token_delay_ms(60_000.0) <= 100


def test_retries_back_off_to_a_bound() -> None:
    pace = PutPace(PaceLimits(retry_ms_first=50, retry_ms_max=2_000))
    assert [pace.retry_delay_ms(count) for count in (1, 2, 3, 7, 1_000)] == [
        50,
        100,
        200,
        2_000,
        2_000,
    ]
