from __future__ import annotations

import dataclasses

import pytest
from tidelog_core.metadata.image.readings import stand_in
from tidelog_core.metadata.records import Partition
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.lead_changes import hand_over, leave_isr
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.support.replication_cluster import make_partition, make_peers


def takeover(
    elector: LeaderElector,
    partition: Partition,
    peers: PeerLeases,
    *,
    now_ms: float = 0,
    is_unclean_allowed: bool = False,
) -> PartitionChange | None:
    return elector.takeover(partition, peers, is_unclean_allowed=is_unclean_allowed, now_ms=now_ms)


def test_the_first_live_isr_member_takes_over_at_once() -> None:
    partition, peers = make_partition(), make_peers(dead=(1,), live=(2, 3))
    change = takeover(LeaderElector(2), partition, peers)
    assert change is not None
    assert change.reason is ChangeReason.TAKEOVER
    assert change.after == dataclasses.replace(partition, leader=2, leader_epoch=6, isr=(2, 3))
    assert change.write.expected_version == partition.version
    assert change.checks == (peers.check(1),)


def test_who_may_lack_records_leaves_the_isr_before_it_takes_over() -> None:
    """Of a partition that could be read only later: the other ISRs were left at the start."""
    peers = make_peers(dead=(1,), live=(2, 3))
    elector, partition = LeaderElector(2), make_partition()
    assert elector.departures([partition]) == []
    elector.note_lacking([partition])
    assert takeover(elector, partition, peers) is None
    unreadable = stand_in(partition.topic_id, partition.partition, partition)
    assert elector.departures([unreadable]) == []
    (change,) = elector.departures([partition, dataclasses.replace(partition, partition=1)])
    assert change.after.isr == (1, 3)
    assert change.reason is ChangeReason.LEAVE_ISR
    # It is in sync again once it has fetched what it lacked.
    assert elector.departures([change.after]) == []
    assert elector.departures([partition]) == []
    assert takeover(elector, partition, peers) is not None


def test_an_unreadable_partition_is_taken_over_by_nobody() -> None:
    partition = make_partition()
    unreadable = stand_in(partition.topic_id, partition.partition, partition)
    peers = make_peers(dead=(1,), live=(2, 3))
    for broker_id in (2, 3):
        elector = LeaderElector(broker_id)
        assert takeover(elector, unreadable, peers, is_unclean_allowed=True) is None
        assert not elector.leads(unreadable)


def test_the_next_one_steps_in_a_delay_later() -> None:
    partition, peers = make_partition(), make_peers(dead=(1,), live=(2, 3))
    elector = LeaderElector(3, step_in_delay_ms=1_000)
    assert takeover(elector, partition, peers, now_ms=100) is None
    assert takeover(elector, partition, peers, now_ms=1_099) is None
    change = takeover(elector, partition, peers, now_ms=1_100)
    assert change is not None
    assert change.after.leader == 3


def test_a_member_on_a_full_disk_comes_after_those_with_room() -> None:
    partition = make_partition()
    peers = make_peers(dead=(1,), live=(3,), full=(2,))
    full, fit = LeaderElector(2), LeaderElector(3)
    full.is_stepping_down = True
    assert takeover(full, partition, peers, now_ms=0) is None
    assert takeover(fit, partition, peers, now_ms=0) is not None
    # Where the other one does nothing it leads all the same: records can be read.
    assert takeover(full, partition, peers, now_ms=1_000) is not None


def test_a_leader_on_a_full_disk_hands_over_to_members_with_room_only() -> None:
    partition, elector = make_partition(), LeaderElector(1)
    assert elector.fit_successor(partition, make_peers(live=(1, 2, 3))) == 2
    assert elector.fit_successor(partition, make_peers(live=(1, 3), full=(2,))) == 3
    assert elector.fit_successor(partition, make_peers(live=(1,), full=(2, 3))) is None
    # One that stops hands over to anybody.
    assert elector.drain_successor(partition, make_peers(live=(1,), full=(2, 3))) == 2


def test_the_preferred_leader_waits_for_room_on_its_disk() -> None:
    partition, elector = make_partition(leader=2), LeaderElector(2, preferred_stable_ms=0)
    assert (
        elector.preferred_successor(partition, make_peers(live=(2, 3), full=(1,)), now_ms=0) is None
    )
    assert elector.preferred_successor(partition, make_peers(live=(1, 2, 3)), now_ms=0) == 1


def test_the_delay_starts_again_with_every_leader() -> None:
    peers = make_peers(dead=(1, 2), live=(3, 4))
    elector = LeaderElector(4, step_in_delay_ms=1_000)
    before = make_partition((1, 2, 3, 4))
    assert takeover(elector, before, peers, now_ms=0) is None
    after = dataclasses.replace(before, leader=2, leader_epoch=6, version=8)
    assert takeover(elector, after, peers, now_ms=1_500) is None
    assert takeover(elector, after, peers, now_ms=2_500) is not None


