"""The leader's state of a diskless partition: its chain commits, followers hold nothing back."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.leader_state import LeaderState

from tests.support.replication_cluster import (
    LAG_MS,
    fetch,
    make_brokers,
    make_leader,
    make_partition,
    make_peers,
)

BROKERS = make_brokers(1, 2, 3)
ALIVE = make_peers(live=(1, 2, 3))
ALONE = make_partition((1,), isr=(1,))


def make_chain_leader(
    partition: Partition = ALONE, *, log_end_offset: int = 0, min_insync_replicas: int = 1
) -> LeaderState[str]:
    return make_leader(
        partition,
        log_end_offset=log_end_offset,
        min_insync_replicas=min_insync_replicas,
        commits_by_chain=True,
    )


def test_a_leader_alone_commits_when_its_chain_does() -> None:
    leader = make_chain_leader()
    assert not leader.on_append(10, 0)
    leader.owe_ack(4, "a")
    leader.owe_ack(10, "b")
    assert leader.high_watermark == 0
    assert leader.on_chain_committed(4, 0)
    assert leader.high_watermark == 4
    assert [ack.token for ack in leader.take_released()] == ["a"]
    assert leader.on_chain_committed(10, 0)
    assert [(ack.token, ack.error) for ack in leader.take_released()] == [("b", None)]


def test_all_that_the_log_has_at_the_start_of_the_epoch_is_committed() -> None:
    leader = make_chain_leader(log_end_offset=7)
    assert leader.high_watermark == 7
    assert leader.is_high_watermark_settled
    leader.owe_ack(7, "a duplicate")
    assert [ack.token for ack in leader.take_released()] == ["a duplicate"]


def test_what_the_chain_says_twice_or_late_takes_nothing_back() -> None:
    leader = make_chain_leader()
    leader.on_append(10, 0)
    leader.on_chain_committed(8, 0)
    assert not leader.on_chain_committed(3, 0)
    assert leader.high_watermark == 8


def test_the_high_watermark_never_passes_the_end_of_the_log() -> None:
    leader = make_chain_leader(log_end_offset=5)
    assert not leader.on_chain_committed(9, 0)
    assert leader.high_watermark == 5
    assert leader.on_append(7, 0)
    assert leader.high_watermark == 7


def test_followers_hold_nothing_back_and_commit_nothing() -> None:
    leader = make_chain_leader(make_partition())
    leader.on_append(10, 0)
    assert not fetch(leader, 2, 10)
    assert not fetch(leader, 3, 10)
    assert leader.high_watermark == 0
    leader.on_append(20, 0)
    assert leader.on_chain_committed(20, 0)
    assert leader.high_watermark == 20


def test_min_insync_replicas_does_not_apply() -> None:
    leader = make_chain_leader(make_partition(isr=(1,)), min_insync_replicas=2)
    leader.require_appendable(needs_all=True)
    leader.on_append(1, 0)
    leader.owe_ack(1, "a")
    leader.on_chain_committed(1, 0)
    assert [(ack.token, ack.error) for ack in leader.take_released()] == [("a", None)]


def test_acks_that_are_owed_fail_when_the_leadership_ends_and_stay_so() -> None:
    leader = make_chain_leader()
    leader.on_append(1, 0)
    leader.owe_ack(1, "a")
    leader.depose()
    (ack,) = leader.take_released()
    assert isinstance(ack.error, NotLeaderOrFollower)
    assert not leader.on_chain_committed(1, 0)
    assert leader.take_released() == []
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=False)


def test_a_hand_over_waits_until_the_chain_has_the_last_record() -> None:
    leader = make_chain_leader(make_partition(isr=(1, 2)))
    leader.on_append(1, 0)
    leader.begin_hand_over(2, is_leaving=False, now_ms=0)
    fetch(leader, 2, 1, now_ms=1)
    assert leader.propose(BROKERS, ALIVE, 1) is None
    leader.on_chain_committed(1, 2)
    change = leader.propose(BROKERS, ALIVE, 2)
    assert change is not None
    assert change.after.leader == 2


def test_a_leader_alone_is_at_rest() -> None:
    leader = make_chain_leader()
    leader.on_append(5, 0)
    assert leader.propose(BROKERS, ALIVE, 0) is None
    assert leader.is_at_rest(ALIVE, 0)


class Step(NamedTuple):
    what: Literal["append", "commit", "fetch", "owe", "isr"]
    amount: int
    follower_id: int


STEPS = st.builds(
    Step,
    st.sampled_from(("append", "commit", "fetch", "owe", "isr")),
    st.integers(0, 40),
    st.sampled_from((2, 3)),
)


@given(st.integers(0, 10), st.lists(STEPS, max_size=60))
def test_acks_follow_the_chain_alone(start: int, steps: list[Step]) -> None:
    """Whatever followers and the ISR do, the high watermark is the chain's end within the log."""
    leader = make_chain_leader(make_partition(), log_end_offset=start, min_insync_replicas=3)
    end, chain_end, version = start, start, 7
    owed: dict[str, int] = {}
    for number, step in enumerate(steps):
        match step.what:
            case "append":
                end += step.amount
                leader.on_append(end, 0)
            case "commit":
                chain_end = max(chain_end, step.amount)
                leader.on_chain_committed(step.amount, 0)
            case "fetch":
                fetch(leader, step.follower_id, min(step.amount, end))
            case "owe":
                owed[str(number)] = min(step.amount, end)
                leader.owe_ack(owed[str(number)], str(number))
            case "isr":
                version += 1
                isr = ((1,), (1, 2), (1, 2, 3))[step.amount % 3]
                leader.on_partition(make_partition(isr=isr, version=version), 0)
        assert leader.high_watermark == min(end, chain_end)
        released = leader.take_released()
        assert all(ack.error is None for ack in released)
        due = {token for token, offset in owed.items() if offset <= leader.high_watermark}
        assert {ack.token for ack in released} == due
        for token in due:
            del owed[token]


def test_a_replica_that_has_what_is_committed_is_in_sync_however_much_waits() -> None:
    """The leader appends all the time, so nobody ever has all of its log."""
    leader = make_chain_leader(make_partition((1, 2), isr=(1, 2)))
    for second in range(1, 100):
        now_ms = second * 1_000
        leader.on_append(second * 10, now_ms)
        fetch(leader, 2, (second - 1) * 10, now_ms=now_ms)
        assert leader.propose(BROKERS, ALIVE, now_ms) is None
        leader.on_chain_committed(second * 10, now_ms)


def test_a_replica_that_reads_nothing_leaves_the_isr_and_comes_back() -> None:
    leader = make_chain_leader(make_partition((1, 2), isr=(1, 2)))
    leader.on_append(10, 0)
    leader.on_chain_committed(10, 0)
    fetch(leader, 2, 0)
    change = leader.propose(BROKERS, ALIVE, LAG_MS + 1)
    assert change is not None
    assert change.after.isr == (1,)
    leader.on_written(change, LAG_MS + 1)
    fetch(leader, 2, 10, now_ms=LAG_MS + 2)
    back = leader.propose(BROKERS, ALIVE, LAG_MS + 2)
    assert back is not None
    assert back.after.isr == (1, 2)
