from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.metadata.records import BrokerLease, broker_lease_key
from tidelog_core.metadata.store import UNREADABLE_VERSION, Item, ItemKey
from tidelog_core.replication.leases import (
    RELEASED,
    LeaseTimes,
    OwnLease,
    PeerLeases,
    read_leases,
)

from tests.support.replication_cluster import TIMES, make_lease, make_peers

ME = UUID(int=1)


def begun(found: BrokerLease | None = None) -> OwnLease:
    return OwnLease(1, ME, times=TIMES, found=found)


def renew(lease: OwnLease, started_ms: float, now_ms: float) -> bool:
    record = lease.begin_renewal(started_ms)
    return lease.on_renewed(record, started_ms=started_ms, now_ms=now_ms)


def acting(now_ms: float = 0) -> OwnLease:
    lease = begun()
    renew(lease, now_ms, now_ms)
    lease.on_cluster_read(now_ms)
    return lease


def test_a_new_process_acts_after_a_renewal_and_a_reading_begun_after_it() -> None:
    lease = begun()
    assert lease.is_renewal_due(0)
    assert not lease.may_act(0)
    assert renew(lease, 0, 10)
    assert not lease.may_act(10)
    lease.on_cluster_read(5)
    assert not lease.may_act(10)
    lease.on_cluster_read(10)
    assert lease.may_act(10)


def test_a_lease_that_cannot_be_read_tells_by_its_version_whether_it_is_renewed() -> None:
    peers = PeerLeases(TIMES)

    def observe(item: Item, at_ms: float) -> None:
        peers.observe(read_leases([item]), started_ms=at_ms, now_ms=at_ms)

    def damaged(version: int) -> Item:
        return Item(broker_lease_key(2), version, {}, "not JSON")

    observe(damaged(7), 0)
    assert peers.is_live(2)
    observe(damaged(8), 8_000)
    observe(damaged(8), 16_000)
    assert peers.is_live(2)
    assert peers.check(2).expected_version == 8
    observe(damaged(8), 17_000)
    assert peers.is_dead(2)
    # Its next renewal puts it right.
    lease = make_lease(2, counter=5, version=9)
    observe(Item(lease.item_id, 9, lease.to_body()), 18_000)
    assert peers.is_live(2)


def test_a_lease_that_has_lost_its_version_is_never_taken_for_dead() -> None:
    peers = PeerLeases(TIMES)
    item = Item(broker_lease_key(2), UNREADABLE_VERSION, {}, "no version")
    for at_ms in range(0, 60_000, 3_000):
        peers.observe(read_leases([item]), started_ms=at_ms, now_ms=at_ms)
    assert not peers.is_dead(2)


def test_a_foreign_item_among_the_leases_is_no_lease() -> None:
    assert read_leases([Item(ItemKey("broker-lease", "two"), 1, {})]) == []


def test_it_fences_itself_a_margin_before_its_lease_ends_counted_from_the_sending() -> None:
    lease = begun()
    renew(lease, 0, 500)
    lease.on_cluster_read(500)
    assert lease.may_act(7_999)
    assert not lease.may_act(8_000)


def test_a_renewal_in_time_goes_on_without_a_reading() -> None:
    lease = acting()
    assert not lease.is_renewal_due(2_999)
    assert lease.is_renewal_due(3_000)
    assert not renew(lease, 3_000, 3_010)
    assert lease.may_act(10_900)


def test_a_process_that_was_stopped_acts_only_after_renewing_and_reading() -> None:
    lease = acting()
    assert not lease.may_act(60_000)
    assert renew(lease, 60_000, 60_010)
    assert not lease.may_act(60_010)
    lease.on_cluster_read(59_000)
    assert not lease.may_act(60_010)
    lease.on_cluster_read(60_020)
    assert lease.may_act(60_020)


def test_a_reading_ends_only_the_fence_that_was_up_when_it_began() -> None:
    """Whatever the thread that renews does between its steps."""
    lease = acting()
    renew(lease, 60_000, 60_010)
    # The reading has begun and the lease lapses once more before it is noted.
    renew(lease, 120_000, 120_010)
    lease.on_cluster_read(60_020)
    assert not lease.may_act(120_010)
    lease.on_cluster_read(120_020)
    assert lease.may_act(120_020)


