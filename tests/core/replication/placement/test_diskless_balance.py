"""The moves that spread the leads of diskless partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.placement.diskless_balance import LEADS_MOVED_MAX, balancing_moves


def led_by(leaders: Sequence[int]) -> list[Partition]:
    return [
        Partition(
            topic_id=UUID(int=number % 3),
            partition=number,
            replicas=(leader,),
            leader=leader,
            leader_epoch=0,
            isr=(leader,),
        )
        for number, leader in enumerate(leaders)
    ]


@given(
    leaders=st.lists(st.integers(1, 5), max_size=60), brokers=st.sets(st.integers(1, 8), min_size=1)
)
def test_all_lead_as_many_and_no_move_is_in_vain(leaders: list[int], brokers: set[int]) -> None:
    partitions = led_by(leaders)
    moves = balancing_moves(partitions, brokers)
    if not set(leaders) <= brokers:
        assert moves == []
        return
    counts = Counter(dict.fromkeys(brokers, 0))
    counts.update(leaders)
    surplus = {b: counts[b] - -(-len(leaders) // len(brokers)) for b in brokers}
    after = Counter(counts)
    for move in moves:
        assert move.partition.leader != move.leader
        assert move.replicas == (move.leader,)
        after[move.partition.leader] -= 1
        after[move.leader] += 1
    share = len(leaders) // len(brokers)
    spread = max(counts.values()) - min(counts.values())
    if spread < max(2, share // 4):
        assert moves == []
        return
    assert max(after.values()) - min(after.values()) <= 1
    assert len({move.partition.partition for move in moves}) == len(moves)
    assert len(moves) >= sum(max(0, some) for some in surplus.values())
    # The order in which they are known makes no difference.
    assert balancing_moves(partitions[::-1], sorted(brokers, reverse=True)) == moves


def test_one_more_than_others_is_left_alone() -> None:
    assert balancing_moves(led_by([1, 1, 2, 3]), (1, 2, 3)) == []
    assert len(balancing_moves(led_by([1, 1, 2]), (1, 2, 3))) == 1
    assert balancing_moves([], (1, 2)) == []
    assert balancing_moves(led_by([1]), ()) == []


def test_a_node_that_joins_takes_from_all_and_nothing_moves_between_the_others() -> None:
    moves = balancing_moves(led_by([1, 2] * 15), (1, 2, 3))
    assert {move.leader for move in moves} == {3}
    assert Counter(move.partition.leader for move in moves) == {1: 5, 2: 5}


def test_a_leader_gives_a_bounded_number_away_at_once_and_the_rest_later() -> None:
    partitions = led_by([1] * 2_400 + [2] * 900)
    moves = balancing_moves(partitions, (1, 2, 3))
    given = Counter(move.partition.leader for move in moves)
    assert given == {1: LEADS_MOVED_MAX}  # of 1,300
    rounds = 1
    while moves:
        moved = {move.partition.partition: move.leader for move in moves}
        partitions = led_by([moved.get(p.partition, p.leader) for p in partitions])
        moves = balancing_moves(partitions, (1, 2, 3))
        assert max(Counter(m.partition.leader for m in moves).values(), default=0) <= (
            LEADS_MOVED_MAX
        )
        rounds += 1
    counts = Counter(p.leader for p in partitions)
    assert max(counts.values()) - min(counts.values()) < 1_100 // 4
    assert rounds == 4
