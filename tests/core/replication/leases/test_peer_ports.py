"""What ports that refuse connections say of the brokers behind them."""

from __future__ import annotations

import pytest
from tidelog_core.metadata.store import UNREADABLE_VERSION
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.support.replication_cluster import TIMES, make_lease


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
        self.now_ms = 0.0
        self.look(0)
        if is_reached:
            self.reach(0)

    def look(self, at_ms: float, *, renewed: bool = False) -> None:
        self.now_ms = at_ms
        self.counter += renewed
        self.peers.observe([make_lease(2, self.counter)], started_ms=at_ms, now_ms=at_ms)

    def refuse(self, *at_ms: float) -> None:
        for one in at_ms:
            self.now_ms = one
            self.peers.note_refused(2, one)

    def reach(self, at_ms: float) -> None:
        self.now_ms = at_ms
        self.peers.note_reached(2, at_ms)

    @property
    def is_suspected(self) -> bool:
        return self.peers.is_suspected(2)

    @property
    def has_vanished(self) -> bool:
        return self.peers.has_vanished(2, self.now_ms)


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
        it.reach(start_ms + 8_999)
        it.look(start_ms + 9_000, renewed=True)
    # It is another process that has died now.
    it.peers.note_registered([2], 30_000)
    it.reach(30_000)
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
        it.reach(start_ms + 500)
        assert not it.is_suspected
        it.look(start_ms + 800, renewed=True)
    it.peers.note_lost(2, 10_000)
    assert not it.has_vanished


def test_a_port_that_opens_before_its_process_is_suspected_counts_again() -> None:
    it = Watched()
    it.refuse(100, 200, 300)
    it.look(101)
    it.reach(350)
    it.refuse(400, 500, 600)
    it.look(401)
    it.look(400 + TIMES.ended_ms)
    assert it.is_suspected


def test_a_broker_out_of_reach_has_vanished_until_it_is_reached_or_renews() -> None:
    it = Watched()
    assert not it.has_vanished
    it.peers.note_lost(2, 100)
    assert it.has_vanished
    it.reach(150)
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


def test_a_suspected_or_dead_broker_has_vanished() -> None:
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
    peers.note_reached(2, 150)
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


def test_a_suspected_broker_is_doubted() -> None:
    peers = PeerLeases(TIMES)
    for at_ms in (0, TIMES.suspicion_ms, TIMES.lease_ms):
        peers.observe([make_lease(2)], started_ms=at_ms, now_ms=at_ms)
    assert peers.is_dead(2)
    assert peers.is_doubted(2)


class Several:
    """What broker 1 sees of brokers 2, 3 and 4, of which each has been reached."""

    def __init__(self, others: tuple[int, ...] = (2, 3, 4)) -> None:
        self.peers = PeerLeases(TIMES, own=1)
        self.counters = dict.fromkeys((1, *others), 1)
        self.look(0)
        for other in others:
            self.peers.note_reached(other, 1)

    def look(self, at_ms: float, *renewed: int) -> None:
        for broker_id in renewed:
            self.counters[broker_id] += 1
        leases = [make_lease(b, counter) for b, counter in self.counters.items()]
        self.peers.observe(leases, started_ms=at_ms, now_ms=at_ms)

    def refuse(self, broker_id: int, *at_ms: float) -> None:
        for one in at_ms:
            self.peers.note_refused(broker_id, one)

    @property
    def suspected(self) -> set[int]:
        return {b for b in self.counters if self.peers.is_suspected(b)}


ENDED = 100.0 + TIMES.ended_ms  # since a refusal at 100


def test_an_observer_that_all_others_refuse_suspects_none_of_them_while_they_renew() -> None:
    """The filter is in front of the observer."""
    it = Several()
    for broker_id in (2, 3, 4):
        it.refuse(broker_id, 100, 200, 300)
    it.look(101)
    it.look(ENDED)
    assert it.suspected == set()
    for at_ms in range(500, 10_000, TIMES.brisk_renew_ms):
        it.look(at_ms, 1, 2, 3, 4)
        assert it.suspected == set()
    # The way out is open again, first to one of them.
    it.peers.note_reached(3, 10_000)
    it.refuse(2, 10_001)
    assert it.suspected == set()
    for broker_id in (2, 4):
        it.peers.note_reached(broker_id, 10_100)
    # Nobody was suspected wrongly, so refusals count as before.
    it.refuse(2, 20_000)
    it.look(20_001, 1, 2, 3, 4)
    it.peers.note_reached(3, 20_010)
    it.refuse(2, 20_100, 20_200)
    it.look(20_002 + TIMES.ended_ms, 1, 3, 4)
    assert it.suspected == {2}


