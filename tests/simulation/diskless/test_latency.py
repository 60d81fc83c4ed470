"""An owner's decisions give the latencies that the design expects of published PUT times."""

from __future__ import annotations

from random import Random

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.chain.chain_writer import WriterLimits
from tidelog_core.diskless.chain.put_pace import PaceLimits

from tests.support.chain_latency import Latencies, StoreLatency, measure
from tests.support.gateway_latency import Path, measure_gateway

GOOD, CAUTIOUS = (70.0, 140.0), (100.0, 195.0)  # median and 99th percentile of objects up to 1 MB
# By interval: p50, p99, p99.9 with hedges.
EXPECTED = {
    GOOD: {20: (87, 159, 201), 50: (97, 174, 212), 100: (123, 211, 250)},
    CAUTIOUS: {20: (124, 222, 275), 50: (129, 231, 288), 100: (154, 266, 321)},
}


def run(
    times: tuple[float, float],
    interval_ms: int,
    seconds: float,
    *,
    percentile: float = 95.0,
    puts_per_second: float = 0.0,
) -> Latencies:
    pace = PaceLimits(puts_per_second_max=puts_per_second, hedge_percentile=percentile)
    store = StoreLatency(Random(7), *times)
    limits = WriterLimits(flush_ms=interval_ms, pace=pace)
    return measure(limits, store, append_bytes=1_000, append_ms=4.0, seconds=seconds)


def test_acks_take_what_is_expected_at_the_default_interval() -> None:
    found = run(GOOD, 100, 60.0)
    p50, p99, _ = EXPECTED[GOOD][100]
    assert (found.p50, found.p99) == pytest.approx((p50, p99), rel=0.25)
    assert found.puts < 1.1 * found.objects
    assert found.in_flight_max <= 8


def test_without_hedges_one_slow_put_holds_many_acks() -> None:
    hedged, plain = run(GOOD, 50, 40.0), run(GOOD, 50, 40.0, percentile=0.0)
    assert plain.puts == plain.objects
    assert plain.p999 > 3 * hedged.p999


def test_the_budget_bounds_objects_and_not_their_hedges() -> None:
    """Four a second, as the design counts for 250 ms: without the budget an idle chain puts more."""
    found = run(GOOD, 250, 60.0, puts_per_second=4.0)
    assert (found.p50, found.p99) == pytest.approx((198, 346), rel=0.25)
    assert found.objects < 4.2 * 60
    assert found.objects < found.puts < 1.1 * found.objects


class HedgedReads(StoreLatency):
    """Reads of small objects, published in 2025, sent once more where they take long."""

    def __init__(self, random: Random) -> None:
        super().__init__(random, 27.0, 113.0)

    def draw(self) -> float:
        return min(super().draw(), 100.0 + super().draw())


@pytest.mark.parametrize("leads_others", [False, True], ids=["alone", "others"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (Path.SEQUENTIAL, (231, 355)),
        (Path.OVERLAPPED, (199, 305)),
        (Path.READ_FIRST, (218, 337)),
        (Path.EARLY, (158, 263)),
    ],
    ids=["sequential", "overlapped", "read first", "early"],
)
def test_a_gateways_acks_take_two_objects_and_a_read(
    path: Path, expected: tuple[float, float], leads_others: bool
) -> None:
    """The design hoped for 200 ms in the median, without the leader's read."""
    found = gateways_latencies(path, leads_others=leads_others, puts_per_second=0.0)
    assert (found.p50, found.p99) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (Path.SEQUENTIAL, (239, 354)),
        (Path.OVERLAPPED, (227, 345)),
        (Path.READ_FIRST, (251, 371)),
    ],
    ids=["sequential", "overlapped", "read first"],
)
def test_by_default_the_budget_of_puts_takes_most_of_what_overlap_gains(
    path: Path, expected: tuple[float, float]
) -> None:
    """A reference that is put at once takes the token that the next ones would have shared."""
    budget = NodeConfig().diskless_append_puts_per_second_max
    found = gateways_latencies(path, leads_others=False, puts_per_second=budget)
    assert (found.p50, found.p99) == pytest.approx(expected, rel=0.1)


def gateways_latencies(path: Path, *, leads_others: bool, puts_per_second: float) -> Latencies:
    found = measure_gateway(
        WriterLimits(pace=PaceLimits(puts_per_second_max=puts_per_second)),
        StoreLatency(Random(7), *GOOD),
        HedgedReads(Random(8)),
        1_000,
        4.0,
        30.0,
        leads_others=leads_others,
        path=path,
    )
    assert found.puts < 1.1 * found.objects
    assert found.in_flight_max <= 8
    return found


@pytest.mark.slow
@pytest.mark.parametrize("interval_ms", [20, 50, 100])
@pytest.mark.parametrize("times", EXPECTED, ids=["good", "cautious"])
def test_the_designs_table(times: tuple[float, float], interval_ms: int) -> None:
    found = run(times, interval_ms, 300.0)
    print(found)
    assert (found.p50, found.p99, found.p999) == pytest.approx(
        EXPECTED[times][interval_ms], rel=0.25
    )
