"""Who leads after somebody died, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.records import broker_lease_key, check, put
from tidelog_core.metadata.store import COMMIT_WRITES_MAX, Check, Write
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, NO_LEADER
from tidelog_node.membership import election_round

from tests.node.membership.virtual_cluster import (
    LEASE_S,
    Link,
    Member,
    VirtualCluster,
    virtual_cluster,
)
from tests.support.virtual_time import VirtualTimeLoop, run

OFFSETS = CONSUMER_OFFSETS_TOPIC


async def until_led(
    cluster: VirtualCluster, topic: str, leaders: set[int], seconds: float
) -> float:
    """Wait until only these lead; return how long that took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not set(await cluster.leaders(topic)) <= leaders:
        assert loop.time() - started < seconds, await cluster.leaders(topic)
        await asyncio.sleep(0.05)
    return loop.time() - started


def test_a_dead_leaders_partitions_are_led_again_within_12_seconds(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=6)
            await asyncio.sleep(3)
            before = await cluster.partitions("t")
            await cluster[1].kill()
            assert await until_led(cluster, "t", {2, 3}, 12) > LEASE_S - 3
            for old, new in zip(before, await cluster.partitions("t"), strict=True):
                if old.leader != 1:
                    assert new.leader == old.leader
                    continue
                assert new.leader == next(b for b in old.replicas if b != 1)
                assert new.leader_epoch == old.leader_epoch + 1
                assert new.isr == tuple(b for b in old.isr if b != 1)

    run(main())


def test_a_lease_of_2_seconds_gives_new_leaders_within_3(tmp_path: Path) -> None:
    async def main() -> None:
        config = NodeConfig(broker_session_timeout_ms=2000)
        async with virtual_cluster(tmp_path, config=config) as cluster:
            await cluster.create("t", partitions=6)
            await asyncio.sleep(3)
            await cluster[2].kill()
            await until_led(cluster, "t", {1, 3}, 3)

    run(main())


def test_a_thousand_partitions_cost_a_dozen_transactions(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=1000, leader=1)
            await asyncio.sleep(3)
            await cluster[1].kill()
            await asyncio.sleep(LEASE_S + 5)
            leaders = await cluster.leaders("t")
            assert set(leaders) == {2, 3}
            takeovers = [c for c in cluster.store.commits if c[0].id.collection.startswith("part")]
            takeovers = [c for c in takeovers if c[0].is_logged]
            assert len(takeovers) <= 2 * (1000 // (COMMIT_WRITES_MAX - 3) + 1)

    run(main())


def test_one_node_takes_over_for_all_heirs_of_a_lost_zone(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=9, racks=3) as cluster:
            for first in (1, 4, 7):
                await cluster.create(f"t{first}", partitions=9, replicas=range(first, first + 3))
            await asyncio.sleep(3)
            committed = len(cluster.store.commits)
            for broker_id in (1, 4, 7):
                await cluster[broker_id].kill()
            for first in (1, 4, 7):
                await until_led(cluster, f"t{first}", {first + 1, first + 2}, 12)
            takeovers = [
                writes
                for writes in cluster.store.commits[committed:]
                if any(w.is_logged and w.id.collection.startswith("part") for w in writes)
            ]
            # Their leases end one after the other, so it is one for each of the dead at most.
            assert len(takeovers) <= 3
            # With it went what the leaders that live would have written each for itself.
            for first in (1, 4, 7):
                for found in await cluster.partitions(f"t{first}"):
                    assert set(found.isr) == {first + 1, first + 2}
            # Those that it has named lead, without having written anything.
            await asyncio.sleep(1)
            for first in (1, 4, 7):
                for found in await cluster.partitions(f"t{first}"):
                    assert cluster[found.leader].leads(f"t{first}", found.partition)
                    assert (found.leader_epoch == 1) == (found.replicas[0] == first)

    run(main())


def test_takeovers_do_not_wait_for_all_the_isrs_that_lose_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election_round, "ISR_SHRINKS_PER_ROUND_MAX", 2)

    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("led", partitions=20, leader=2)
            await cluster.create("t", partitions=3)
            await asyncio.sleep(3)
            committed = len(cluster.store.commits)
            await cluster[3].kill()
            await until_led(cluster, "t", {1, 2}, 12)
            await asyncio.sleep(1)
            assert all(set(p.isr) == {1, 2} for p in await cluster.partitions("led"))
            first, *others = (
                writes
                for writes in cluster.store.commits[committed:]
                if any(w.is_logged and w.id.collection.startswith("part") for w in writes)
            )
            assert any(w.body is not None and w.body["leader_epoch"] == 1 for w in first)
            assert [len(writes) for writes in (first, *others)] == [3] + [2] * 10

    run(main())