def test_processes_that_all_refuse_are_suspected_once_they_miss_a_renewal() -> None:
    it = Several()
    for broker_id in (2, 3, 4):
        it.refuse(broker_id, 100, 200, 300)
    it.look(101)
    it.look(99 + TIMES.refusal_ms, 1)
    assert it.suspected == set()
    it.look(100 + TIMES.refusal_ms)
    assert it.suspected == {2, 3, 4}


def test_a_new_connection_to_another_broker_shows_that_the_observer_is_not_cut_off() -> None:
    it = Several()
    it.refuse(2, 100)
    assert it.peers.witnesses(2) == [3, 4]
    it.look(101)
    it.peers.note_open_way(4, 120)
    it.refuse(2, 200)
    assert it.peers.witnesses(2) == []
    it.refuse(2, 300)
    it.look(ENDED)
    assert it.suspected == {2}


def test_a_connection_from_before_the_refusals_is_no_witness() -> None:
    it = Several()
    it.peers.note_reached(3, 99)
    it.refuse(2, 100, 200, 300)
    it.look(ENDED)
    assert it.suspected == set()


def test_a_port_that_refused_only_before_another_took_a_connection_shows_nothing() -> None:
    """The filter has just been removed: the next connection to this port will be taken, too."""
    it = Several()
    it.refuse(2, 100, 200, 300)
    it.look(ENDED)
    it.peers.note_reached(3, ENDED + 1)
    assert it.suspected == set()
    it.refuse(2, ENDED + 2)  # One may have been under way.
    assert it.suspected == set()
    it.peers.note_reached(2, ENDED + 3)
    # It has not been wrong, so the end of that process is noticed at once.
    it.refuse(2, 1_100)
    it.peers.note_reached(3, 1_101)
    it.refuse(2, 1_200, 1_300)
    it.look(1_100 + TIMES.ended_ms)
    assert it.suspected == {2}


def test_brokers_that_refuse_too_are_not_dialed_as_witnesses() -> None:
    it = Several()
    assert it.peers.witnesses(2) == []
    it.refuse(2, 100)
    it.refuse(3, 100)
    assert it.peers.witnesses(2) == [4]
    assert it.peers.witnesses(3) == [4]


def test_refusals_of_a_process_that_was_never_reached_ask_for_no_witness() -> None:
    it = Several()
    it.peers.note_registered([2], 50)
    it.refuse(2, 100)
    assert it.peers.witnesses(2) == []


@pytest.mark.parametrize("others", [(2,), (2, 3)], ids=["two brokers", "the third one is silent"])
def test_no_witness_is_needed_where_no_other_broker_lives(others: tuple[int, ...]) -> None:
    it = Several(others)
    start_ms = TIMES.suspicion_ms
    it.look(start_ms, 1, 2)
    it.refuse(2, start_ms + 100, start_ms + 200, start_ms + 300)
    it.look(start_ms + 101)
    it.look(start_ms + ENDED)
    assert 2 in it.suspected


def test_a_broker_out_of_reach_is_hidden_for_a_moment_only_while_no_lease_can_be_read() -> None:
    it = Watched()
    it.refuse(100)
    it.peers.note_unread()
    assert it.has_vanished
    for at_ms in range(200, 100 + TIMES.suspicion_ms, 100):
        it.refuse(at_ms)
        assert it.has_vanished
    it.refuse(100 + TIMES.suspicion_ms)
    assert not it.has_vanished
    it.look(5_000)
    assert it.has_vanished  # It is suspected: it has missed renewals.


def test_a_suspicion_hides_a_broker_for_a_moment_only_once_no_lease_can_be_read() -> None:
    it = Watched()
    it.refuse(100, 200, 300)
    it.look(101)
    it.look(ENDED)
    assert it.is_suspected
    it.peers.note_unread()
    assert it.has_vanished
    it.refuse(100 + TIMES.suspicion_ms)
    assert not it.has_vanished
    it.reach(9_000)
    assert not it.is_suspected
