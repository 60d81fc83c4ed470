"""A partition becomes diskless and replicated again, whatever comes in between.

A leader, its followers, its chain and the item's store take turns as a seed says. At every moment the
item says who must have all that was acknowledged: the chain or the tier, or every replica of the ISR.
"""

from __future__ import annotations

import dataclasses
import random
from uuid import UUID

import pytest
from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.records import AckedBy
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.conversion import RETRY_MS
from tidelog_core.replication.leader_state import LeaderState, ReplicationRules

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
CHAIN = EpochChain(5, ChainName(1, UUID(int=9)), 0)


def propose(leader: LeaderState[str], now_ms: float = 0) -> PartitionChange | None:
    return leader.propose(BROKERS, ALIVE, now_ms)


def make_diskless(log_end_offset: int = 0) -> LeaderState[str]:
    return make_leader(log_end_offset=log_end_offset, commits_by_chain=True)


def test_a_partition_becomes_diskless_once_the_chain_has_what_was_acknowledged() -> None:
    leader = make_leader(log_end_offset=10, high_watermark=10)
    leader.begin_entering(CHAIN)
    assert propose(leader) is None
    leader.on_chain_committed(9, 0)
    assert propose(leader) is None
    leader.on_chain_committed(10, 0)
    change = propose(leader)
    assert change is not None
    assert change.after.is_diskless
    assert change.after.wal == (CHAIN,)
    assert (change.after.leader_epoch, change.after.isr) == (5, (1, 2, 3))
    leader.on_written(change, 0)
    assert leader.commits_by_chain
    assert not leader.is_converting


def test_meanwhile_isr_and_chain_commit_together() -> None:
    leader = make_leader(log_end_offset=0)
    leader.begin_entering(CHAIN)
    leader.on_append(10, 0)
    leader.on_chain_committed(7, 0)
    assert leader.high_watermark == 0
    for follower in (2, 3):
        fetch(leader, follower, 5)
    assert leader.high_watermark == 5
    for follower in (2, 3):
        fetch(leader, follower, 10)
    assert leader.high_watermark == 7
    leader.on_chain_committed(10, 0)
    assert leader.high_watermark == 10


def test_a_chain_that_was_lost_holds_nothing_back() -> None:
    leader = make_leader(log_end_offset=0)
    leader.begin_entering(CHAIN)
    leader.on_append(10, 0)
    for follower in (2, 3):
        fetch(leader, follower, 10)
    assert leader.high_watermark == 0
    leader.end_entering(0)
    assert leader.high_watermark == 10
    assert propose(leader) is None


def test_a_lost_chain_counts_while_the_item_may_come_to_name_it() -> None:
    leader = make_leader(log_end_offset=0)
    leader.begin_entering(CHAIN)
    change = propose(leader)
    assert change is not None
    assert change.after.is_diskless
    leader.on_unknown(0)
    leader.on_append(10, 0)
    for follower in (2, 3):
        fetch(leader, follower, 10)
    leader.end_entering(0)
    assert leader.high_watermark == 0
    assert not leader.may_enter
    leader.on_read(leader.partition, 0)  # It has not landed yet.
    assert leader.high_watermark == 0
    settling = propose(leader, 1_000)
    assert settling is not None
    leader.on_written(settling, 0)
    assert leader.high_watermark == 10
    assert not leader.may_enter  # This epoch was in a chain.
    leader.begin_next_epoch()
    change = propose(leader, 1_000)
    assert change is not None
    assert (change.after.leader_epoch, change.after.is_diskless) == (6, False)
    assert [one.id for one in change.checks] == [BROKERS[1].item_id]
    leader.on_written(change, 1_000)
    assert leader.is_deposed


def test_a_return_waits_for_the_followers_and_takes_no_appends_meanwhile() -> None:
    leader = make_diskless()
    for follower in (2, 3):
        fetch(leader, follower, 0)
    leader.on_append(10, 0)
    leader.begin_return()
    assert propose(leader) is None
    with pytest.raises(NotLeaderOrFollower, match="becoming replicated"):
        leader.require_appendable(needs_all=True)
    leader.on_chain_committed(10, 0)
    fetch(leader, 2, 10)
    assert propose(leader) is None
    fetch(leader, 3, 10)
    change = propose(leader)
    assert change is not None
    assert not change.after.is_diskless
    assert change.after.leader_epoch == 6
    assert set(change.after.isr) == {1, 2, 3}
    # Neither by a follower that has started again, nor by this broker's process of before.
    assert {one.id for one in change.checks} == {one.item_id for one in BROKERS.values()}
    leader.on_written(change, 0)
    assert leader.is_deposed  # of this epoch; it leads the next one


