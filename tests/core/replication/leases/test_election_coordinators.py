"""One node writes the takeovers of all successors of a dead leader."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container

import pytest
from tidelog_core.metadata.records import Broker
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.change import ChangeReason
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.leases.election_coordinators import (
    COORDINATOR_PLACES,
    STEP_IN_DELAY_MS,
    ElectionCoordinators,
)
from tidelog_core.replication.leases.lease_watch import is_watcher
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.support.replication_cluster import (
    TIMES,
    make_brokers,
    make_lease,
    make_partition,
    make_peers,
)

NOW_MS = TIMES.lease_ms  # when ``make_peers`` has read last


def racked(*broker_ids: int) -> dict[int, Broker]:
    """Return brokers in three racks, by turns."""
    brokers = make_brokers(*broker_ids)
    return {b: dataclasses.replace(broker, rack=f"r{b % 3}") for b, broker in brokers.items()}


def writers(
    brokers: dict[int, Broker],
    dead_id: int,
    *,
    live: Container[int] | None = None,
    stepping_down: Container[int] = (),
) -> list[int]:
    def is_live(broker_id: int) -> bool:
        return live is None or broker_id in live

    return list(ElectionCoordinators(brokers, is_live, lambda b: b in stepping_down).of(dead_id))


def test_the_live_brokers_of_other_racks_write_one_after_the_other() -> None:
    brokers = racked(1, 2, 3, 4, 5, 6)
    assert writers(brokers, 4) == [2, 3, 5, 6]
    assert writers(brokers, 1, live=(1, 3, 4, 6)) == [3, 6]
    assert writers(brokers, 1, live=(1, 4)) == [1, 4]  # as of one that was restarted
    assert writers(brokers, 1, live=(4,)) == [4]  # better than nobody
    assert writers(brokers, 1, live=()) == []


def test_who_says_that_others_had_better_lead_does_not_write() -> None:
    assert writers(racked(1, 2, 3, 4, 5, 6), 4, stepping_down=(2, 5)) == [3, 6]


def test_only_watchers_write_for_they_know_in_time() -> None:
    brokers = racked(*range(1, 301))
    found = writers(brokers, 300)
    assert found == [1, 2, 4, 5, 7, 8]
    assert all(is_watcher(b, brokers, lambda b: True) for b in found)
    assert writers(brokers, 300, live=range(2, 301)) == [2, 4, 5, 7, 8, 10]


def test_all_dead_of_a_rack_have_the_same_writers() -> None:
    brokers = racked(*range(1, 31))
    dead = [b for b in brokers if b % 3 == 1]
    for dead_id in dead:
        assert writers(brokers, dead_id, live=set(brokers) - set(dead))[0] == 2


def test_without_racks_it_is_the_first_live_broker() -> None:
    assert writers(make_brokers(1, 2, 3), 1, live=(2, 3)) == [2, 3]
    assert writers(make_brokers(2, 3), 1) == [2, 3]  # 1 is no longer registered


def test_each_writer_leaves_it_to_those_before_it_while_they_get_on() -> None:
    coordinators = ElectionCoordinators(make_brokers(1, 2, 3), lambda b: b != 1, lambda b: False)
    assert coordinators.wait_ms(2, 1, 0) == 0
    assert coordinators.wait_ms(3, 1, 0) == STEP_IN_DELAY_MS
    assert coordinators.wait_ms(3, 1, 400) == STEP_IN_DELAY_MS - 400
    assert coordinators.wait_ms(3, 1, STEP_IN_DELAY_MS) == 0
    assert coordinators.wait_ms(9, 1, 1e9) is None


def test_the_writer_names_the_first_live_isr_member_on_the_same_conditions() -> None:
    partition = make_partition((1, 2, 3), isr=(1, 3, 2))
    peers = make_peers(dead=(1,), live=(2, 3, 9))
    change = LeaderElector(9).elect(partition, peers, now_ms=NOW_MS)
    assert change is not None
    own = LeaderElector(2).takeover(partition, peers, is_unclean_allowed=False, now_ms=0)
    assert change == own
    assert (change.after.leader, change.after.leader_epoch, change.after.isr) == (2, 6, (3, 2))
    assert change.reason is ChangeReason.TAKEOVER


@pytest.mark.parametrize(
    ("leader", "isr", "dead"),
    [(1, (1, 2), ()), (NO_LEADER, (1, 2), (1,)), (1, (1,), (1,)), (1, (1, 2), (1, 2))],
    ids=["the leader lives", "nobody leads", "no other member", "no live member"],
)
def test_the_writer_names_nobody(leader: int, isr: tuple[int, ...], dead: tuple[int, ...]) -> None:
    live = tuple({1, 2, 3, 9} - set(dead))
    partition = make_partition(leader=leader, isr=isr)
    peers = make_peers(dead=dead, live=live)
    assert LeaderElector(9).elect(partition, peers, now_ms=NOW_MS) is None


def test_the_writer_takes_dead_followers_out_of_the_isr_of_a_leader_that_lives() -> None:
    partition, peers = make_partition(), make_peers(dead=(3,), live=(1, 2, 9))
    change = LeaderElector(9).shrink_isr(partition, peers, {3}, now_ms=NOW_MS)
    assert change is not None
    assert change.after == dataclasses.replace(partition, isr=(1, 2))
    assert change.reason is ChangeReason.ALTER_ISR
    assert change.checks == (peers.check(3),)  # It may have come back before the write.
    assert (
        LeaderElector(9).shrink_isr(partition, peers, set(), now_ms=NOW_MS) is None
    )  # another one writes that
    assert LeaderElector(9).shrink_isr(change.after, peers, {3}, now_ms=NOW_MS) is None
    lone = make_partition(leader=3, isr=(3,))
    assert LeaderElector(9).shrink_isr(lone, peers, {3}, now_ms=NOW_MS) is None
    lives = make_peers(live=(1, 2, 3, 9))
    assert LeaderElector(9).shrink_isr(partition, lives, {3}, now_ms=NOW_MS) is None


def read_for(until_ms: int, counters: Callable[[int, int], int]) -> PeerLeases:
    """Return what a broker knows that reads every 500 ms; ``counters`` of broker and time."""
    peers = PeerLeases(TIMES)
    for at_ms in range(0, until_ms + 1, 500):
        leases = [make_lease(b, counters(b, at_ms)) for b in (1, 2, 3, 9)]
        peers.observe(leases, started_ms=at_ms, now_ms=at_ms)
    return peers


@pytest.mark.parametrize("last_ms", [0, 500, 2_500, 3_000])
def test_who_may_have_been_lost_together_with_the_dead_one_is_not_named(last_ms: int) -> None:
    """1 renews at 0 for the last time, 2 not later than 3 s after it."""

    def counters(broker_id: int, at_ms: int) -> int:
        if broker_id == 2:
            return 1 + (at_ms >= last_ms)
        return 1 if broker_id == 1 else 1 + at_ms // 3_000

    for now_ms in range(TIMES.lease_ms, TIMES.lease_ms + last_ms + 2_000, 500):
        peers = read_for(now_ms, counters)
        assert peers.has_died(1)
        elector = LeaderElector(9)
        assert elector.elect(make_partition(isr=(1, 2)), peers, now_ms=now_ms) is None
        led_by_two = make_partition(leader=2, isr=(1, 2))
        assert elector.shrink_isr(led_by_two, peers, {1}, now_ms=now_ms) is None
        # Where another member of the ISR has outlived it, that one is named; nobody leaves.
        change = elector.elect(make_partition(), peers, now_ms=now_ms)
        assert change is not None
        assert change.after.leader == 3
        assert (2 in change.after.isr) == (not peers.is_dead(2))


def test_who_renews_after_the_dead_one_is_named_whenever_it_does() -> None:
    for phase_ms in range(0, 3_000, 250):

        def counters(broker_id: int, at_ms: int, phase_ms: int = phase_ms) -> int:
            return 1 if broker_id == 1 else 1 + (at_ms + phase_ms) // 3_000

        peers, now_ms = read_for(TIMES.lease_ms, counters), TIMES.lease_ms + 400
        change = LeaderElector(9).elect(make_partition(isr=(1, 2)), peers, now_ms=now_ms)
        assert change is not None
        assert change.after.leader == 2


def test_a_first_sight_after_a_long_time_does_not_prove_life() -> None:
    """A broker that reads seldom sees a renewal that may be as old as its reading before."""
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(1), make_lease(2)], started_ms=0, now_ms=0)
    peers.observe([make_lease(1), make_lease(2, 2)], started_ms=40_000, now_ms=40_000)
    partition = make_partition(isr=(1, 2))
    assert peers.has_died(1)
    assert LeaderElector(9).elect(partition, peers, now_ms=40_000) is None


def test_heirs_leave_the_writers_a_moment_from_what_they_wrote_last() -> None:
    partition, peers = make_partition(), make_peers(dead=(1,), live=(2, 3))
    elector = LeaderElector(2)

    def takes_over(now_ms: float) -> bool:
        change = elector.takeover(
            partition, peers, is_unclean_allowed=False, now_ms=now_ms, is_coordinated=True
        )
        return change is not None

    delay_ms = COORDINATOR_PLACES * STEP_IN_DELAY_MS
    assert not takes_over(NOW_MS)
    assert not takes_over(NOW_MS + delay_ms - 1)
    # Another partition of the same dead leader has been taken over.
    other = make_partition()
    after = dataclasses.replace(other, leader=2, isr=(2, 3))
    peers.note_written(other, after, NOW_MS + delay_ms - 1)
    assert not takes_over(NOW_MS + delay_ms)
    assert not takes_over(NOW_MS + 2 * delay_ms - 2)
    assert takes_over(NOW_MS + 2 * delay_ms - 1)


def test_who_may_lack_records_does_not_lead_though_it_was_named() -> None:
    elector = LeaderElector(2)
    elector.start([make_partition(epoch=5)])
    elector.note_lacking([make_partition(epoch=5)])
    named = make_partition(leader=2, epoch=6, isr=(2, 3))
    assert not elector.leads(named)
    (given_up,) = elector.departures([named])
    assert (given_up.after.leader, given_up.after.isr) == (NO_LEADER, (3,))
    assert LeaderElector(2).leads(named)
    # Nor does it name itself.
    peers = make_peers(dead=(1,), live=(3,))
    assert elector.elect(make_partition(isr=(1, 2)), peers, now_ms=NOW_MS) is None