def test_a_renewal_that_comes_between_looking_at_the_clock_and_asking_changes_nothing() -> None:
    lease = acting()
    renew(lease, 3_000, 3_010)
    assert lease.may_act(2_999)
    # It lapses in between: what the clock showed before does not help.
    renew(lease, 60_000, 60_010)
    assert not lease.may_act(2_999)


class Interrupted(OwnLease):
    """A lease whose acting thread is held up once, just after it has read the grant."""

    meanwhile: Callable[[], None] | None = None

    @property
    def _grant(self) -> Any:
        grant, meanwhile = self._stored, self.meanwhile
        self.meanwhile = None
        if meanwhile is not None:
            meanwhile()
        return grant

    @_grant.setter
    def _grant(self, grant: Any) -> None:
        self._stored = grant


def test_a_lapse_while_a_reading_is_noted_is_not_ended_by_it() -> None:
    lease = Interrupted(1, ME, times=TIMES, found=None)
    renew(lease, 0, 0)
    lease.meanwhile = lambda: assert_fenced(renew(lease, 60_000, 60_010))
    lease.on_cluster_read(10)
    assert not lease.may_act(60_010)
    lease.on_cluster_read(60_020)
    assert lease.may_act(60_020)


def test_a_lapse_while_the_grant_is_looked_at_is_decided_by_the_clock_of_before() -> None:
    """As if the thread had been held up after deciding, which is what the margin is for."""
    lease = Interrupted(1, ME, times=TIMES, found=None)
    renew(lease, 0, 0)
    lease.on_cluster_read(0)
    lease.meanwhile = lambda: assert_fenced(renew(lease, 60_000, 60_010))
    assert lease.may_act(7_999)
    assert not lease.may_act(7_999)


def test_another_process_that_took_the_id_while_a_reading_is_noted_stays_the_one() -> None:
    lease = Interrupted(1, ME, times=TIMES, found=None)
    renew(lease, 0, 0)
    other = dataclasses.replace(make_lease(1, counter=9, version=9), incarnation=UUID(int=99))
    lease.meanwhile = lambda: lease.on_read(other)
    lease.on_cluster_read(10)
    assert lease.is_superseded
    assert not lease.may_act(20)


def assert_fenced(must_read: bool) -> None:
    assert must_read


def test_renewals_stop_when_the_loop_has_not_turned_for_most_of_a_lease() -> None:
    assert TIMES.stall_ms == 6_000
    assert TIMES.can_renew(turned_ms=1_000, now_ms=6_999)
    assert not TIMES.can_renew(turned_ms=1_000, now_ms=7_000)


def test_an_answer_that_was_slept_over_extends_nothing() -> None:
    lease = acting()
    record = lease.begin_renewal(3_000)
    assert lease.on_renewed(record, started_ms=3_000, now_ms=60_000)
    lease.on_cluster_read(60_000)
    assert not lease.may_act(60_000)


def test_a_renewal_of_unknown_outcome_is_read_before_the_next_and_extends_nothing() -> None:
    lease = acting()
    record = lease.begin_renewal(3_000)
    lease.on_unknown(4_000)
    assert lease.needs_read
    stored = dataclasses.replace(record, version=record.version + 1)
    lease.on_read(stored)
    assert not lease.needs_read
    assert not lease.may_act(8_000)
    assert lease.begin_renewal(4_500).version == stored.version


def test_a_refused_renewal_is_tried_again_soon() -> None:
    lease = acting()
    lease.begin_renewal(3_000)
    lease.on_refused(3_100)
    assert not lease.is_renewal_due(3_500)
    assert lease.is_renewal_due(3_600)


def test_a_process_whose_broker_id_another_has_taken_never_acts_again() -> None:
    lease = acting()
    lease.begin_renewal(3_000)
    lease.on_unknown(3_010)
    lease.on_read(BrokerLease(broker_id=1, incarnation=UUID(int=9), counter=3, version=3))
    assert lease.is_superseded
    assert not lease.may_act(3_020)
    lease.on_cluster_read(3_030)
    assert not lease.may_act(3_030)
    assert not lease.is_renewal_due(9_000)


