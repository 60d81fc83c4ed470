"""Few brokers of a zone follow a leader, whoever comes and goes, and little moves for it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.replication.placement.diskless_balance import (
    FOLLOWERS_MOVED_MAX,
    FOLLOWERS_MOVED_TOGETHER_MAX,
    balancing_moves,
)
from tidelog_core.replication.placement.diskless_followers import DisklessFollowers

from tests.support.placed_cluster import PlacedCluster

NINE: dict[int, str | None] = {broker_id: "abc"[broker_id % 3] for broker_id in range(1, 10)}
SAME = settings(max_examples=60, deadline=None, derandomize=True)


def nine(count: int = 180, factor: int = 3) -> PlacedCluster:
    cluster = PlacedCluster(dict(NINE))
    cluster.create(count, factor)
    return cluster


def test_a_new_topic_has_one_follower_a_zone_for_each_leader_and_stays() -> None:
    cluster = nine()
    assert cluster.followers_of_a_zone_max == 1
    cluster.assert_zones_covered()
    for broker_id in NINE:
        assert len(cluster.leaders_followed_by(broker_id)) == 2
    assert cluster.settle() == (0, 0)


def test_many_small_topics_are_placed_like_a_wide_one() -> None:
    cluster = PlacedCluster(dict(NINE))
    for _ in range(40):
        cluster.create(3, 3)
    assert cluster.followers_of_a_zone_max == 1
    cluster.assert_leads_spread()
    assert cluster.settle() == (0, 0)


def test_a_broker_that_joins_takes_its_part_and_nothing_else_moves() -> None:
    cluster = nine()
    before = {(one.topic_id, one.partition): one for one in cluster.partitions}
    cluster.racks[10] = "b"
    leads, replicas = cluster.settle()
    assert leads == 18
    # Those that it leads get it and followers, and it follows its part of the leaders.
    assert replicas <= leads * 3 + 2 * 20
    cluster.assert_leads_spread()
    cluster.assert_zones_covered()
    assert cluster.followers_of_a_zone_max <= 2
    for one in cluster.partitions:
        old = before[one.topic_id, one.partition]
        if one.leader != old.leader:
            assert one.leader == 10
        elif one.replicas != old.replicas:
            assert set(one.replicas) - set(old.replicas) == {10}
    assert 1 <= len(cluster.leaders_followed_by(10)) <= 3


def test_a_broker_that_is_gone_leaves_its_part_to_others_of_its_zone() -> None:
    cluster = nine()
    heirs = set(next(one.replicas for one in cluster.partitions if one.leader == 4))
    untouched = [
        one
        for one in cluster.partitions
        if 4 not in one.replicas and one.leader not in heirs  # these give some to all others
    ]
    assert len(untouched) >= 80
    cluster.lose(4)
    leads, replicas = cluster.settle()
    assert leads <= 20
    assert replicas <= 20 * 3 + 2 * 20  # what it led, and what it followed
    cluster.assert_leads_spread()
    cluster.assert_zones_covered()
    assert cluster.followers_of_a_zone_max <= 2
    assert [one for one in untouched if one in cluster.partitions] == untouched


def test_a_broker_without_a_replica_leads_only_if_no_replica_lacks_leads() -> None:
    """Two lead all of what three have replicas of, and a fourth broker has nothing."""
    cluster = PlacedCluster({1: "a", 2: "b", 3: "c"})
    cluster.create(12, 3)
    cluster.partitions = [
        dataclasses.replace(one, leader=1 + one.partition % 2) for one in cluster.partitions
    ]
    moves = balancing_moves(cluster.partitions, cluster.racks, cluster.racks)
    assert Counter(move.leader for move in moves) == {3: 4}
    assert all(set(move.replicas) == {1, 2, 3} for move in moves)


def test_with_one_replica_any_broker_leads_and_stays_the_only_one() -> None:
    cluster = nine(factor=1)
    cluster.racks[10] = "b"
    assert cluster.settle() == (18, 18)
    assert {len(one.replicas) for one in cluster.partitions} == {1}


def test_one_other_follower_of_a_zone_is_left_alone_and_a_third_one_is_not() -> None:
    cluster = nine()
    followers = [one for one in cluster.partitions if one.leader == 1]
    own = followers[0].replicas
    others = [b for b in NINE if NINE[b] == NINE[own[1]] and b not in own]
    places = [cluster.partitions.index(one) for one in followers]

    def place(number: int, broker_id: int) -> None:
        replicas = (own[0], broker_id, *own[2:])
        cluster.partitions[places[number]] = dataclasses.replace(
            followers[number], replicas=replicas
        )

    place(0, others[0])
    place(1, others[0])
    assert cluster.settle() == (0, 0)
    place(2, others[1])
    assert cluster.settle() == (0, 1)
    assert cluster.partitions[places[0]].replicas[1] == others[0]
    assert cluster.partitions[places[2]].replicas == own


def test_a_zone_that_was_left_out_gets_its_replica() -> None:
    cluster = nine()
    one = cluster.partitions[0]
    twice = next(b for b in NINE if NINE[b] == NINE[one.replicas[1]] and b not in one.replicas)
    replicas = (*one.replicas[:2], twice)
    cluster.partitions[0] = dataclasses.replace(one, replicas=replicas)
    assert cluster.settle() == (0, 1)
    cluster.assert_zones_covered()


def test_a_broker_that_is_away_for_a_moment_keeps_its_replicas() -> None:
    cluster = nine()
    able = NINE.keys() - {4}
    partitions = [one for one in cluster.partitions if one.leader != 4]
    kept = balancing_moves(partitions, able, NINE)
    assert [move for move in kept if move.leader == move.partition.leader] == []
    gone = balancing_moves(partitions, able, {b: NINE[b] for b in able})
    assert sum(4 in move.partition.replicas for move in gone) == 40
    assert not any(4 in move.replicas for move in gone)


def test_few_followers_move_at_once() -> None:
    cluster = PlacedCluster({1: "a", 2: "b", 3: "b"})
    cluster.create(3 * (FOLLOWERS_MOVED_MAX + 50), 2)
    cluster.racks[4] = "a"
    cluster.partitions = [
        dataclasses.replace(one, leader=1, replicas=(1, 5)) for one in cluster.partitions
    ]
    moves = balancing_moves(cluster.partitions, {1}, {1: "a", 2: "b"})
    assert len(moves) == FOLLOWERS_MOVED_MAX


def test_few_followers_of_many_leaders_move_at_once() -> None:
    racks: dict[int, str | None] = {broker_id: "ab"[broker_id % 2] for broker_id in range(1, 61)}
    cluster = PlacedCluster(racks)
    cluster.create(60 * 100, 2)
    cluster.partitions = [
        dataclasses.replace(one, replicas=(one.leader, 99)) for one in cluster.partitions
    ]
    moves = balancing_moves(cluster.partitions, racks, racks)
    assert len(moves) == FOLLOWERS_MOVED_TOGETHER_MAX
    assert {move.leader for move in moves} == racks.keys()
    cluster.settle()
    cluster.assert_zones_covered()


@pytest.mark.parametrize("factor", [2, 3, 4, 5])
def test_without_racks_each_broker_has_its_followers_too(factor: int) -> None:
    cluster = PlacedCluster(dict.fromkeys(range(1, 7)))
    cluster.create(60, factor)
    assert cluster.followers_of_a_zone_max == factor - 1
    assert cluster.settle() == (0, 0)
    cluster.racks[7] = None
    cluster.settle()
    cluster.assert_leads_spread()
    assert cluster.followers_of_a_zone_max <= factor


def test_two_replicas_in_three_zones_use_every_zone() -> None:
    cluster = nine(factor=2)
    assert cluster.followers_of_a_zone_max == 1
    followed = Counter(NINE[one.replicas[1]] for one in cluster.partitions)
    assert followed == {"a": 60, "b": 60, "c": 60}


def test_with_too_few_brokers_those_of_before_stay() -> None:
    followers = DisklessFollowers({1: "a", 2: "b"}, {}, replicas_max=3)
    assert followers.replicas_of(1, 3, (1, 9, 8)) == (1, 2, 9)
    assert followers.replicas_of(7, 2, (3, 4)) == (7, 3)


@SAME
@given(
    zones=st.integers(1, 4),
    per_zone=st.integers(1, 4),
    topics=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=6),
)
def test_whoever_comes_and_goes_it_settles_with_zones_covered_and_few_followers(
    zones: int,
    per_zone: int,
    topics: list[tuple[int, int]],
    steps: list[tuple[bool, int]],
) -> None:
    racks: dict[int, str | None] = {b: f"z{b % zones}" for b in range(zones * per_zone)}
    cluster = PlacedCluster(racks)
    for count, factor in topics:
        cluster.create(count, min(factor, len(racks)))
    widest = max(len(one.replicas) for one in cluster.partitions)
    fresh = len(racks)
    for joins, number in steps:
        if joins:
            cluster.racks[fresh] = f"z{number % zones}"
            fresh += 1
        elif len(cluster.racks) > widest:
            cluster.lose(sorted(cluster.racks)[number % len(cluster.racks)])
        else:
            continue
        total = len(cluster.partitions)
        leads, replicas = cluster.settle()
        share = -(-total // len(cluster.racks))
        assert leads <= 2 * share + max(2, share // 4) * len(cluster.racks)
        assert replicas <= total * (widest - 1) + leads
        cluster.assert_leads_spread()
        cluster.assert_zones_covered()
        depth = -(-(widest - 1) // max(1, len(set(cluster.racks.values())) - 1))
        assert cluster.followers_of_a_zone_max <= depth + 1
