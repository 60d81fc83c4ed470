"""How much of an observer's time counts against brokers that it sees silent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.replication.leases.observed_time import ObservedTime, ReadingPlan
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.support.replication_cluster import TIMES, make_lease

PLAN = ReadingPlan(500, 1_000)


def test_readings_and_renewals_that_come_as_planned_count_in_full() -> None:
    observed = ObservedTime()
    counted = [
        observed.on_reading(at_ms, PLAN, has_renewed=at_ms % 1_000 == 0)
        for at_ms in range(0, 10_001, 500)
    ]
    assert counted == [0, *[500] * 20]


def test_a_late_reading_counts_for_a_renewal_interval_at_most() -> None:
    observed = ObservedTime()
    observed.on_reading(0, PLAN, has_renewed=True)
    assert observed.on_reading(900, PLAN, has_renewed=True) == 900
    assert observed.on_reading(60_000, PLAN, has_renewed=True) == 1_000


def test_a_reading_that_was_planned_for_much_later_counts_in_full() -> None:
    observed, seldom = ObservedTime(), ReadingPlan(40_000, 3_000)
    observed.on_reading(0, seldom, has_renewed=True)
    assert observed.on_reading(40_000, seldom, has_renewed=True) == 40_000
    assert observed.on_reading(80_000, seldom, has_renewed=True) == 40_000


def test_time_without_a_renewal_of_its_own_counts_for_little() -> None:
    observed = ObservedTime()
    observed.on_reading(0, PLAN, has_renewed=True)
    counted = [
        observed.on_reading(at_ms, PLAN, has_renewed=False) for at_ms in range(500, 9_000, 500)
    ]
    assert sum(counted) == PLAN.unrenewed_ms_max == 2_000
    assert observed.on_reading(9_000, PLAN, has_renewed=True) == 0
    assert observed.on_reading(9_500, PLAN, has_renewed=False) == 500


def test_an_observer_without_a_lease_counts_its_readings_alone() -> None:
    observed = ObservedTime()
    counted = [observed.on_reading(at_ms, PLAN, has_renewed=None) for at_ms in range(0, 9_001, 500)]
    assert sum(counted) == 9_000


def test_a_reading_that_was_overtaken_counts_nothing() -> None:
    observed = ObservedTime()
    observed.on_reading(0, PLAN, has_renewed=True)
    observed.on_reading(900, PLAN, has_renewed=True)
    assert observed.on_reading(400, PLAN, has_renewed=False) == 0
    assert observed.on_reading(1_300, PLAN, has_renewed=False) == 400


@given(st.lists(st.tuples(st.integers(0, 20_000), st.booleans()), max_size=50))
def test_time_counts_at_most_once(readings: list[tuple[int, bool]]) -> None:
    observed, now_ms, counted_ms = ObservedTime(), 0, 0.0
    observed.on_reading(0, PLAN, has_renewed=True)
    for after_ms, has_renewed in readings:
        now_ms += after_ms
        counted = observed.on_reading(now_ms, PLAN, has_renewed=has_renewed)
        assert 0 <= counted <= after_ms
        counted_ms += counted
    assert counted_ms <= now_ms


def reads(peers: PeerLeases, at_ms: float, own: int, other: int) -> None:
    leases = [make_lease(1, own), make_lease(2, other)]
    peers.observe(leases, started_ms=at_ms, now_ms=at_ms, plan=PLAN)


def test_an_observer_that_did_not_run_suspects_nobody_at_its_first_reading() -> None:
    """Its loop was stopped for half a minute; the lease was renewed by another thread."""
    peers = PeerLeases(TIMES, own=1)
    reads(peers, 0, 1, 1)
    reads(peers, 500, 2, 1)
    reads(peers, 30_000, 30, 1)
    assert not peers.is_suspected(2)
    for at_ms in range(30_500, 33_001, 500):
        assert not peers.is_suspected(2)
        reads(peers, at_ms, at_ms, 1)
    assert peers.is_suspected(2)


def test_nobody_is_suspected_for_an_outage_in_which_the_observer_could_not_renew() -> None:
    """As when another process holds SQLite's lock: all are silent, and the first to come back waits."""
    peers = PeerLeases(TIMES, own=1)
    for at_ms in range(0, 60_000, 500):
        reads(peers, at_ms, 1, 1)
        assert not peers.is_suspected(2)
    for at_ms in range(60_000, 62_001, 500):
        reads(peers, at_ms, at_ms, 1)
        assert not peers.is_suspected(2)
    # It had time to renew, and did not.
    reads(peers, 62_500, 62_500, 1)
    assert peers.is_suspected(2)