def test_a_new_process_goes_on_from_the_counter_of_the_last_one() -> None:
    lease = begun(BrokerLease(broker_id=1, incarnation=UUID(int=9), counter=40, version=41))
    record = lease.begin_renewal(0)
    assert (record.counter, record.version, record.incarnation) == (41, 41, ME)


def test_a_lease_shorter_than_two_renewals_is_refused() -> None:
    with pytest.raises(ValueError, match="must last at least two renewals"):
        LeaseTimes(lease_ms=5_000, renew_ms=3_000)


def test_a_peer_is_dead_when_a_reading_begun_a_lease_later_shows_the_same() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=100)
    peers.observe([make_lease(2)], started_ms=9_099, now_ms=9_200)
    assert peers.is_live(2)
    peers.observe([make_lease(2)], started_ms=9_100, now_ms=9_200)
    assert peers.is_dead(2)
    peers.observe([make_lease(2, counter=2)], started_ms=9_300, now_ms=9_310)
    assert peers.is_live(2)


def test_an_observer_that_could_not_read_takes_nobody_for_dead() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=0)
    peers.observe([make_lease(2)], started_ms=100, now_ms=60_000)
    assert peers.is_live(2)


def test_an_older_reading_that_comes_late_changes_nothing() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2, counter=5)], started_ms=0, now_ms=0)
    peers.observe([make_lease(2, counter=4)], started_ms=20_000, now_ms=20_000)
    assert peers.is_live(2)
    assert peers.check(2).expected_version == 5


def test_a_peer_that_left_in_order_is_dead_at_once() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=0)
    left = acting().release()
    assert left.counter == RELEASED
    peers.observe([make_lease(2, counter=RELEASED, version=2)], started_ms=1, now_ms=1)
    assert peers.is_dead(2)


def test_nothing_is_known_before_the_first_reading() -> None:
    peers = PeerLeases(TIMES)
    assert not peers.is_dead(2)
    assert not peers.is_live(2)
    peers.observe([], started_ms=0, now_ms=0)
    assert peers.is_dead(2)
    assert peers.check(2).expected_version == 0


def test_a_lost_check_tells_that_a_broker_lives_until_a_reading_says_otherwise() -> None:
    peers = make_peers(dead=(1, 2), live=(3,))
    peers.note_moved({peers.check(1)})
    assert not peers.has_died(1)
    assert peers.has_died(2)
    later_ms = TIMES.lease_ms + 500
    peers.observe([make_lease(1)], started_ms=later_ms, now_ms=later_ms)
    assert peers.has_died(1)
    assert peers.unattended_ms(1, later_ms) == 0


def test_a_registration_tells_that_a_broker_lives_until_a_later_reading_says_otherwise() -> None:
    peers = make_peers(dead=(1,), live=(3,))
    now_ms = TIMES.lease_ms + 500.0
    peers.note_registered([1, 2], now_ms)
    for broker_id in (1, 2):
        assert peers.is_live(broker_id)
        assert peers.unattended_ms(broker_id, now_ms) is None
        # That it has outlived anybody is not known.
        assert not peers.is_fresh(broker_id, now_ms)
    # A reading that was under way shows nothing of it.
    peers.observe([make_lease(1), make_lease(3, 2)], started_ms=now_ms - 1, now_ms=now_ms + 5)
    assert peers.is_live(1)
    assert peers.is_live(2)
    peers.observe([make_lease(1, 2), make_lease(3, 2)], started_ms=now_ms, now_ms=now_ms + 9)
    assert peers.is_live(1)
    assert peers.is_dead(2)


@pytest.mark.parametrize("damage", ["gone", "without a version"])
def test_a_lease_that_tells_nothing_is_not_read_again_and_again_while_the_port_refuses(
    damage: str,
) -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=1)
    peers.note_refused(2, 100)
    assert peers.next_look_ms() == 100
    found = [] if damage == "gone" else [make_lease(2, version=UNREADABLE_VERSION)]
    for number in range(5):
        due_ms = peers.next_look_ms()
        assert due_ms is not None
        assert due_ms >= 100 + number * TIMES.refusal_ms
        peers.observe(found, started_ms=due_ms, now_ms=due_ms + 1)
    assert not peers.is_suspected(2)