def test_a_return_that_followers_do_not_keep_up_with_is_put_off() -> None:
    leader = make_diskless()
    leader.on_append(10, 0)
    leader.on_chain_committed(10, 0)
    leader.begin_return()
    assert propose(leader) is None
    assert propose(leader, leader.rules.hand_over_ms) is None
    leader.require_appendable(needs_all=True)
    assert propose(leader, leader.rules.hand_over_ms + 1) is None
    leader.require_appendable(needs_all=True)
    assert propose(leader, leader.rules.hand_over_ms + RETRY_MS) is None
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=True)


def test_nothing_is_appended_while_the_return_may_have_been_written() -> None:
    leader = make_diskless(10)
    for follower in (2, 3):
        fetch(leader, follower, 10)
    leader.begin_return()
    assert propose(leader) is not None
    leader.on_unknown(0)
    leader.end_return()
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=True)
    leader.on_read(leader.partition, 0)
    settling = propose(leader, 1_000)
    assert settling is not None
    leader.on_written(settling, 0)
    leader.require_appendable(needs_all=True)


def test_followers_get_time_to_see_that_a_partition_is_diskless_before_it_is_given_back() -> None:
    """One that has not seen it yet may cut what it was counted for."""
    leader = make_leader(log_end_offset=10, high_watermark=10)
    leader.begin_entering(CHAIN)
    leader.on_chain_committed(10, 0)
    for follower in (2, 3):
        fetch(leader, follower, 10)
    change = propose(leader)
    assert change is not None
    leader.on_written(change, 100)
    leader.begin_return()
    assert propose(leader, 100 + RETRY_MS - 1) is None
    leader.require_appendable(needs_all=True)
    change = propose(leader, 100 + RETRY_MS)
    assert change is not None
    assert not change.after.is_diskless


def test_a_single_replica_is_its_own_isr() -> None:
    leader = make_leader(make_partition((1,), isr=(1,)), log_end_offset=4, commits_by_chain=True)
    leader.begin_return()
    change = propose(leader)
    assert change is not None
    assert change.after.isr == (1,)


def test_the_item_forgets_chains_that_the_tier_has() -> None:
    partition = dataclasses.replace(make_partition(), wal=(CHAIN,), acked_by=AckedBy.REPLICAS)
    leader = make_leader(partition)
    assert not leader.commits_by_chain
    assert propose(leader) is None
    leader.note_chains_tiered()
    change = propose(leader)
    assert change is not None
    assert (change.after.wal, change.after.acked_by) == ((), None)
    leader.on_written(change, 0)
    assert propose(leader, 1_000) is None


