"""Diskless partitions with replicas in zones: whoever comes and goes, each zone keeps its copy."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

from tidelog_core.metadata.records import Partition
from tidelog_node.membership.diskless_spreading import AWAY_MS_MAX

from tests.node.membership.virtual_cluster import LEASE_S, VirtualCluster, virtual_cluster
from tests.support.virtual_time import run

PARTITIONS = 36
SETTLED_S = 60.0  # a minute in virtual time


async def create(cluster: VirtualCluster) -> None:
    await cluster.create("t", partitions=PARTITIONS, replicas=(1, 2, 3), diskless_enable="true")
    await asyncio.sleep(SETTLED_S)


async def placed(cluster: VirtualCluster) -> list[Partition]:
    """Return the partitions, each with a replica in every zone that lives, the leader first."""
    partitions = list(await cluster.partitions("t"))
    for partition in partitions:
        assert partition.replicas[0] == partition.leader
        zones = {cluster[broker_id].rack for broker_id in partition.replicas}
        assert zones == {"r0", "r1", "r2"}
        assert cluster[partition.leader].leads("t", partition.partition)
    return partitions


def counts(partitions: list[Partition]) -> list[int]:
    return sorted(Counter(partition.leader for partition in partitions).values())


def followers_of_a_zone_max(cluster: VirtualCluster, partitions: list[Partition]) -> int:
    found: dict[tuple[int, str | None], set[int]] = defaultdict(set)
    for partition in partitions:
        for broker_id in partition.replicas[1:]:
            found[partition.leader, cluster[broker_id].rack].add(broker_id)
    return max(len(some) for some in found.values())


def test_a_node_that_joins_a_zone_leads_and_no_zone_loses_its_copy(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, racks=3) as cluster:
            await create(cluster)
            for broker_id in (4, 5, 6):
                await cluster.add(broker_id)
                await asyncio.sleep(10)
                found = counts(await placed(cluster))
                assert len(found) == broker_id
                assert found[0] >= PARTITIONS // broker_id - 1
            await asyncio.sleep(SETTLED_S)
            partitions = await placed(cluster)
            assert counts(partitions) == [6] * 6
            assert followers_of_a_zone_max(cluster, partitions) <= 2
            before = partitions
            await asyncio.sleep(2 * SETTLED_S)
            assert await placed(cluster) == before

    run(main())


def test_a_restart_moves_leads_alone_and_a_node_that_stays_away_is_replaced(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=6, racks=3) as cluster:
            await create(cluster)
            await cluster[4].stop()
            await asyncio.sleep(AWAY_MS_MAX / 1000 - 20)
            with_four = [p for p in await cluster.partitions("t") if 4 in p.replicas]
            assert with_four
            await cluster[4].start()
            await asyncio.sleep(SETTLED_S)
            partitions = await placed(cluster)
            assert counts(partitions) == [6] * 6
            await cluster[4].kill()
            await asyncio.sleep(LEASE_S + AWAY_MS_MAX / 1000 + 20)
            partitions = await placed(cluster)
            assert not [p for p in partitions if 4 in p.replicas]
            assert sum(counts(partitions)) == PARTITIONS
            assert len(counts(partitions)) == 5
            assert followers_of_a_zone_max(cluster, partitions) <= 2

    run(main())


def test_a_zone_that_is_away_keeps_its_copies(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=6, racks=3) as cluster:
            await create(cluster)
            before = Counter(b for p in await placed(cluster) for b in p.replicas)
            for broker_id in (3, 6):
                await cluster[broker_id].kill()
            await asyncio.sleep(LEASE_S + 2 * AWAY_MS_MAX / 1000)
            partitions = await cluster.partitions("t")
            assert set(await cluster.leaders("t")) <= {1, 2, 4, 5}
            for partition in partitions:
                assert {cluster[b].rack for b in partition.replicas} == {"r0", "r1", "r2"}
            for broker_id in (3, 6):
                await cluster[broker_id].start(was_clean=False)
            await asyncio.sleep(2 * SETTLED_S)
            after = Counter(b for p in await placed(cluster) for b in p.replicas)
            assert set(after) == set(before)
            assert counts(await placed(cluster)) == [6] * 6

    run(main())
