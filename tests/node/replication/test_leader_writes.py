"""Which partitions are looked at for followers that drop out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog_core import turns
from tidelog_core.admin.topics.topic_admin import TopicAdmin
from tidelog_core.admin.topics.topic_plans import NewTopic
from tidelog_core.replication.leases.election_coordinators import ISR_SHRINK_DELAY_MS
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_node.replication.leader_writes import LeaderWrites
from tidelog_node.upkeep.log_changes import LogChanges

from tests.node.replication.led_node import LedNode, led_node
from tests.support.loop_turns import loop_turns
from tests.support.node_context import Alone
from tests.support.replication_cluster import make_lease

LAG_MS = 30_000  # as the setting has it by default
LEASE_MS = 9_000
SETTLE_SECONDS = 20.0
STEP_MS = 60  # more than between two looks
WIDE_COUNT = 300
LONGEST_SHARE_MAX = 0.2  # of the time that all turns take
LONG_STEP_MS = 1_500  # less than what would count as a pause of the process


class WatchedPeers(Alone):
    """Peers whose leases a test sets; this node may always serve."""

    def __init__(self, node: LedNode) -> None:
        super().__init__(now_ms=lambda: node.now_ms)
        self.peers = PeerLeases(LeaseTimes(lease_ms=LEASE_MS, renew_ms=3_000))

    def observe(self, *counters: int) -> None:
        """Read the leases of brokers 2 and 3, which have been renewed so often."""
        leases = [make_lease(2 + index, counter) for index, counter in enumerate(counters)]
        now_ms = self.now_ms()
        self.peers.observe(leases, started_ms=now_ms, now_ms=now_ms)
        self.changed.notify()


class Leading:
    """A leader whose followers fetch by hand. Made by ``leading``."""

    def __init__(self, node: LedNode) -> None:
        self.node = node
        self.membership = WatchedPeers(node)
        self.writes = LeaderWrites(
            replace(node.context, membership=self.membership),
            replicas=node.replicas,
            lag_time_max_ms=200,  # Only how often is looked hangs on it.
        )
        self.changes = LogChanges(node.replicas, unchanged_count=0)
        self.changes.subscribe(self.writes.on_changed)

    async def fetch(self) -> None:
        """Let both followers fetch, from the log's end."""
        end_offset = self.node.replica().log.log_end_offset
        for follower in (2, 3):
            await self._fetch(follower, end_offset)

    async def _fetch(self, follower: int, offset: int) -> None:
        answer = self.node.read(offset, replica_id=follower)
        if asyncio.isfuture(answer):
            await answer

    async def step(self, ms: int = STEP_MS) -> None:
        """Let time go by, and a look."""
        self.node.now_ms += ms
        await asyncio.sleep(0.06)
        await self.node.view.refresh()

    async def until(self, condition: Callable[[], bool], *, step_ms: int = STEP_MS) -> None:
        """Let time go by until the condition holds."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while not condition():
                await self.step(step_ms)

    def isr(self) -> tuple[int, ...]:
        found = self.node.view.image.partition(self.node.replica().partition)
        assert found is not None
        return found.isr

    def is_at_rest(self) -> bool:
        return not self.writes._restless and not self.writes._due


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[Leading]:
    async with led_node(folder) as node:
        await node.create_topic()
        one = Leading(node)
        one.membership.observe(1, 1)
        running = asyncio.create_task(one.writes.run())
        await one.fetch()
        one.changes.publish()
        await one.until(one.is_at_rest)
        yield one
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_follower_that_stops_leaves_the_isr_once_it_lacks_something_for_long(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as one:
        one.node.send(b"x", acks=1)
        one.changes.publish()
        await one._fetch(2, 1)
        for _ in range(LAG_MS // LONG_STEP_MS - 1):
            await one.step(LONG_STEP_MS)
        assert one.isr() == (1, 2, 3)
        await one.until(lambda: one.isr() == (1, 2), step_ms=LONG_STEP_MS)
        await one.until(one.is_at_rest)


async def test_a_dead_follower_leaves_the_isr_of_a_partition_at_rest(tmp_path: Path) -> None:
    async with leading(tmp_path) as one:
        one.node.now_ms += LEASE_MS
        one.membership.observe(2, 1)
        await one.step()
        await one.writes.check([one.node.replica()])
        assert one.isr() == (1, 2, 3)  # Another node is left the time to write it.
        one.node.now_ms += ISR_SHRINK_DELAY_MS
        one.membership.observe(2, 1)
        await one.until(lambda: one.isr() == (1, 2))


async def test_a_partition_at_rest_is_not_looked_at(tmp_path: Path) -> None:
    async with leading(tmp_path) as one:
        for _ in range(4):
            await one.step(LONG_STEP_MS)
            assert one.is_at_rest()
        assert one.isr() == (1, 2, 3)
        one.node.send(b"x", acks=1)
        one.changes.publish()
        assert not one.is_at_rest()
        await one.fetch()
        await one.until(one.is_at_rest)


async def test_a_follower_that_has_less_than_before_disturbs_a_partition_at_rest(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as one:
        one.node.send(b"x", acks=1)
        one.changes.publish()
        await one.fetch()
        await one.until(one.is_at_rest)
        await one._fetch(2, 0)
        assert not one.is_at_rest()
        await one.until(lambda: one.isr() == (1, 3), step_ms=LONG_STEP_MS)


async def test_partitions_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    async with leading(tmp_path) as one:
        one.node.send(b"x", acks=1)
        one.changes.publish()
        assert not one.is_at_rest()
        await one.node.delete_topic()
        await one.until(one.is_at_rest)


async def test_no_turn_of_the_loop_is_about_all_partitions_that_a_dead_node_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)

    async with led_node(tmp_path) as node:
        assignments = [(number, (1, 2, 3)) for number in range(WIDE_COUNT)]
        admin = TopicAdmin(store=node.store, view=node.view, node_config=lambda: node.config)
        await admin.create_topic(NewTopic(name="wide", assignments=assignments))
        led = list(node.replicas.replicas())
        one = Leading(node)
        await one.until(lambda: all(replica.is_leader for replica in led))
        one.membership.observe(1, 1)
        node.now_ms += 2 * LEASE_MS
        one.membership.observe(2, 1)
        node.now_ms += ISR_SHRINK_DELAY_MS  # Another node is left the time to write it.
        one.membership.observe(2, 1)
        with loop_turns() as seen:
            await one.writes.check(led)
        await node.view.refresh()
        assert {p.isr for p in node.view.image.partitions("wide")} == {(1, 2)}
        share = seen.longest_seconds / seen.total_seconds
        print(f"{seen.longest_seconds * 1000:.1f} ms, {share:.2%}")
        assert share < LONGEST_SHARE_MAX, seen.longest
