"""Brokers that were suspected wrongly get more time: never less than others, and not for ever."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata.records import StepDownReason
from tidelog_core.replication.leases.adaptive_timeouts import CALM_MS, AdaptiveTimeouts
from tidelog_core.replication.leases.lease_times import EXTRA_MS_MAX, LeaseTimes
from tidelog_core.replication.leases.observed_lease import WrongSuspicion
from tidelog_core.replication.leases.observed_time import ReadingPlan
from tidelog_core.replication.leases.own_lease import RELEASED
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.support.replication_cluster import TIMES, make_lease

STEP_MS = TIMES.brisk_renew_ms


def test_a_broker_that_was_never_suspected_wrongly_gets_no_more_time() -> None:
    timeouts = AdaptiveTimeouts(TIMES)
    timeouts.note_wrong(2, late_ms=0, now_ms=0)
    assert timeouts.extra_ms(2) == STEP_MS
    assert timeouts.extra_ms(3) == 0


def test_each_wrong_suspicion_adds_more_up_to_a_bound() -> None:
    timeouts, seen = AdaptiveTimeouts(TIMES), [0.0]
    for _ in range(6):
        timeouts.note_wrong(2, late_ms=0, now_ms=0)
        seen.append(timeouts.extra_ms(2))
    assert seen == [0, 1_000, 3_000, 7_000, *[TIMES.extra_ms_max] * 3]


def test_a_broker_that_was_very_late_gets_that_much_at_once() -> None:
    timeouts = AdaptiveTimeouts(TIMES)
    timeouts.note_wrong(2, late_ms=4_000, now_ms=0)
    assert timeouts.extra_ms(2) == 4_000 + STEP_MS


def test_short_leases_get_a_few_leases_more_at_most() -> None:
    assert LeaseTimes().extra_ms_max == EXTRA_MS_MAX
    assert LeaseTimes(900, 300).extra_ms_max == 3_600


def test_more_time_is_halved_when_it_is_quiet_and_ends() -> None:
    timeouts = AdaptiveTimeouts(TIMES)
    timeouts.note_wrong(2, late_ms=3_000, now_ms=0)
    timeouts.decay(CALM_MS - 1)
    assert timeouts.extra_ms(2) == 4_000
    timeouts.decay(CALM_MS)
    assert timeouts.extra_ms(2) == 2_000
    timeouts.decay(2 * CALM_MS)
    timeouts.decay(2 * CALM_MS)
    assert timeouts.extra_ms(2) == 1_000
    timeouts.note_wrong(2, late_ms=0, now_ms=2 * CALM_MS + 1)
    assert timeouts.extra_ms(2) == 3_000
    timeouts.decay(10 * CALM_MS)
    assert timeouts.extra_ms(2) == 0


class Watched:
    """Broker 2 as broker 1 sees it, which reads twice a second."""

    def __init__(self) -> None:
        self.peers = PeerLeases(TIMES, own=1)
        self.now_ms = 0.0
        self.own_counter = self.counter = 1
        self.look()

    def look(self, *, counter: int | None = None) -> list[WrongSuspicion]:
        self.counter = counter or self.counter
        self.own_counter += 1
        leases = [make_lease(1, self.own_counter), make_lease(2, self.counter)]
        return self.peers.observe(
            leases, started_ms=self.now_ms, now_ms=self.now_ms, plan=ReadingPlan(500, 1_000)
        )

    def missed_after_ms(self) -> float:
        """Let broker 2 be silent until it is suspected, and return how long that took."""
        since_ms = self.now_ms
        while not self.peers.is_suspected(2):
            self.now_ms += 500
            assert not self.look()
        return self.now_ms - since_ms

    def renew(self) -> list[WrongSuspicion]:
        self.now_ms += 500
        return self.look(counter=self.counter + 1)


def test_a_broker_that_renews_after_it_was_suspected_is_suspected_later_the_next_time() -> None:
    it = Watched()
    assert it.missed_after_ms() == TIMES.suspicion_ms
    (wrong,) = it.renew()
    assert wrong == WrongSuspicion(2, TIMES.suspicion_ms + 500, 500 + STEP_MS)
    assert it.missed_after_ms() == TIMES.suspicion_ms + wrong.extra_ms
    assert it.peers.is_live(2)
    (wrong,) = it.renew()
    assert wrong.extra_ms == 2 * (500 + STEP_MS) + STEP_MS
    since_ms = it.now_ms
    assert it.missed_after_ms() == TIMES.suspicion_ms + wrong.extra_ms
    # It is dead after a lease, and never before it is suspected.
    while not it.peers.is_dead(2):
        it.now_ms += 500
        assert not it.look()
    assert it.now_ms - since_ms == TIMES.lease_ms
    (wrong,) = it.renew()
    since_ms = it.now_ms
    assert it.missed_after_ms() == TIMES.suspicion_ms + wrong.extra_ms > TIMES.lease_ms
    assert it.peers.is_dead(2)


def test_another_process_says_nothing_about_the_suspicion_of_the_one_before() -> None:
    it = Watched()
    it.missed_after_ms()
    it.counter += 1
    again = dataclasses.replace(make_lease(2, it.counter), incarnation=UUID(int=22))
    own = make_lease(1, it.own_counter)
    assert not it.peers.observe([own, again], started_ms=it.now_ms + 500, now_ms=it.now_ms + 500)
    assert not it.peers.is_suspected(2)


def test_a_process_that_ends_in_order_after_it_was_suspected_gets_no_more_time() -> None:
    it = Watched()
    it.missed_after_ms()
    left = make_lease(2, RELEASED, version=it.counter + 1, reason=StepDownReason.DRAINING)
    own = make_lease(1, it.own_counter + 1)
    assert not it.peers.observe([own, left], started_ms=it.now_ms, now_ms=it.now_ms)


def test_a_takeover_that_the_lease_has_refuted_was_a_wrong_suspicion() -> None:
    """The commit's check was lost before any reading has shown the renewal."""
    it = Watched()
    it.missed_after_ms()
    it.peers.note_moved({it.peers.check(2)})
    assert not it.peers.is_suspected(2)
    (wrong,) = it.renew()
    assert wrong.broker_id == 2


