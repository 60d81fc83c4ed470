"""The leader's state of a diskless partition: its chain commits, followers hold nothing back."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, is_handed_over
from tidelog_core.metadata.records import AckedBy, Partition
from tidelog_core.replication.leader.leader_state import LeaderState

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
    leader.add_pending_ack(4, "a")
    leader.add_pending_ack(10, "b")
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
    leader.add_pending_ack(7, "a duplicate")
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
    leader.add_pending_ack(1, "a")
    leader.on_chain_committed(1, 0)
    assert [(ack.token, ack.error) for ack in leader.take_released()] == [("a", None)]


def test_acks_that_are_pending_fail_when_the_leadership_ends_and_stay_so() -> None:
    leader = make_chain_leader()
    leader.on_append(1, 0)
    leader.add_pending_ack(1, "a")
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
    pending: dict[str, int] = {}
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
                pending[str(number)] = min(step.amount, end)
                leader.add_pending_ack(pending[str(number)], str(number))
            case "isr":
                version += 1
                isr = ((1,), (1, 2), (1, 2, 3))[step.amount % 3]
                leader.on_partition(make_partition(isr=isr, version=version), 0)
        assert leader.high_watermark == min(end, chain_end)
        released = leader.take_released()
        assert all(ack.error is None for ack in released)
        due = {token for token, offset in pending.items() if offset <= leader.high_watermark}
        assert {ack.token for ack in released} == due
        for token in due:
            del pending[token]


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


# -- moving --


DEAD_SUCCESSOR = make_peers(live=(1, 3), dead=(2,))
CHAIN = ChainName(1, UUID(int=7))
IN_CHAIN = dataclasses.replace(ALONE, wal=(EpochChain(ALONE.leader_epoch, CHAIN, 0),))


def moving_leader(*, is_leaving: bool = False) -> LeaderState[str]:
    """Return a leader with 10 records, 4 of them stored, that is to give its partition to 2."""
    leader = make_chain_leader(IN_CHAIN)
    leader.on_append(10, 0)
    leader.on_chain_committed(4, 0)
    leader.add_pending_ack(10, "a")
    leader.begin_hand_over(2, is_leaving=is_leaving, now_ms=0)
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=False)
    assert leader.propose(BROKERS, ALIVE, 1) is None
    return leader


def test_a_partition_that_moves_names_its_end_once_the_chain_has_everything() -> None:
    leader = moving_leader()
    leader.on_chain_committed(10, 2)
    assert [ack.error for ack in leader.take_released()] == [None]
    change = leader.propose(BROKERS, ALIVE, 2)
    assert change is not None
    after, epoch = change.after, ALONE.leader_epoch
    assert (after.leader, after.leader_epoch, after.replicas) == (2, epoch + 1, (2,))
    assert after.wal == (*IN_CHAIN.wal, EpochChain(epoch + 1, CHAIN, 10))
    assert is_handed_over(after.wal, leader=after.leader, leader_epoch=after.leader_epoch)
    assert not leader.is_serving  # the successor may lead already
    leader.on_written(change, 3)
    assert leader.is_deposed


def test_nothing_above_the_end_is_committed_while_the_write_may_land() -> None:
    """Nobody should append then. Were it done, its ack would be of a record that no heir reads."""
    leader = moving_leader()
    leader.on_chain_committed(10, 2)
    change = leader.propose(BROKERS, ALIVE, 2)
    assert change is not None
    leader.on_append(12, 3)
    leader.add_pending_ack(12, "b")
    assert not leader.on_chain_committed(12, 3)
    leader.on_unknown(4)
    assert not leader.advance(5)
    leader.on_read(dataclasses.replace(change.after, version=change.after.version + 1), 6)
    assert isinstance(leader.take_released()[-1].error, NotLeaderOrFollower)


def test_an_unknown_outcome_is_settled_by_the_same_write_before_anything_is_appended() -> None:
    leader = moving_leader()
    leader.on_chain_committed(10, 2)
    first = leader.propose(BROKERS, ALIVE, 2)
    leader.on_unknown(3)
    leader.on_read(IN_CHAIN, 4)  # not written, or not yet
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=False)
    assert leader.propose(BROKERS, ALIVE, 1_000) == first
    leader.on_refused(first, 1_001)  # type: ignore[arg-type]
    assert leader.propose(BROKERS, DEAD_SUCCESSOR, 2_000) is not None  # it settles the first one
    assert not leader.is_serving


def test_a_leader_that_stays_goes_on_if_the_chain_is_too_slow() -> None:
    leader = moving_leader()
    assert leader.propose(BROKERS, ALIVE, 60_000) is None
    leader.require_appendable(needs_all=True)
    assert not leader.is_moving


def test_a_leader_that_leaves_names_its_successor_without_an_end_if_the_chain_is_too_slow() -> None:
    leader = moving_leader(is_leaving=True)
    change = leader.propose(BROKERS, ALIVE, 60_000)
    assert change is not None
    assert change.after.leader == 2
    assert change.after.wal == IN_CHAIN.wal  # The successor seals the chain, and finds the end.


def test_a_partition_is_not_given_to_a_broker_that_is_gone() -> None:
    leader = moving_leader(is_leaving=True)
    leader.on_chain_committed(10, 2)
    assert leader.propose(BROKERS, DEAD_SUCCESSOR, 60_000) is None
    leader.require_appendable(needs_all=True)


# -- reassignments --


def asked(target: tuple[int, ...], *, leader: int = 1) -> Partition:
    """Return the partition with a request of an administrator that others lead."""
    going = tuple(b for b in (1,) if b not in target)
    return dataclasses.replace(
        IN_CHAIN,
        replicas=(*target, *going),
        leader=leader,
        adding=tuple(b for b in target if b != 1),
        removing=going,
        version=IN_CHAIN.version + 1,
    )


def test_a_leader_hands_over_to_the_first_of_the_target() -> None:
    leader = make_chain_leader(IN_CHAIN)
    leader.on_append(3, 0)
    leader.on_partition(dataclasses.replace(asked((3, 2)), acked_by=AckedBy.CHAIN), 1)
    assert leader.propose(BROKERS, ALIVE, 1) is None
    leader.require_appendable(needs_all=True)  # until the successor follows
    fetch(leader, 3, 0, now_ms=1)
    assert leader.propose(BROKERS, ALIVE, 1) is None
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=True)
    leader.on_chain_committed(3, 2)
    assert leader.propose(BROKERS, ALIVE, 2) is None
    fetch(leader, 3, 3, now_ms=3)
    change = leader.propose(BROKERS, ALIVE, 3)
    assert change is not None
    after = change.after
    assert (after.leader, after.replicas, after.adding, after.removing) == (3, (3, 2), (), ())
    assert is_handed_over(after.wal, leader=after.leader, leader_epoch=after.leader_epoch)


def test_a_leader_goes_on_if_the_request_is_taken_back_or_its_target_is_gone() -> None:
    leader = make_chain_leader(IN_CHAIN)
    leader.on_append(3, 0)
    request = dataclasses.replace(asked((2,)), acked_by=AckedBy.CHAIN)
    leader.on_partition(request, 1)
    fetch(leader, 2, 0, now_ms=1)
    assert leader.propose(BROKERS, DEAD_SUCCESSOR, 1) is None
    leader.require_appendable(needs_all=True)
    assert leader.propose(BROKERS, ALIVE, 4_000) is None
    leader.require_appendable(needs_all=True)
    fetch(leader, 2, 0, now_ms=6_000)
    assert leader.propose(BROKERS, ALIVE, 6_000) is None
    assert leader.is_moving
    back = dataclasses.replace(IN_CHAIN, acked_by=AckedBy.CHAIN, version=request.version + 1)
    leader.on_partition(back, 6_001)
    assert leader.propose(BROKERS, ALIVE, 6_001) is None
    leader.require_appendable(needs_all=True)


def test_a_request_that_the_chain_is_too_slow_for_is_tried_again_later() -> None:
    leader = make_chain_leader(IN_CHAIN)
    leader.on_append(3, 0)
    request = dataclasses.replace(asked((2,)), acked_by=AckedBy.CHAIN, isr=(1, 2))
    leader.on_partition(request, 1)
    fetch(leader, 2, 0, now_ms=1)
    assert leader.propose(BROKERS, ALIVE, 1) is None
    assert leader.is_moving
    assert leader.propose(BROKERS, ALIVE, 2_500) is None
    leader.require_appendable(needs_all=True)
    fetch(leader, 2, 0, now_ms=7_000)
    assert leader.propose(BROKERS, ALIVE, 7_000) is None
    leader.require_appendable(needs_all=True)
    fetch(leader, 2, 0, now_ms=7_600)
    assert leader.propose(BROKERS, ALIVE, 7_600) is None
    assert leader.is_moving


def test_a_leader_hands_over_to_a_replica_that_was_put_first() -> None:
    three = dataclasses.replace(IN_CHAIN, replicas=(1, 3, 2), isr=(1, 2, 3))
    leader = make_chain_leader(three)
    assert leader.propose(BROKERS, ALIVE, 0) is None
    fetch(leader, 2, 0, now_ms=1)
    other = dataclasses.replace(leader.partition, replicas=(2, 1, 3), version=three.version + 1)
    leader.on_partition(other, 1)
    assert not leader.is_at_rest(ALIVE, 1)
    change = leader.propose(BROKERS, ALIVE, 1)
    assert change is not None
    assert (change.after.leader, change.after.replicas) == (2, (2, 1, 3))


def test_a_successor_that_cannot_follow_gets_the_partition_all_the_same() -> None:
    leader = make_chain_leader(IN_CHAIN)
    request = dataclasses.replace(asked((2,)), acked_by=AckedBy.CHAIN)
    leader.on_partition(request, 1)
    assert leader.propose(BROKERS, ALIVE, 1) is None
    assert leader.propose(BROKERS, ALIVE, 9_000) is None
    leader.require_appendable(needs_all=True)
    change = leader.propose(BROKERS, ALIVE, 10_001)
    assert change is not None
    assert (change.after.leader, change.after.wal[-1].first_offset) == (2, 0)


def test_a_successor_that_stops_to_follow_is_waited_for_for_a_moment() -> None:
    leader = make_chain_leader(IN_CHAIN)
    leader.on_partition(dataclasses.replace(asked((2,)), acked_by=AckedBy.CHAIN), 1)
    leader.on_append(5, 1)
    fetch(leader, 2, 0, now_ms=1)
    leader.on_chain_committed(5, 2)
    assert leader.propose(BROKERS, ALIVE, 2) is None
    change = leader.propose(BROKERS, ALIVE, 2_100)
    assert change is not None
    assert change.after.wal[-1].first_offset == 5