class World:
    """One leader in a row of epochs; nothing fails but writes, whose outcomes come late."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.item = dataclasses.replace(make_partition(version=1), leader_epoch=5)
        self.ends = {1: 0, 2: 0, 3: 0}
        self.in_chain = 0  # the chain, or the tier, has everything below
        self.acked = 0
        self.now_ms = 0.0
        self.late: list[PartitionChange] = []  # writes that may land yet
        self.became: list[bool] = []
        self.leader = self.lead()

    def lead(self) -> LeaderState[str]:
        if self.item.is_diskless:
            assert self.in_chain >= self.ends[1]
        return LeaderState(
            self.item,
            log_end_offset=self.ends[1],
            high_watermark=self.acked,
            rules=ReplicationRules(min_insync_replicas=2, lag_time_max_ms=LAG_MS),
            now_ms=self.now_ms,
        )

    def step(self) -> None:
        self.now_ms += self.random.choice((1, 20, 400))
        often = (self.append, self.fetch, self.put, self.write)
        seldom = (self.land, self.read, self.turn, self.lose)
        action = self.random.choice((*often, *often, *seldom))
        action()
        if not self.leader.is_deposed:
            self.acked = max(self.acked, self.leader.high_watermark)
        self.check()

    def append(self) -> None:
        try:
            self.leader.require_appendable(needs_all=True)
        except NotLeaderOrFollower:
            return
        if not self.leader.is_deposed:
            self.ends[1] += self.random.randint(1, 3)
            self.leader.on_append(self.ends[1], self.now_ms)

    def fetch(self) -> None:
        follower = self.random.choice((2, 3))
        if self.leader.is_deposed:
            return
        limit = self.leader.high_watermark if self.leader.commits_by_chain else self.ends[1]
        self.ends[follower] = max(
            self.ends[follower], self.random.randint(min(self.ends[follower], limit), limit)
        )
        fetch(self.leader, follower, self.ends[follower], now_ms=self.now_ms)

    def put(self) -> None:
        counts = self.leader.commits_by_chain or self.leader.is_entering
        if counts and not self.leader.is_deposed:
            self.in_chain = self.random.randint(self.in_chain, self.ends[1])
            self.leader.on_chain_committed(self.in_chain, self.now_ms)

    def turn(self) -> None:
        """Ask for the other state."""
        leader = self.leader
        if leader.commits_by_chain:
            leader.begin_return()
        elif leader.has_left_chain:
            leader.begin_next_epoch()
        elif leader.may_enter:
            self.in_chain = self.random.randint(0, self.acked)
            chain = EpochChain(leader.leader_epoch, CHAIN.chain, self.in_chain)
            leader.begin_entering(chain)

    def lose(self) -> None:
        """Lose the chain, or the wish to be replicated."""
        if self.random.random() < 0.2:
            if self.leader.is_entering:
                self.leader.end_entering(self.now_ms)
            self.leader.end_return()

    def write(self) -> None:
        if self.leader.needs_read:
            return
        change = propose(self.leader, self.now_ms)
        if change is None:
            return
        outcome = self.random.choice(("written", "written", "unknown", "late", "refused"))
        if outcome == "refused":
            self.leader.on_refused(change, self.now_ms)
            return
        has_landed = outcome != "late" and self.apply(change)
        if outcome != "written":
            self.late += [change] if outcome == "late" else []
            self.leader.on_unknown(self.now_ms)
        elif has_landed:
            self.leader.on_written(change, self.now_ms)
        else:
            self.leader.on_conflict()

    def land(self) -> None:
        if self.late:
            self.apply(self.late.pop(self.random.randrange(len(self.late))))

    def apply(self, change: PartitionChange) -> bool:
        if change.after.version != self.item.version:
            return False
        if change.after.is_diskless != self.item.is_diskless:
            self.became.append(change.after.is_diskless)
        self.item = dataclasses.replace(change.after, version=change.after.version + 1)
        return True

    def read(self) -> None:
        if self.leader.needs_read:
            self.leader.on_read(self.item, self.now_ms)
        if self.leader.is_deposed:
            self.leader = self.lead()

    def settle(self) -> None:
        """Ask for the other state, and let nothing fail until it is there."""
        self.late.clear()
        before = self.item.is_diskless
        for _ in range(40):
            self.now_ms += 1_000
            self.read()
            self.turn()
            if self.leader.commits_by_chain or self.leader.is_entering:
                self.in_chain = self.ends[1]
                self.leader.on_chain_committed(self.in_chain, self.now_ms)
            for follower in (2, 3):
                self.ends[follower] = self.ends[1]
                fetch(self.leader, follower, self.ends[1], now_ms=self.now_ms)
            change = propose(self.leader, self.now_ms)
            if change is not None:
                assert self.apply(change)
                self.leader.on_written(change, self.now_ms)
            self.check()
            if self.item.is_diskless != before:
                return
        raise AssertionError("it was not converted")

    def check(self) -> None:
        if self.item.is_diskless:
            assert self.acked <= self.in_chain
        else:
            assert self.acked <= min(self.ends[broker_id] for broker_id in self.item.isr)
            assert len(self.item.isr) >= 2


@pytest.mark.parametrize("seed", range(60))
def test_whoever_has_to_has_all_that_was_acknowledged(seed: int) -> None:
    world = World(seed)
    for _ in range(1_500):
        world.step()
    world.settle()
    world.settle()
    assert {True, False} <= set(world.became)
    assert world.acked > 50