def test_the_next_in_line_steps_in_where_the_first_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=1)
            await asyncio.sleep(3)
            # 2 lives and sees, but cannot write partitions.
            commit_through(cluster[2], _Unwritable())
            await cluster[1].kill()
            # 3 names it all the same: it lives.
            seconds = await until_led(cluster, "t", {2}, LEASE_S + 3)
            assert seconds > LEASE_S - 3 + 1

    run(main())


def test_the_next_of_those_that_write_for_others_steps_in_without_the_heirs(
    tmp_path: Path,
) -> None:
    """Successors of a large cluster read the leases too seldom to step in."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=5) as cluster:
            await cluster.create("t", partitions=3, replicas=(4, 5), leader=4)
            await cluster.create("led", partitions=3, replicas=(5, 4), leader=5)
            await asyncio.sleep(3)
            for broker_id in (1, 5):
                commit_through(cluster[broker_id], _Unwritable())
            await cluster[4].kill()
            await until_led(cluster, "t", {5}, LEASE_S + 2)
            await asyncio.sleep(0.1)
            assert {p.isr for p in await cluster.partitions("led")} == {(5,)}

    run(main())


def test_who_drains_is_passed_over_by_those_that_write_for_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=5) as cluster:
            await cluster.create("t", partitions=3, replicas=(4, 5), leader=4)
            await asyncio.sleep(3)
            await cluster[1].member.drain()
            await cluster[1]._end(cluster[1]._tasks[cluster[1]._leading_from :])
            await asyncio.sleep(4)
            assert cluster[2].membership.is_live(1)
            died_ms: list[float] = []
            loop = asyncio.get_running_loop()
            cluster[2].membership.subscribe(lambda: died_ms.append(loop.time()))
            await cluster[4].kill()
            await until_led(cluster, "t", {5}, LEASE_S + 2)
            assert loop.time() - died_ms[-1] < 0.5

    run(main())


def test_nobody_steps_in_while_the_one_that_writes_gets_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=5) as cluster:
            await cluster.create("t", partitions=500, replicas=(4, 5), leader=4)
            await asyncio.sleep(3)
            others = {b: _Unwritable() for b in (2, 3, 5)}
            for broker_id, store in others.items():
                commit_through(cluster[broker_id], store)
            slow = _Slow(cluster[1].link)
            commit_through(cluster[1], slow)
            await cluster[4].kill()
            seconds = await until_led(cluster, "t", {5}, LEASE_S + 12)
            assert seconds > LEASE_S - 3 + 6 * 0.7 - 1
            assert {b: store.commits for b, store in others.items()} == {2: 0, 3: 0, 5: 0}

    run(main())


def commit_through(node: Member, store: object) -> None:
    """Have the node's elections commit through another store."""
    elections = node.member._elections
    elections._node = replace(elections._node, store=store)


class _Slow:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def commit(self, *writes: Sequence[Write], **checks: Sequence[Check]) -> None:
        await asyncio.sleep(0.7)
        await self._link.commit(*writes, **checks)


class _Late:
    """Commits of node 2, before the first of which node 1 renews."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self.commits = 0

    async def commit(self, *writes: Sequence[Write], **checks: Sequence[Check]) -> None:
        self.commits += 1
        if self.commits == 1:
            item = await self._cluster.store.get(broker_lease_key(1))
            assert item is not None
            renewed = Write(item.id, item.body, item.version, is_logged=False)
            await self._cluster.store.commit([renewed])
        await self._cluster[2].link.commit(*writes, **checks)


class _Unwritable:
    def __init__(self) -> None:
        self.commits = 0

    async def commit(self, *_: object, **__: object) -> None:
        self.commits += 1
        await asyncio.sleep(3600)


def test_a_leader_that_renewed_after_all_keeps_its_partition(tmp_path: Path) -> None:
    """The takeover is checked against the lease, not against what was read of it."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            await cluster.create("t", partitions=1, replicas=(1, 2))
            await asyncio.sleep(3)
            loop = asyncio.get_running_loop()
            cluster[1].link.is_cut = True
            while not cluster[2].membership.peers.is_dead(1):
                # Its elections look a moment later than it sees the death: renew in between.
                cluster[2].link.delay_s = 1
                await asyncio.sleep(0.01)
                assert loop.time() < 1100
            cluster[1].link.is_cut = False
            await asyncio.sleep(5)
            assert await cluster.leaders("t") == [1]
            assert cluster[1].leads("t", 0)

    run(main())


