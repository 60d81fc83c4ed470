from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import InvalidReplicationFactor
from tidelog_core.replication.placement import place_replicas


def place(
    partition_count: int,
    replication_factor: int,
    racks: dict[int, str | None],
    *,
    dead: frozenset[int] = frozenset(),
    leader_load: dict[int, int] | None = None,
) -> tuple[tuple[int, ...], ...]:
    return place_replicas(
        partition_count,
        replication_factor,
        racks=racks,
        live=racks.keys() - dead,
        leader_load=leader_load or {},
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 40))
def test_leaders_and_replicas_are_even_and_never_double(
    broker_count: int, replication_factor: int, rack_count: int, partition_count: int
) -> None:
    racks = {b: f"rack-{b % rack_count}" for b in range(broker_count)}
    factor = min(replication_factor, broker_count)
    placed = place(partition_count, factor, racks)
    assert len(placed) == partition_count
    leaders = Counter(dict.fromkeys(racks, 0)) + Counter(p[0] for p in placed)
    counts = [leaders[b] for b in racks]
    assert max(counts) - min(counts) <= 1
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[b] for b in replicas}) == min(factor, len(set(racks.values())))


def test_the_followers_of_one_leader_differ() -> None:
    placed = place(30, 2, dict.fromkeys(range(4)))
    followers = Counter(p[1] for p in placed if p[0] == 0)
    assert set(followers) == {1, 2, 3}
    assert max(followers.values()) - min(followers.values()) <= 1


def test_replicas_are_even_without_racks() -> None:
    held = Counter(b for replicas in place(50, 3, dict.fromkeys(range(5))) for b in replicas)
    assert max(held.values()) - min(held.values()) <= 2


def test_new_partitions_go_to_who_leads_least() -> None:
    placed = place(2, 1, dict.fromkeys(range(3)), leader_load={0: 5, 1: 0, 2: 1})
    assert placed == ((1,), (2,))


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
