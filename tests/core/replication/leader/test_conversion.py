"""A partition becomes diskless and replicated again, whatever comes in between.

A leader, its followers, its chain and the item's store take turns as a seed says. At every moment the
item says who must have all that was acknowledged: the chain or the tier, or every replica of the ISR.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from uuid import UUID

import pytest
from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.records import AckedBy
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.leader.conversion import RETRY_MS
from tidelog_core.replication.leader.leader_state import LeaderState
from tidelog_core.replication.leader.rules import ReplicationRules

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
    leader.require_appendable(needs_all=True)  # It has not heard of them.
    for follower in (2, 3):
        fetch(leader, follower, 5)
    assert propose(leader) is None
    with pytest.raises(NotLeaderOrFollower):
        leader.require_appendable(needs_all=True)
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


def test_a_follower_that_has_not_seen_that_the_partition_is_diskless_does_not_count() -> None:
    """Once it sees that, it cuts its log where it knows no commit."""
    leader = make_leader(log_end_offset=10, high_watermark=10)
    leader.begin_entering(CHAIN)
    leader.on_chain_committed(10, 0)
    for follower in (2, 3):
        fetch(leader, follower, 10)
    change = propose(leader)
    assert change is not None
    leader.on_written(change, 100)
    leader.begin_return()
    assert propose(leader, 100) is None
    fetch(leader, 2, 10, now_ms=110, is_fed=True)
    fetch(leader, 3, 10, now_ms=110, is_fed=False)
    change = propose(leader, 110)
    assert change is None
    leader.require_appendable(needs_all=True)
    assert propose(leader, LAG_MS) is None
    leader.require_appendable(needs_all=True)
    fetch(leader, 3, 10, now_ms=LAG_MS, is_fed=True)
    change = propose(leader, LAG_MS)
    assert change is not None
    assert not change.after.is_diskless
    assert set(change.after.isr) == {1, 2, 3}


def test_a_follower_that_sees_the_item_before_its_leader_need_not_say_so_again() -> None:
    """Its session names a partition only when its position changes: of an idle one never."""
    leader = make_leader(log_end_offset=10, high_watermark=10)
    leader.begin_entering(CHAIN)
    leader.on_chain_committed(10, 0)
    for follower in (2, 3):
        fetch(leader, follower, 10)
    change = propose(leader)
    assert change is not None
    leader.on_unknown(0)
    fetch(leader, 2, 10, now_ms=50, is_fed=True)
    leader.on_read(dataclasses.replace(change.after, version=change.after.version + 1), 100)
    assert leader.commits_by_chain
    leader.begin_return()
    assert propose(leader, 1_000) is None
    fetch(leader, 3, 10, now_ms=1_100, is_fed=True)
    back = propose(leader, 1_100)
    assert back is not None
    assert set(back.after.isr) == {1, 2, 3}


def test_a_follower_that_becomes_diskless_is_not_out_of_sync_for_that() -> None:
    leader = make_leader(log_end_offset=10, high_watermark=10)
    leader.begin_entering(CHAIN)
    leader.on_chain_committed(10, 0)
    for follower in (2, 3):
        fetch(leader, follower, 10)
    change = propose(leader)
    assert change is not None
    leader.on_written(change, 100)
    assert propose(leader, LAG_MS) is None
    left = propose(leader, 2 * LAG_MS)
    assert left is not None
    assert left.after.isr == (1,)


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
        self.history = [self.item]
        self.ends = {1: 0, 2: 0, 3: 0}
        # What the followers know: the item, as one that is not older than before, and what is
        # committed.
        self.known = {2: 0, 3: 0}
        self.known_end = {2: 0, 3: 0}
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
        often = (self.append, self.fetch, self.put, self.write, self.look)
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
        self.fetch_for(self.random.choice((2, 3)))

    def fetch_for(self, follower: int, *, has_all: bool = False) -> None:
        """Let the follower get some records more, then say where it is."""
        seen = self.history[self.known[follower]]
        leader = self.leader
        if leader.is_deposed or seen.leader_epoch != leader.leader_epoch:
            return
        committed = leader.high_watermark
        # Before it has seen that the partition is diskless it takes what it is sent.
        is_sent = not (seen.is_diskless or leader.commits_by_chain)
        limit = committed if seen.is_diskless else self.ends[1] if is_sent else 0
        end = self.ends[follower]
        if end < limit:
            self.ends[follower] = limit if has_all else self.random.randint(end, limit)
        at = self.ends[follower]
        known = min(at, committed)
        if not has_all:
            known = self.random.randint(min(self.known_end[follower], known), known)
        self.known_end[follower] = max(self.known_end[follower], known)
        if seen.is_diskless:
            at = self.ends[follower] = self.known_end[follower]
        fetch(leader, follower, at, now_ms=self.now_ms, is_fed=seen.is_diskless)

    def look(self) -> None:
        self.look_for(self.random.choice((2, 3)))

    def look_for(self, follower: int, *, at_newest: bool = False) -> None:
        """Let the follower see the item, or an older one. It cuts what it has to fetch again."""
        last = len(self.history) - 1
        before = self.known[follower]
        after = last if at_newest else self.random.randint(before, last)
        was, sees = self.history[before], self.history[after]
        self.known[follower] = after
        if sees.is_diskless and not was.is_diskless:
            self.ends[follower] = min(self.ends[follower], self.known_end[follower])

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
        self.history.append(self.item)
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
                self.look_for(follower, at_newest=True)
                self.fetch_for(follower, has_all=True)
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


def just_diskless() -> World:
    """Return a world that became diskless, and whose followers know of half of the commits."""
    world = World(0)
    world.ends = dict.fromkeys(world.ends, 10)
    world.leader.on_append(10, 0)
    world.leader.begin_entering(CHAIN)
    world.in_chain = 10
    world.leader.on_chain_committed(10, 0)
    for follower in (2, 3):
        fetch(world.leader, follower, 10)
        world.known_end[follower] = 5
    world.acked = world.leader.high_watermark
    assert world.acked == 10
    write(world)
    assert world.item.is_diskless
    world.leader.begin_return()
    return world


def write(world: World) -> None:
    change = None if world.leader.is_deposed else propose(world.leader)
    if change is not None:
        assert world.apply(change)
        world.leader.on_written(change, 0)


def fetch_next(world: World, follower: int) -> None:
    """Let the follower fetch. One that reads the bucket gets all that is committed."""
    world.fetch_for(follower, has_all=world.history[world.known[follower]].is_diskless)


def look_next(world: World, follower: int) -> None:
    """Let the follower see the item's next version."""
    last = len(world.history) - 1
    newer, world.history = world.history, world.history[: world.known[follower] + 2]
    world.look_for(follower, at_newest=True)
    world.history = newer
    assert world.known[follower] <= last


def test_in_no_order_of_news_and_fetches_a_replica_counts_that_lacks_what_was_acknowledged() -> (
    None
):
    actions = (
        write,
        lambda world: fetch_next(world, 2),
        lambda world: fetch_next(world, 3),
        lambda world: look_next(world, 2),
        lambda world: look_next(world, 3),
    )
    returned = 0
    for order in itertools.product(actions, repeat=5):
        world = just_diskless()
        for action in order:
            action(world)
            world.check()
        returned += not world.item.is_diskless
        for follower in (2, 3):
            look_next(world, follower)
            world.check()
    assert returned > 0


@pytest.mark.parametrize("seed", range(60))
def test_every_possible_leader_has_all_acknowledged_records(seed: int) -> None:
    world = World(seed)
    for _ in range(1_500):
        world.step()
    world.settle()
    world.settle()
    assert {True, False} <= set(world.became)
    assert world.acked > 50
