"""Who leads instead of a broker that is drained."""

from __future__ import annotations

from uuid import UUID

import pytest
from tidelog_core.admin.partitions.drain import drain_diskless, drain_leader
from tidelog_core.errors import EligibleLeadersNotAvailable
from tidelog_core.metadata.records import BrokerLease, Partition
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.reassignment import target_replicas


def peers_of(*live: int) -> PeerLeases:
    peers = PeerLeases(LeaseTimes())
    leases = [BrokerLease(broker_id=b, incarnation=UUID(int=b), counter=1) for b in live]
    peers.observe(leases, started_ms=0, now_ms=1)
    return peers


def a_partition(
    *replicas: int,
    leader: int = 1,
    isr: tuple[int, ...] = (),
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> Partition:
    return Partition(
        topic_id=UUID(int=1),
        partition=0,
        replicas=replicas,
        leader=leader,
        leader_epoch=4,
        isr=isr or replicas,
        adding=adding,
        removing=removing,
    )


def test_the_first_live_member_of_the_isr_leads_and_the_broker_is_the_last_choice() -> None:
    change = drain_leader(a_partition(1, 2, 3, 4, isr=(1, 3, 4)), 1, peers_of(1, 2, 4))
    assert change is not None
    after = change.after
    assert (after.leader, after.leader_epoch) == (4, 5)
    assert after.replicas == (2, 3, 4, 1)
    assert set(after.isr) == {1, 3, 4}


def test_a_preferred_leader_that_does_not_lead_gives_up_its_place_only() -> None:
    for leader in (2, NO_LEADER):
        change = drain_leader(a_partition(1, 2, 3, leader=leader), 1, peers_of(2, 3))
        assert change is not None
        after = change.after
        assert (after.leader, after.leader_epoch, after.replicas) == (leader, 4, (2, 3, 1))


def test_a_partition_that_the_broker_only_follows_is_left_alone() -> None:
    assert drain_leader(a_partition(2, 1, leader=2), 1, peers_of(1, 2)) is None
    assert drain_leader(a_partition(2, 3, leader=2), 1, peers_of(2, 3)) is None


def test_a_reassignment_under_way_keeps_its_target() -> None:
    moving = a_partition(3, 4, 1, 2, isr=(1, 2), adding=(3, 4), removing=(1, 2))
    change = drain_leader(moving, 1, peers_of(1, 2, 3, 4))
    assert change is not None
    assert change.after.leader == 2  # the new ones have not caught up
    assert change.after.replicas == moving.replicas
    arrived = a_partition(1, 3, 2, adding=(3,), removing=(2,))
    change = drain_leader(arrived, 1, peers_of(1, 2, 3))
    assert change is not None
    assert change.after.leader == 3
    assert change.after.replicas == (3, 1, 2)
    assert set(target_replicas(change.after)) == {1, 3}


@pytest.mark.parametrize(
    ("partition", "live"),
    [
        (a_partition(1), (1,)),
        (a_partition(1, 2, isr=(1,)), (1, 2)),
        (a_partition(1, 2), (1,)),
    ],
)
def test_where_nobody_else_can_lead_nothing_is_decided(
    partition: Partition, live: tuple[int, ...]
) -> None:
    with pytest.raises(EligibleLeadersNotAvailable):
        drain_leader(partition, 1, peers_of(*live))


def test_the_leader_of_a_diskless_partition_is_asked_to_hand_it_over() -> None:
    change = drain_diskless(a_partition(1), 1, (1, 5, 6))
    assert change is not None
    asked = change.after
    successor = asked.replicas[0]
    assert successor in (5, 6)
    assert (asked.leader, asked.leader_epoch) == (1, 4)
    assert (asked.replicas, asked.adding, asked.removing) == ((successor, 1), (successor,), (1,))
    assert drain_diskless(asked, 1, (1, 5, 6)) is None
    with pytest.raises(EligibleLeadersNotAvailable):
        drain_diskless(a_partition(1), 1, (1,))


def test_a_replica_of_a_diskless_partition_comes_first_if_one_lives() -> None:
    change = drain_diskless(a_partition(1, 2, 3), 1, (1, 3, 5))
    assert change is not None
    assert change.after.replicas == (3, 1, 2)
    assert (change.after.adding, change.after.removing) == ((), ())
    led_by_another = a_partition(1, 2, 3, leader=2)
    change = drain_diskless(led_by_another, 1, (1, 2, 3))
    assert change is not None
    assert change.after.replicas == (2, 1, 3)