def test_takeovers_whose_leader_lives_are_sent_once(tmp_path: Path) -> None:
    """One lost check tells of all of them, until the lease has been read again."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            await cluster.create("t", partitions=500, replicas=(1, 2), leader=1)
            await asyncio.sleep(3)
            await cluster[1].kill()
            late = _Late(cluster)
            commit_through(cluster[2], late)
            await asyncio.sleep(LEASE_S + 2)
            assert late.commits == 1
            assert await cluster.leaders("t") == [1] * 500
            # Where it dies after all, nothing has been forgotten.
            await until_led(cluster, "t", {2}, LEASE_S + 3)

    run(main())


def test_a_follower_that_renewed_after_all_stays_in_the_isr(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            await cluster.create("t", partitions=5, replicas=(2, 1), leader=2)
            await asyncio.sleep(3)
            await cluster[1].kill()
            late = _Late(cluster)
            commit_through(cluster[2], late)
            await asyncio.sleep(LEASE_S + 2)
            assert late.commits == 1
            assert {p.isr for p in await cluster.partitions("t")} == {(2, 1)}
            # Where it dies after all, nothing has been forgotten. It was late, so it gets more time.
            extra_ms = cluster[2].membership.peers.extra_ms(1)
            times = cluster[2].membership.times
            assert times.lease_ms < times.suspicion_ms + extra_ms < times.lease_ms + 2_000
            await asyncio.sleep((times.suspicion_ms + extra_ms) / 1000)
            assert {p.isr for p in await cluster.partitions("t")} == {(2,)}

    run(main())


def test_without_a_live_member_of_the_isr_the_partition_waits_for_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=1, isr=(1,))
            await asyncio.sleep(3)
            await cluster[1].kill()
            await asyncio.sleep(60)
            assert await cluster.leaders("t") == [1]
            await cluster[1].start(was_clean=False)
            assert cluster[1].leads("t", 0)
            assert (await cluster.partitions("t"))[0].leader_epoch == 1

    run(main())


def test_a_topic_may_prefer_a_leader_that_lacks_records_to_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=1, isr=(1,), unclean_leader_election_enable="true")
            await asyncio.sleep(3)
            await cluster[1].kill()
            await until_led(cluster, "t", {2}, 12)
            (partition,) = await cluster.partitions("t")
            assert (partition.isr, partition.leader_epoch) == ((2,), 1)

    run(main())


def test_a_node_leads_again_one_epoch_on_after_every_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            await cluster.create("t", partitions=3, replicas=(1,))
            await asyncio.sleep(1)
            for epoch in range(1, 4):
                await cluster[1].kill()
                await cluster[1].start(was_clean=False)
                assert {p.leader_epoch for p in await cluster.partitions("t")} == {epoch}
                assert all(cluster[1].leads("t", number) for number in range(3))

    run(main())


def test_a_node_that_may_have_lost_records_leaves_the_isr_before_it_comes_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=3)
            await cluster.create("alone", partitions=1, replicas=(1,))
            await asyncio.sleep(1)
            await cluster[1].kill()
            (cluster[1].folder / "run").write_text("")
            await cluster[1].start(was_clean=False)
            assert {p.isr for p in await cluster.partitions("t")} == {(2, 3)}
            assert cluster[1].leads("alone", 0)
            await until_led(cluster, "t", {2, 3}, 1)

    run(main())


def test_a_node_that_may_have_lost_records_leaves_what_let_it_in_before_it_registered(
    tmp_path: Path,
) -> None:
    """A leader's write that waited for the store counts on records of before the loss."""

    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=1, isr=(1, 2), leader=1)
            await asyncio.sleep(1)
            await cluster[3].kill()
            (cluster[3].folder / "run").write_text("")
            (partition,) = await cluster.partitions("t")
            registered = cluster[1].view.image.brokers[3]
            joining: list[asyncio.Task[None]] = []

            def let_it_in(writes: Sequence[Write]) -> None:
                if not joining and writes[0].id == broker_lease_key(3):
                    joined = dataclasses.replace(partition, isr=(1, 2, 3))
                    late = cluster.store.commit([put(joined)], checks=[check(registered)])
                    joining.append(asyncio.get_running_loop().create_task(late))

            cluster.store.on_commit = let_it_in
            await cluster[3].start(was_clean=False)
            assert joining[0].done()
            assert joining[0].exception() is None
            assert [p.isr for p in await cluster.partitions("t")] == [(1, 2)]

    run(main())


def test_a_fenced_node_takes_nothing_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            await cluster.create("t", partitions=1, replicas=(1, 2))
            await asyncio.sleep(3)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            await cluster[1].kill()
            cluster[2].link.is_cut = True
            await asyncio.sleep(LEASE_S)
            assert not cluster[2].can_serve
            assert await cluster[2].member._elections.round() == 0
            cluster[2].link.is_cut = False
            await until_led(cluster, "t", {2}, LEASE_S + 3)

    run(main())


