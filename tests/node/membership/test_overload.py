"""Brokers that are late and alive keep what they lead, once others have learnt how late they are."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.records import Partition
from tidelog_node.membership.diskless_spreading import BALANCE_AFTER_MS

from tests.node.membership.virtual_cluster import LEASE_S, VirtualCluster, virtual_cluster
from tests.support.virtual_time import run

STAYS = NodeConfig(auto_leader_rebalance_enable=False)
OTHERS = 2, 3


async def create(cluster: VirtualCluster) -> None:
    """Give each broker a replicated partition, and a diskless one."""
    await cluster.create("replicated", partitions=3)
    for leader in (1, 2, 3):
        name = f"diskless-{leader}"
        await cluster.create(name, partitions=1, replicas=(leader,), diskless_enable="true")
    await asyncio.sleep(6)  # They renew every second by then.


async def partitions(cluster: VirtualCluster) -> list[Partition]:
    names = ("replicated", "diskless-1", "diskless-2", "diskless-3")
    return [partition for name in names for partition in await cluster.partitions(name)]


def terms(found: list[Partition]) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(one.leader, one.leader_epoch, one.isr) for one in found]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_nobody_takes_anything_from_others_after_a_lock_that_kept_all_from_renewing(
    tmp_path: Path, first: int
) -> None:
    """As when another process holds SQLite's lock for longer than a lease: reads are answered."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            before = terms(await partitions(cluster))
            for _ in range(3):
                for member in cluster:
                    member.link.unlocked.clear()
                await asyncio.sleep(LEASE_S + 3)
                assert not any(member.can_serve for member in cluster)
                cluster[first].link.unlocked.set()
                await asyncio.sleep(1)
                assert cluster[first].can_serve
                for member in cluster:
                    member.link.unlocked.set()
                await asyncio.sleep(3)
                assert all(member.can_serve for member in cluster)
            assert terms(await partitions(cluster)) == before
            assert not any(member.counters.wrong_suspicion_count for member in cluster)

    run(main())


def test_nobody_takes_anything_from_others_after_an_outage_of_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            before = terms(await partitions(cluster))
            for member in cluster:
                member.link.is_cut = True
            await asyncio.sleep(60)
            for broker_id in (3, 1, 2):
                cluster[broker_id].link.is_cut = False
                await asyncio.sleep(0.7)
            await asyncio.sleep(LEASE_S)
            assert terms(await partitions(cluster)) == before

    run(main())


def test_a_broker_that_was_suspected_wrongly_is_suspected_later_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="tidelog_node.membership.peer_watch")

    async def be_late(cluster: VirtualCluster, seconds: float) -> int:
        """Keep broker 1 from the store; return who leads its diskless partition after that."""
        cluster[1].link.is_cut = True
        await asyncio.sleep(seconds)
        (found,) = await cluster.partitions("diskless-1")
        cluster[1].link.is_cut = False
        await asyncio.sleep(3)
        return found.leader

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            # Nothing can be seen at its port.
            for other in OTHERS:
                cluster[other].ports.dropped.add(1)
            assert await be_late(cluster, 6) in OTHERS
            assert [cluster[b].counters.wrong_suspicion_count for b in (1, *OTHERS)] == [0, 1, 1]
            said = "broker was suspected wrongly"
            (record, _) = [r for r in caplog.records if r.getMessage() == said]
            assert record.levelno == logging.WARNING
            assert vars(record)["broker_id"] == 1
            assert vars(record)["silent_ms"] >= cluster[1].membership.times.suspicion_ms
            assert vars(record)["extra_ms"] >= cluster[1].membership.times.brisk_renew_ms
            (found,) = await cluster.partitions("diskless-1")
            await cluster.lead(found, 1)
            await asyncio.sleep(5)
            assert await be_late(cluster, 6) == 1
            assert [cluster[b].counters.wrong_suspicion_count for b in (1, *OTHERS)] == [0, 1, 1]

    run(main())


def test_a_broker_that_was_suspected_wrongly_and_is_killed_later_is_missed_as_soon_as_any(
    tmp_path: Path,
) -> None:
    """Its port refuses: that needs no timeout."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            for _ in range(2):
                cluster[1].link.is_cut = True
                await asyncio.sleep(20)
                cluster[1].link.is_cut = False
                await asyncio.sleep(3)
                (found,) = await cluster.partitions("diskless-1")
                await cluster.lead(found, 1)
                await asyncio.sleep(5)
            times = cluster[2].membership.times
            assert cluster[2].membership.peers.extra_ms(1) == times.extra_ms_max
            began = loop.time()
            await cluster[1].kill()
            while (await cluster.leaders("diskless-1"))[0] == 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert loop.time() - began < 0.6

    run(main())


def test_leads_are_spread_later_while_a_broker_gets_more_time(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster)
            for other in (1, 3):
                cluster[other].ports.dropped.add(2)
            await cluster.create("t", partitions=9, replicas=(1,), diskless_enable="true")
            cluster[2].link.is_cut = True
            await asyncio.sleep(6)
            cluster[2].link.is_cut = False
            await asyncio.sleep(1.5)
            assert cluster[1].counters.wrong_suspicion_count == 1
            extra_ms = cluster[1].membership.peers.extra_ms(2)
            assert extra_ms > 1_500
            await asyncio.sleep(BALANCE_AFTER_MS / 1000)
            assert 2 not in await cluster.leaders("t")
            began = loop.time()
            while 2 not in await cluster.leaders("t"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert loop.time() - began < extra_ms / 1000 + 2

    run(main())
