"""A partition at rest has nothing to write, however much time goes by."""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tidelog_core.replication.change import PartitionChange

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
FOLLOWERS = st.sampled_from([2, 3])


class LeaderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.leader = make_leader(make_partition(isr=(1, 2)))
        self.now_ms = 0.0
        self.change: PartitionChange | None = None

    @rule(ms=st.sampled_from([10, 600, LAG_MS + 1]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def append(self) -> None:
        self.leader.on_append(self.leader.log_end_offset + 1, self.now_ms)

    @rule(follower_id=FOLLOWERS, behind=st.sampled_from([0, 0, 0, 1, 3]))
    def fetch(self, follower_id: int, behind: int) -> None:
        offset = max(0, self.leader.log_end_offset - behind)
        fetch(self.leader, follower_id, offset, now_ms=self.now_ms)

    @rule(successor=FOLLOWERS, is_leaving=st.booleans())
    def hand_over(self, successor: int, is_leaving: bool) -> None:
        if successor in self.leader.partition.isr and self.change is None:
            self.leader.begin_hand_over(
                successor, is_leaving=is_leaving, now_ms=self.now_ms, time_ms=100
            )

    @rule(outcome=st.sampled_from(["written", "refused", "unknown", "conflict"]))
    def write(self, outcome: str) -> None:
        leader = self.leader
        if leader.needs_read:
            version = leader.partition.version + 1
            read = dataclasses.replace(leader.partition, version=version)
            leader.on_read(read, self.now_ms)
            return
        change = leader.propose(BROKERS, ALIVE, self.now_ms)
        if change is None:
            return
        if outcome == "refused":
            leader.on_refused(change, self.now_ms)
        elif outcome == "unknown":
            leader.on_unknown(self.now_ms)
        elif outcome == "conflict":
            leader.on_conflict()
        elif change.after.leader == 1:
            leader.on_written(change, self.now_ms)
        else:
            leader.on_refused(change, self.now_ms)  # Otherwise this is the end of it.

    @invariant()
    def has_nothing_to_write_at_rest(self) -> None:
        for wait_ms in (0, 600, 10 * LAG_MS):
            if self.leader.is_at_rest(ALIVE, self.now_ms):
                assert self.leader.propose(BROKERS, ALIVE, self.now_ms + wait_ms) is None


LeaderMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLeadersAtRest = LeaderMachine.TestCase


def test_a_leader_whose_followers_have_everything_is_at_rest() -> None:
    leader = make_leader()
    assert not leader.is_at_rest(ALIVE, 0)
    fetch(leader, 2, 0)
    fetch(leader, 3, 0)
    assert leader.is_at_rest(ALIVE, 0)
    leader.on_append(1, 0)
    assert not leader.is_at_rest(ALIVE, 0)


def test_one_that_is_out_of_the_isr_and_does_not_fetch_disturbs_nobody() -> None:
    leader = make_leader(make_partition(isr=(1, 2)))
    fetch(leader, 2, 0)
    assert leader.is_at_rest(ALIVE, 0)
    fetch(leader, 3, 0)
    assert not leader.is_at_rest(ALIVE, 0)


def test_a_reassignment_is_no_rest() -> None:
    leader = make_leader(make_partition((1, 2), adding=(2,), isr=(1, 2)))
    fetch(leader, 2, 0)
    assert not leader.is_at_rest(ALIVE, 0)


def test_a_leader_whose_follower_has_died_is_not_at_rest_before_that_has_left() -> None:
    leader = make_leader()
    fetch(leader, 2, 0)
    fetch(leader, 3, 0)
    assert leader.is_at_rest(ALIVE, 0)
    assert not leader.is_at_rest(make_peers(live=(1, 2), dead=(3,)), 0)
