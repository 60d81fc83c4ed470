"""Which node leads a diskless partition next, and which replicas it has then."""

from __future__ import annotations

import dataclasses
from collections import Counter
from uuid import UUID

import pytest
from tidelog_core.metadata.records import Partition
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.placement.heirs import heir_of, replicas_with

from tests.support.replication_cluster import make_peers

TOPIC = UUID(int=7)


def partition_of(number: int, *replicas: int) -> Partition:
    return Partition(
        topic_id=TOPIC,
        partition=number,
        replicas=replicas,
        leader=replicas[0],
        leader_epoch=3,
        isr=replicas,
    )


def test_live_replicas_come_before_all_other_brokers() -> None:
    heirs = Counter(heir_of(partition_of(n, 1, 5, 9), (2, 3, 5, 9)) for n in range(200))
    assert heirs.keys() == {5, 9}
    assert min(heirs.values()) > 50
    assert heir_of(partition_of(0, 1, 5, 9), (2, 3)) in (2, 3)
    assert heir_of(partition_of(0, 1, 5, 9), ()) is None


def test_a_replica_that_has_left_the_isr_comes_after_the_others() -> None:
    for number in range(20):
        partition = dataclasses.replace(partition_of(number, 1, 5, 9), leader=-1, isr=(5, 9))
        assert heir_of(partition, (1, 2, 5, 9)) in (5, 9)
        assert heir_of(partition, (1, 2)) == 1


@pytest.mark.parametrize(
    ("before", "leader", "after"),
    [
        ((1,), 4, (4,)),
        ((1, 2, 3), 1, (1, 2, 3)),
        ((1, 2, 3), 3, (3, 1, 2)),
        ((1, 2, 3), 4, (4, 2, 3)),
    ],
    ids=["alone", "again", "a-replica", "another-broker"],
)
def test_there_are_as_many_replicas_as_before_with_the_leader_first(
    before: tuple[int, ...], leader: int, after: tuple[int, ...]
) -> None:
    assert replicas_with(partition_of(0, *before), leader) == after


def test_a_broker_knows_what_it_would_inherit_while_the_leader_lives() -> None:
    peers = make_peers(live=(1, 2, 3))
    first, second = (LeaderElector(broker_id, preferred_stable_ms=0) for broker_id in (2, 3))
    for number in range(50):
        partition = partition_of(number, 1)
        would = [one.would_inherit(partition, peers, (1, 2, 3)) for one in (first, second)]
        assert would.count(True) == 1
        assert not LeaderElector(1, preferred_stable_ms=0).would_inherit(partition, peers, (1, 2))
    mine = partition_of(0, 1, 2)
    assert first.would_inherit(mine, peers, (1, 2, 3))
    assert not second.would_inherit(mine, peers, (1, 2, 3))
    assert not first.would_inherit(dataclasses.replace(mine, leader=NO_LEADER), peers, (2, 3))
    first.can_store = False
    assert not first.would_inherit(mine, peers, (1, 2, 3))
