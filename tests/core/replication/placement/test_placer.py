from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import InvalidReplicationFactor
from tidelog_core.replication.placement.placer import ReplicaPlacer, Replicas


def place(
    partition_count: int,
    replication_factor: int,
    racks: dict[int, str | None],
    *,
    dead: frozenset[int] = frozenset(),
    existing: Sequence[Replicas] = (),
) -> tuple[Replicas, ...]:
    placer = ReplicaPlacer(racks=racks, live=racks.keys() - dead, existing=existing)
    return placer.place(partition_count, replication_factor)


def difference(counts: Counter[int], of: Sequence[int]) -> int:
    found = [counts[b] for b in of]
    return max(found) - min(found)


def outside(rack: str | None, racks: dict[int, str | None]) -> list[int]:
    return [b for b in racks if racks[b] != rack]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 40))
def test_leaders_and_replicas_are_even_and_never_double(
    broker_count: int, replication_factor: int, rack_count: int, partition_count: int
) -> None:
    racks = {b: f"rack-{b % rack_count}" for b in range(broker_count)}
    factor = min(replication_factor, broker_count)
    placed = place(partition_count, factor, racks)
    assert len(placed) == partition_count
    assert difference(Counter(p[0] for p in placed), list(racks)) <= 1
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[b] for b in replicas}) == min(factor, len(set(racks.values())))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=40), st.integers(2, 5), st.integers(2, 3))
def test_small_topics_spread_a_leaders_followers_as_widely_as_one_wide_topic(
    partition_counts: list[int], brokers_per_rack: int, replication_factor: int
) -> None:
    """Each is placed by itself, from the partitions there are, as a cluster does it."""
    racks = {b: f"rack-{b % 3}" for b in range(3 * brokers_per_rack)}
    placed: list[Replicas] = []
    for count in partition_counts:
        placed += place(count, replication_factor, racks, existing=placed)
    assert all(len({racks[b] for b in replicas}) == replication_factor for replicas in placed)
    for leader, rack in racks.items():
        followers = Counter(b for p in placed if p[0] == leader for b in p[1:])
        assert difference(followers, outside(rack, racks)) <= 2
    assert difference(Counter(b for p in placed for b in p), list(racks)) <= 4


def test_what_a_dead_broker_or_rack_leads_goes_to_all_other_racks_brokers_alike() -> None:
    """100 topics of 15 partitions on 30 brokers in 3 racks: each broker leads 50 of them."""
    racks = {b: f"rack-{b % 3}" for b in range(30)}
    placed: list[Replicas] = []
    for _ in range(100):
        placed += place(15, 3, racks, existing=placed)
    for dead, rack in racks.items():
        successors = Counter(p[1] for p in placed if p[0] == dead)
        assert successors.keys() == set(outside(rack, racks))
        assert max(successors.values()) <= 4
    for rack in set(racks.values()):
        successors = Counter(p[1] for p in placed if racks[p[0]] == rack)
        assert difference(successors, outside(rack, racks)) <= 8  # of 25


def test_a_placer_goes_on_from_what_it_has_placed() -> None:
    racks = {b: f"rack-{b % 3}" for b in range(9)}
    placer = ReplicaPlacer(racks=racks, live=racks.keys())
    placed: list[Replicas] = []
    for count in (1, 4, 9, 2, 30):
        expected = place(count, 3, racks, existing=placed)
        assert placer.place(count, 3) == expected
        placed += expected


def test_the_followers_of_one_leader_differ() -> None:
    placed = place(30, 2, dict.fromkeys(range(4)))
    followers = Counter(p[1] for p in placed if p[0] == 0)
    assert set(followers) == {1, 2, 3}
    assert max(followers.values()) - min(followers.values()) <= 1


def test_replicas_are_even_without_racks() -> None:
    held = Counter(b for replicas in place(50, 3, dict.fromkeys(range(5))) for b in replicas)
    assert max(held.values()) - min(held.values()) <= 2


def test_new_partitions_go_to_who_leads_least() -> None:
    existing = [(0,)] * 5 + [(2,)]
    assert place(2, 1, dict.fromkeys(range(3)), existing=existing) == ((1,), (2,))


def test_who_follows_a_leader_least_comes_before_who_holds_least() -> None:
    existing = [(1, 2), (2, 1), (3, 2), (0, 1), (0, 3)]
    assert place(4, 2, dict.fromkeys(range(4)), existing=existing)[3] == (0, 2)


def test_a_broker_that_has_joined_follows_every_leader_before_others_do_again() -> None:
    racks = dict.fromkeys(range(4))
    existing = place(30, 2, dict.fromkeys(range(3)))
    placed = place(8, 2, racks, existing=existing)
    assert all(3 in replicas for replicas in placed)


def test_brokers_that_are_no_longer_registered_get_nothing() -> None:
    placed = place(6, 2, dict.fromkeys(range(3)), existing=[(9, 0), (1, 9)])
    assert {b for replicas in placed for b in replicas} == {0, 1, 2}


def test_brokers_that_are_not_live_are_used_last_and_never_lead() -> None:
    placed = place(12, 2, dict.fromkeys(range(3)), dead=frozenset({0}))
    assert {b for replicas in placed for b in replicas} == {1, 2}
    placed = place(12, 3, dict.fromkeys(range(3)), dead=frozenset({0}))
    assert all(replicas[0] != 0 and replicas[2] == 0 for replicas in placed)


@pytest.mark.parametrize(
    ("factor", "dead", "problem"),
    [(0, set(), "positive"), (4, set(), "only 3"), (1, {0, 1, 2}, "fenced")],
)
def test_what_cannot_be_placed_is_refused(factor: int, dead: set[int], problem: str) -> None:
    with pytest.raises(InvalidReplicationFactor, match=problem):
        place(1, factor, dict.fromkeys(range(3)), dead=frozenset(dead))
