"""A quota of a cluster under any demand, with messages that are lost and nodes that come and go.

Virtual time, in steps. Each node lets its clients through as the real throttle does, and nodes
report in rounds of a second, each at a moment of its own.
"""

from __future__ import annotations

import random

import pytest
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.shares import FLOOR
from tidelog_core.quotas.windowed_rate import WindowedRate
from tidelog_node.throttling.debt import Debt
from tidelog_node.throttling.quota_shares import EXPIRY_SECONDS, QuotaShares
from tidelog_node.throttling.rate_limit import RateLimit

STEP_MS = 20
QUOTA = 1_000_000.0
REQUEST_BYTES = 4_000
# Reports a second apart, an answer that is a round old, and parts that expire.
SETTLED_MS = int(EXPIRY_SECONDS * 1000) + 2_000
KEY = (QuotaKey.PRODUCER_BYTE_RATE, ("ann", ""))
RUNS = 3


@pytest.fixture(params=range(RUNS))
def seed() -> int:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return seed


class Node:
    """One node's clients, which send as much as ``demand`` and wait when they are told."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.active: list[RateLimit] = []
        self.live: frozenset[int] = frozenset()  # as this node knows
        self.shares = QuotaShares(
            broker_id, self.active, live=lambda: self.live, now=lambda: world.now_ms / 1000
        )
        meter = WindowedRate(window_count=11, size_ms=1000)
        self.limit = RateLimit(KEY, meter, self.active)
        self.demand = 0.0
        self.is_cut_off = False
        self.sent_bytes = 0
        self._wanted_bytes = 0.0
        self._debt: Debt | None = None
        self._wakes_ms = 0
        self.phase_ms = world.random.randrange(1000)

    def step(self) -> None:
        now_ms = self.world.now_ms
        if now_ms % 1000 // STEP_MS == self.phase_ms // STEP_MS:
            self.report()
        self._wanted_bytes = min(self._wanted_bytes + self.demand * STEP_MS / 1000, 10 * QUOTA)
        if self._debt is not None:
            if now_ms < self._wakes_ms:
                return
            seconds = self._debt.step_seconds()
            if seconds > 0:
                self._wakes_ms = now_ms + int(seconds * 1000)
                return
            self._debt = None
        while self._wanted_bytes >= REQUEST_BYTES:
            if not self.limit.quota:
                self.shares.set_quota(self.limit, QUOTA)
            self._wanted_bytes -= REQUEST_BYTES
            self.sent_bytes += REQUEST_BYTES
            wait_ms = self.limit.count(REQUEST_BYTES, now_ms)
            if wait_ms:
                self._debt = Debt(self.limit, wait_ms, lambda: self.world.now_ms)
                self._wakes_ms = now_ms + int(self._debt.step_seconds() * 1000)
                return

    def report(self) -> None:
        for owner, reports in self.shares.reports().items():
            node = self.world.nodes.get(owner)
            if owner == self.broker_id:
                self.shares.accept(reports, self.shares.assign(owner, reports))
            elif node is not None and self.world.delivers(self, node):
                parts = node.shares.assign(self.broker_id, reports)
                if self.world.delivers(node, self):
                    self.shares.accept(reports, parts)
        self.shares.expire()


class World:
    def __init__(self, seed: int, node_count: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.loss = 0.0
        self.nodes: dict[int, Node] = {}
        for broker_id in range(1, node_count + 1):
            self.nodes[broker_id] = Node(self, broker_id)
        self.agree()

    def agree(self) -> None:
        """Have all nodes see who lives."""
        for node in self.nodes.values():
            node.live = frozenset(self.nodes)

    def delivers(self, sender: Node, receiver: Node) -> bool:
        is_up = not sender.is_cut_off and not receiver.is_cut_off
        return is_up and self.random.random() >= self.loss

    def run(self, seconds: float) -> float:
        """Return the bytes a second that all nodes have let through."""
        before = self.sent_bytes()
        until_ms = self.now_ms + int(seconds * 1000)
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            for node in self.nodes.values():
                node.step()
        return (self.sent_bytes() - before) / seconds

    def sent_bytes(self) -> int:
        return sum(node.sent_bytes for node in self.nodes.values())

    def rates(self) -> dict[int, float]:
        """Return the parts of the nodes that have clients."""
        return {one.broker_id: one.limit.rate for one in self.nodes.values() if one.demand}


def assert_bounded(world: World) -> None:
    parts = world.rates()
    assert sum(parts.values()) <= QUOTA * (1 + FLOOR) * 1.0001, parts


def settle(world: World, seconds: float = 30) -> None:
    """Let the parts settle, then check them at every step for some time."""
    world.run(SETTLED_MS / 1000)
    for _ in range(int(seconds / 0.2)):
        world.run(0.2)
        assert_bounded(world)


def test_nodes_never_have_more_than_the_quota_and_its_floors(seed: int) -> None:
    """After any change of demand, once the reports have come round."""
    world = World(seed, node_count=world_size(seed))
    for _ in range(6):
        for node in world.nodes.values():
            node.demand = world.random.choice((0, QUOTA / 20, QUOTA / 3, QUOTA, 20 * QUOTA))
        settle(world, seconds=5)


def test_ten_times_the_quota_is_let_through_at_the_quota(seed: int) -> None:
    """Whatever nodes the clients are connected to, and nobody starves.

    As much as by one node that has the quota for itself: its mean is a little below the quota,
    because the time over which it measures is between ten and eleven seconds.
    """
    alone = World(seed, node_count=1)
    alone.nodes[1].demand = 10 * QUOTA
    alone.run(40)
    expected = alone.run(66)
    world = World(seed, node_count=world_size(seed))
    busy = world.random.sample(list(world.nodes.values()), world.random.randint(1, 2))
    for node in busy:
        node.demand = 10 * QUOTA / len(busy)
    world.run(40)  # The first ten seconds may be used at once.
    rate = world.run(66)
    assert 0.95 * expected <= rate <= 1.05 * expected
    before = {node: node.sent_bytes for node in busy}
    world.run(66)
    for node, sent_bytes in before.items():
        assert (node.sent_bytes - sent_bytes) / 66 >= 0.9 * expected / len(busy)


def test_a_node_whose_clients_come_late_gets_its_part(seed: int) -> None:
    world = World(seed, node_count=4)
    world.nodes[1].demand = 10 * QUOTA
    world.run(40)
    assert world.nodes[1].limit.rate >= 0.9 * QUOTA
    world.nodes[2].demand = QUOTA / 4
    world.run(30)
    before = world.nodes[2].sent_bytes
    world.run(30)
    assert (world.nodes[2].sent_bytes - before) / 30 >= 0.95 * QUOTA / 4
    world.nodes[2].demand = 0
    world.run(20)
    assert world.nodes[1].limit.rate >= 0.9 * QUOTA


def test_nodes_that_hear_nothing_of_each_other_have_equal_parts(seed: int) -> None:
    """A node that is cut off keeps no more than its own, and the others leave it that."""
    world = World(seed, node_count=4)
    for node in world.nodes.values():
        node.demand = 10 * QUOTA
    world.nodes[1].demand = QUOTA / 100
    world.run(30)
    world.random.choice(list(world.nodes.values())).is_cut_off = True
    settle(world)
    for node in world.nodes.values():
        node.is_cut_off = True
    settle(world)
    assert set(world.rates().values()) == {QUOTA / 4}
    for node in world.nodes.values():
        node.is_cut_off = False
    settle(world)


def test_lost_messages_and_nodes_that_come_and_go_do_not_add_to_the_quota(seed: int) -> None:
    world = World(seed, node_count=5)
    next_id = 10
    for _ in range(5):
        for node in world.nodes.values():
            node.demand = world.random.choice((0, QUOTA / 3, 10 * QUOTA))
        world.loss = world.random.choice((0, 0.2, 0.5))
        world.run(5)
        if world.random.random() < 0.5 and len(world.nodes) > 2:
            del world.nodes[world.random.choice(list(world.nodes))]
        else:
            world.nodes[next_id] = Node(world, next_id)
            next_id += 1
        world.run(1)  # Nodes do not know it yet.
        world.agree()
        world.loss = 0
        settle(world, seconds=4)
    world.run(20)
    assert world.run(66) <= 1.05 * (1 + FLOOR) * QUOTA


def world_size(seed: int) -> int:
    return 2 + seed % 7