def test_one_partition_that_changed_does_not_keep_the_others_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            await cluster.create("t", partitions=50, replicas=(1, 2), leader=1)
            await asyncio.sleep(3)
            await cluster[1].kill()
            # Node 2 does not hear of this one any more, but of leases.
            cluster[2].view.refresh = _nothing  # type: ignore[method-assign]
            seventh = (await cluster.partitions("t"))[7]
            await cluster.store.commit([put(dataclasses.replace(seventh, log_start_offset=5))])
            await asyncio.sleep(LEASE_S + 3)
            leaders = await cluster.leaders("t")
            assert [number for number, leader in enumerate(leaders) if leader == 1] == [7]

    run(main())


async def _nothing() -> None:
    await asyncio.sleep(0.1)


def test_a_started_node_waits_a_moment_for_those_that_start_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=3)
            await asyncio.sleep(3)
            for member in cluster:  # stopped together, as by one parent
                await member.kill()
                await member.member.leave()
            await asyncio.sleep(60)
            for member in cluster:
                await member.start()
                await asyncio.sleep(0.3)
            await asyncio.sleep(5)
            assert await cluster.leaders("t") == [1, 2, 3]
            assert all(member.leads("t", member.broker_id - 1) for member in cluster)

    run(main())


# -- leaderships that go back, leave, or carry no records --


def test_preferred_leaders_get_their_partitions_back_when_they_have_proved_stable(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create(OFFSETS, partitions=3)
            await asyncio.sleep(3)
            await cluster[1].kill()
            await until_led(cluster, OFFSETS, {2, 3}, 12)
            await cluster[1].start()
            await asyncio.sleep(280)
            assert 1 not in await cluster.leaders(OFFSETS)
            await asyncio.sleep(40)
            assert await cluster.leaders(OFFSETS) == [1, 2, 3]

    run(main())


def test_rebalancing_can_be_switched_off(tmp_path: Path) -> None:
    async def main() -> None:
        config = NodeConfig(
            auto_leader_rebalance_enable=False, leader_imbalance_check_interval_seconds=1
        )
        async with virtual_cluster(tmp_path, config=config) as cluster:
            await cluster.create(OFFSETS, partitions=3)
            await asyncio.sleep(3)
            await cluster[1].kill()
            await until_led(cluster, OFFSETS, {2, 3}, 12)
            await cluster[1].start()
            await asyncio.sleep(60)
            assert 1 not in await cluster.leaders(OFFSETS)

    run(main())


def test_a_node_that_stops_hands_over_what_others_can_lead(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create(OFFSETS, partitions=6)
            await cluster.create("t", partitions=100, leader=1)
            await cluster.create("alone", partitions=1, replicas=(1,))
            await asyncio.sleep(3)
            started = asyncio.get_running_loop().time()
            await cluster[1].stop()
            assert asyncio.get_running_loop().time() - started < 1
            for topic in (OFFSETS, "t"):
                for partition in await cluster.partitions(topic):
                    assert partition.leader in (2, 3)
            assert await cluster.leaders("alone") == [1]
            await cluster[1].start()
            assert cluster[1].leads("alone", 0)

    run(main())


def test_draining_ends_in_time_with_a_store_that_does_not_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create("t", partitions=3)
            await asyncio.sleep(1)
            cluster[1].link.delay_s = 3600
            started = asyncio.get_running_loop().time()
            await cluster[1].stop()
            assert asyncio.get_running_loop().time() - started < 15

    run(main())


def test_every_live_replica_of_a_reserved_topic_is_in_sync(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create(OFFSETS, partitions=6)
            await asyncio.sleep(3)
            await cluster[3].kill()
            await until_led(cluster, OFFSETS, {1, 2}, 12)
            await asyncio.sleep(3)
            assert {frozenset(p.isr) for p in await cluster.partitions(OFFSETS)} == {
                frozenset({1, 2})
            }
            await cluster[3].start()
            await asyncio.sleep(3)
            assert all(set(p.isr) == {1, 2, 3} for p in await cluster.partitions(OFFSETS))

    run(main())


def test_a_reserved_topic_gets_more_replicas_when_there_are_more_brokers(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            await cluster.create(OFFSETS, partitions=6, replicas=(1,))
            await asyncio.sleep(3)
            for broker_id in (2, 3, 4):
                await cluster.add(broker_id)
            await asyncio.sleep(3)
            partitions = await cluster.partitions(OFFSETS)
            assert {len(p.replicas) for p in partitions} == {3}
            assert {b for p in partitions for b in p.replicas} == {1, 2, 3, 4}
            await cluster[1].kill()
            await until_led(cluster, OFFSETS, {2, 3, 4}, 12)

    run(main())


def test_a_reserved_topic_is_led_by_any_live_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await cluster.create(OFFSETS, partitions=3)
            await asyncio.sleep(3)
            await cluster[1].kill()
            await cluster[2].kill()
            await until_led(cluster, OFFSETS, {3}, 14)
            assert NO_LEADER not in await cluster.leaders(OFFSETS)

    run(main())