def test_the_second_reading_of_a_broker_whose_port_refuses_is_due_when_it_has_missed_a_renewal() -> (
    None
):
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=1)
    peers.note_refused(2, 100)
    peers.observe([make_lease(2)], started_ms=101, now_ms=102)
    assert peers.next_look_ms() == 100 + TIMES.refusal_ms
    peers.observe([make_lease(2)], started_ms=100 + TIMES.refusal_ms, now_ms=5_000)
    assert peers.is_suspected(2)
    assert peers.next_look_ms() is None


class Watched:
    """A broker that leads diskless partitions, and what another one sees of it."""

    def __init__(self, *, is_reached: bool = True) -> None:
        self.peers = PeerLeases(TIMES)
        self.counter = 1
        self.look(0)
        if is_reached:
            self.peers.note_reached(2)

    def look(self, at_ms: float, *, renewed: bool = False) -> None:
        self.counter += renewed
        self.peers.observe([make_lease(2, self.counter)], started_ms=at_ms, now_ms=at_ms)

    def refuse(self, *at_ms: float) -> None:
        for one in at_ms:
            self.peers.note_refused(2, one)

    @property
    def is_suspected(self) -> bool:
        return self.peers.is_suspected(2)

    @property
    def has_vanished(self) -> bool:
        return self.peers.has_vanished(2)


def test_a_process_that_was_reached_is_suspected_once_its_port_refuses_again_and_again() -> None:
    it = Watched()
    it.refuse(100)
    assert it.peers.next_look_ms() == 100
    it.look(101)
    assert it.peers.next_look_ms() == 100 + TIMES.ended_ms
    it.refuse(200, 300)
    it.look(99 + TIMES.ended_ms)
    assert not it.is_suspected
    it.look(100 + TIMES.ended_ms)
    assert it.is_suspected
    assert it.peers.next_look_ms() is None


def test_two_refusals_do_not_show_that_a_process_has_ended() -> None:
    it = Watched()
    it.refuse(100, 300)
    it.look(100 + TIMES.ended_ms)
    assert not it.is_suspected
    it.refuse(400)
    assert it.is_suspected


def test_a_lease_that_was_renewed_just_before_is_read_twice_before_refusals_count() -> None:
    """A renewal that is seen late may be of after the refusal."""
    it = Watched()
    it.refuse(100, 200, 300)
    it.look(500, renewed=True)
    assert not it.is_suspected
    due_ms = it.peers.next_look_ms()
    assert due_ms is not None
    assert 500 < due_ms <= 500 + TIMES.ended_ms
    it.look(due_ms)
    assert it.is_suspected


@pytest.mark.parametrize("is_reached", [False, True], ids=["never reached", "registered again"])
def test_refusals_of_a_process_that_may_not_listen_yet_need_a_missed_renewal(
    is_reached: bool,
) -> None:
    it = Watched(is_reached=is_reached)
    if is_reached:
        it.peers.note_registered([2], 50)
    it.refuse(100, 200, 300)
    it.look(101)
    it.look(101 + TIMES.ended_ms)
    assert not it.is_suspected
    it.look(100 + TIMES.refusal_ms)
    assert it.is_suspected


def test_a_closed_port_of_a_process_that_lives_counts_once_only() -> None:
    it = Watched()
    for start_ms in (0, 10_000, 20_000):
        it.refuse(start_ms + 100, start_ms + 200, start_ms + 300)
        it.look(start_ms + 101)
        it.look(start_ms + 100 + TIMES.ended_ms)
        assert it.is_suspected == (start_ms == 0)
        for at_ms in range(500, 9_000, TIMES.brisk_renew_ms):
            it.look(start_ms + at_ms, renewed=True)
            assert not it.is_suspected
            assert not it.has_vanished
        it.peers.note_reached(2)
        it.look(start_ms + 9_000, renewed=True)
    # It is another process that has died now.
    it.peers.note_registered([2], 30_000)
    it.peers.note_reached(2)
    it.look(30_001, renewed=True)
    it.refuse(30_100, 30_200, 30_300)
    it.look(30_100 + TIMES.ended_ms)
    assert it.is_suspected