def test_a_closed_port_of_a_process_that_renews_in_time_gives_it_no_more_time() -> None:
    """That is no lateness: ``peer_ports`` remembers it."""
    it = Watched()
    it.peers.note_reached(2, 0)
    for at_ms in (100, 200, 300):
        it.peers.note_refused(2, at_ms)
    it.now_ms = 500
    it.look()
    assert it.peers.is_suspected(2)
    assert it.renew() == [WrongSuspicion(2, 1_000, 0)]


def test_an_observer_does_not_find_itself_suspected() -> None:
    peers = PeerLeases(TIMES, own=1)
    peers.observe([make_lease(1)], started_ms=0, now_ms=0)
    peers.observe([make_lease(1)], started_ms=20_000, now_ms=20_000)
    assert not peers.observe([make_lease(1, 2)], started_ms=20_001, now_ms=20_001)


reading = st.tuples(
    st.integers(1, 9_000),  # ms since the one before
    st.integers(0, 3_000),  # how long it took
    st.booleans(),  # whether broker 2 has renewed since
    st.booleans(),  # whether the observer has
)


@given(st.lists(reading, max_size=40), st.integers(100, 3_000))
def test_no_broker_is_ever_suspected_or_dead_sooner_than_by_the_fixed_times(
    readings: list[tuple[int, int, bool, bool]], planned_ms: int
) -> None:
    """Whatever is learnt and left out, and so a holder that stops in time has always stopped."""
    peers, plan = PeerLeases(TIMES, own=1), ReadingPlan(planned_ms, TIMES.renew_ms)
    now_ms, counter, own_counter = 0, 1, 1
    first_seen_ms: int | None = None
    for after_ms, took_ms, has_renewed, has_own_renewed in readings:
        started_ms = now_ms + after_ms
        now_ms = started_ms + took_ms
        counter, own_counter = counter + has_renewed, own_counter + has_own_renewed
        if has_renewed or first_seen_ms is None:
            first_seen_ms = now_ms
        leases = [make_lease(1, own_counter), make_lease(2, counter)]
        peers.observe(leases, started_ms=started_ms, now_ms=now_ms, plan=plan)
        silent_ms = started_ms - first_seen_ms
        assert not peers.is_suspected(2) or silent_ms >= TIMES.suspicion_ms
        assert not peers.is_dead(2) or silent_ms >= TIMES.lease_ms
        assert peers.is_suspected(2) or not peers.is_dead(2)


@given(st.lists(reading, max_size=40))
def test_a_dead_broker_is_suspected_in_bounded_time_whatever_came_before(
    readings: list[tuple[int, int, bool, bool]],
) -> None:
    it = Watched()
    for after_ms, took_ms, has_renewed, has_own_renewed in readings:
        started_ms = it.now_ms + after_ms
        it.now_ms = started_ms + took_ms
        it.counter += has_renewed
        it.own_counter += has_own_renewed
        leases = [make_lease(1, it.own_counter), make_lease(2, it.counter)]
        it.peers.observe(
            leases, started_ms=started_ms, now_ms=it.now_ms, plan=ReadingPlan(500, 1_000)
        )
    it.counter += 1
    it.now_ms += 500
    it.look()
    # The observer reads, and renews its lease, as planned from here on.
    assert it.missed_after_ms() <= TIMES.suspicion_ms + TIMES.extra_ms_max + 500