def test_nobody_takes_over_from_a_leader_that_lives_or_of_whom_little_is_known() -> None:
    elector = LeaderElector(2)
    assert takeover(elector, make_partition(), make_peers(live=(1, 2, 3))) is None
    assert takeover(elector, make_partition(), make_peers()) is not None  # read: 1 has no lease
    assert takeover(elector, make_partition(), PeerLeases(make_peers()._times)) is None


@pytest.mark.parametrize("isr", [(1,), (1, 3)])
def test_a_replica_outside_of_the_isr_waits_while_a_member_may_come_back(
    isr: tuple[int, ...],
) -> None:
    partition = make_partition(isr=isr)
    peers = make_peers(dead=(1,), live=(2, 3))
    assert takeover(LeaderElector(2), partition, peers, now_ms=1e9) is None


def test_an_unclean_takeover_needs_leave_and_the_death_of_the_whole_isr() -> None:
    partition = make_partition(isr=(1, 3))
    elector = LeaderElector(2)
    living = make_peers(dead=(1,), live=(2, 3))
    assert takeover(elector, partition, living, is_unclean_allowed=True, now_ms=1e9) is None
    dead = make_peers(dead=(1, 3), live=(2,))
    assert takeover(elector, partition, dead, now_ms=1e9) is None
    change = takeover(elector, partition, dead, is_unclean_allowed=True, now_ms=1e9)
    assert change is not None
    assert change.reason is ChangeReason.UNCLEAN_TAKEOVER
    assert (change.after.leader, change.after.isr) == (2, (2,))
    assert change.checks == (dead.check(1), dead.check(3))


def test_a_partition_without_a_leader_is_taken_without_a_check() -> None:
    partition = make_partition(leader=NO_LEADER, isr=(2, 3))
    change = takeover(LeaderElector(2), partition, make_peers(dead=(1,), live=(2, 3)))
    assert change is not None
    assert change.checks == ()


def test_a_restarted_leader_takes_its_partition_over_again_one_epoch_on() -> None:
    partition, peers = make_partition(leader=2), make_peers(live=(1, 2, 3))
    elector = LeaderElector(2)
    elector.start([partition])
    assert not elector.leads(partition)
    change = takeover(elector, partition, peers)
    assert change is not None
    assert (change.after.leader, change.after.leader_epoch) == (2, 6)
    assert elector.leads(change.after)


def test_a_leadership_given_after_the_start_is_taken_as_it_is() -> None:
    elector = LeaderElector(2)
    elector.start([make_partition()])
    given = hand_over(make_partition(), 2).after
    assert elector.leads(given)
    assert takeover(elector, given, make_peers(live=(1, 2, 3))) is None
    new = make_partition((2,), leader=2, epoch=0, version=1)
    assert LeaderElector(2).leads(new)


def test_the_preferred_leader_gets_its_partition_back_after_a_stable_interval() -> None:
    partition = make_partition(leader=2)
    elector = LeaderElector(2, preferred_stable_ms=1_000)
    peers, away = make_peers(live=(1, 2, 3)), make_peers(dead=(1,), live=(2, 3))
    assert elector.preferred_successor(partition, peers, now_ms=0) is None
    assert elector.preferred_successor(partition, away, now_ms=500) is None
    assert elector.preferred_successor(partition, peers, now_ms=600) is None
    assert elector.preferred_successor(partition, peers, now_ms=1_599) is None
    assert elector.preferred_successor(partition, peers, now_ms=1_600) == 1
    lagging = make_partition(leader=2, isr=(2, 3))
    assert elector.preferred_successor(lagging, peers, now_ms=9_999) is None


def test_a_draining_leader_hands_over_to_the_first_live_member() -> None:
    partition = make_partition()
    elector = LeaderElector(1)
    assert elector.drain_successor(partition, make_peers(dead=(2,), live=(1, 3))) == 3
    assert elector.drain_successor(make_partition(isr=(1,)), make_peers(live=(1, 2))) is None
    change = hand_over(partition, 3, is_leaving=True)
    assert (change.after.leader, change.after.leader_epoch, change.after.isr) == (3, 6, (2, 3))


def test_leaving_the_isr_gives_up_the_leadership_and_spares_the_last_member() -> None:
    follower = leave_isr(make_partition(), 2)
    assert follower is not None
    assert (follower.after.isr, follower.after.leader_epoch) == ((1, 3), 5)
    leader = leave_isr(make_partition(), 1)
    assert leader is not None
    assert (leader.after.leader, leader.after.leader_epoch, leader.after.isr) == (
        NO_LEADER,
        6,
        (2, 3),
    )
    assert leave_isr(make_partition(isr=(1,)), 1) is None
    assert leave_isr(make_partition(isr=(1, 3)), 2) is None