def test_a_port_that_opens_and_closes_again_and_again_counts_once_only() -> None:
    """It is open before a renewal is seen, so none is seen behind a closed port."""
    it = Watched()
    for start_ms in range(0, 10_000, TIMES.brisk_renew_ms):
        it.refuse(start_ms + 100, start_ms + 200, start_ms + 300)
        it.look(start_ms + 101)
        it.look(start_ms + 100 + TIMES.ended_ms)
        assert it.is_suspected == (start_ms == 0)
        assert it.has_vanished == (start_ms == 0)
        it.peers.note_reached(2)
        assert not it.is_suspected
        it.look(start_ms + 800, renewed=True)
    it.peers.note_lost(2, 10_000)
    assert not it.has_vanished


def test_a_port_that_opens_before_its_process_is_suspected_counts_again() -> None:
    it = Watched()
    it.refuse(100, 200, 300)
    it.look(101)
    it.peers.note_reached(2)
    it.refuse(400, 500, 600)
    it.look(401)
    it.look(400 + TIMES.ended_ms)
    assert it.is_suspected


def test_a_broker_out_of_reach_has_vanished_until_it_is_reached_or_renews() -> None:
    it = Watched()
    assert not it.has_vanished
    it.peers.note_lost(2, 100)
    assert it.has_vanished
    it.peers.note_reached(2)
    assert not it.has_vanished
    it.peers.note_lost(2, 200)
    it.peers.note_unanswered(2)  # A host or a network that is down.
    assert not it.has_vanished
    it.peers.note_lost(2, 300)
    it.refuse(301)
    it.look(302, renewed=True)  # Perhaps it was renewed before.
    assert it.has_vanished
    it.look(900, renewed=True)
    assert not it.has_vanished
    it.refuse(950, 1_000)
    assert not it.has_vanished


def test_whoever_is_suspected_or_dead_has_vanished() -> None:
    it = Watched()
    it.look(TIMES.suspicion_ms)
    assert it.is_suspected
    assert it.has_vanished
    it.look(TIMES.lease_ms)
    assert it.peers.is_dead(2)
    assert it.has_vanished
    it.peers.note_registered([2], TIMES.lease_ms + 1)
    assert not it.has_vanished


def test_a_broker_is_doubted_from_the_refusal_on_until_it_is_reached_or_registers() -> None:
    peers = PeerLeases(TIMES)
    peers.note_refused(2, 0)
    assert not peers.is_doubted(2)  # Its lease was never seen.
    peers.observe([make_lease(2)], started_ms=100, now_ms=100)
    assert peers.is_doubted(2)
    assert not peers.is_suspected(2)
    peers.note_reached(2)
    assert not peers.is_doubted(2)
    peers.note_refused(2, 200)
    assert peers.is_doubted(2)
    peers.note_registered([2], 300)
    assert not peers.is_doubted(2)


def test_a_silent_broker_is_doubted_before_it_is_suspected() -> None:
    peers = PeerLeases(TIMES)
    doubted_ms = TIMES.suspicion_ms - TIMES.refusal_ms
    for at_ms in (0, doubted_ms - 1):
        peers.observe([make_lease(2)], started_ms=at_ms, now_ms=at_ms)
        assert not peers.is_doubted(2)
    peers.observe([make_lease(2)], started_ms=doubted_ms, now_ms=doubted_ms)
    assert peers.is_doubted(2)
    assert not peers.is_suspected(2)
    peers.observe([make_lease(2, 2)], started_ms=doubted_ms + 1, now_ms=doubted_ms + 1)
    assert not peers.is_doubted(2)


def test_whoever_is_suspected_is_doubted() -> None:
    peers = PeerLeases(TIMES)
    for at_ms in (0, TIMES.suspicion_ms, TIMES.lease_ms):
        peers.observe([make_lease(2)], started_ms=at_ms, now_ms=at_ms)
    assert peers.is_dead(2)
    assert peers.is_doubted(2)
