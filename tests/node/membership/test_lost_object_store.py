"""A node that cannot write the object store gives its diskless leads to nodes that can."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.records import StepDownReason
from tidelog_node.diskless.chain import store_watch

from tests.node.membership.virtual_cluster import LEASE_S, VirtualCluster, virtual_cluster
from tests.support.virtual_time import run

STAYS = NodeConfig(auto_leader_rebalance_enable=False)
GIVEN_AWAY_S = 28  # found out, published, and left alone by the others' time


async def create(cluster: VirtualCluster) -> None:
    """Create a diskless topic that one broker leads, and a replicated one that all do."""
    await cluster.create("t", partitions=12, replicas=(1,), diskless_enable="true")
    await cluster.create("replicated", partitions=6)
    await asyncio.sleep(3)


def cut(cluster: VirtualCluster, *broker_ids: int) -> None:
    """Cut the brokers from the bucket; what they lead is appended to all the same."""
    for broker_id in broker_ids:
        cluster[broker_id].is_bucket_away = True
        cluster[broker_id].chain.buffered_bytes = 1_000


def heal(cluster: VirtualCluster) -> None:
    for member in cluster:
        member.is_bucket_away = False
        member.chain.buffered_bytes = 0


def reasons(cluster: VirtualCluster) -> dict[int, StepDownReason | None]:
    """Return what the last broker has read of the others."""
    seen = cluster[3].membership.peers
    return {broker_id: seen.step_down_reason(broker_id) for broker_id in (1, 2)}


def test_a_node_that_is_cut_from_the_store_alone_gives_its_leads_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            replicated = await cluster.leaders("replicated")
            cut(cluster, 1)
            await asyncio.sleep(14)
            assert reasons(cluster) == {1: StepDownReason.STORE, 2: None}
            # Producers of its zone are sent elsewhere.
            assert [member.membership.unfit for member in cluster] == [{1}] * 3
            assert set(await cluster.leaders("t")) == {1}  # all others have time to say the same
            await asyncio.sleep(GIVEN_AWAY_S - 14)
            assert set(await cluster.leaders("t")) == {2, 3}
            assert [p.leader_epoch for p in await cluster.partitions("t")] == [1] * 12
            assert await cluster.leaders("replicated") == replicated
            assert cluster[1].can_serve
            await cluster[2].kill()
            await asyncio.sleep(LEASE_S)
            assert set(await cluster.leaders("t")) == {3}  # 1 inherits nothing

    run(main())


def test_leads_that_were_never_entered_are_given_away_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            cluster[1].is_bucket_away = cluster[1].has_unentered = True
            await asyncio.sleep(GIVEN_AWAY_S)
            assert set(await cluster.leaders("t")) == {2, 3}

    run(main())


def test_its_leads_come_back_once_it_can_store_for_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster)
            await asyncio.sleep(10)
            assert Counter(await cluster.leaders("t")) == {1: 4, 2: 4, 3: 4}
            cut(cluster, 1)
            await asyncio.sleep(GIVEN_AWAY_S)
            assert Counter(await cluster.leaders("t")) == {2: 6, 3: 6}
            for _ in range(3):  # A store that comes and goes moves nothing.
                heal(cluster)
                await asyncio.sleep(6)
                cut(cluster, 1)
                await asyncio.sleep(6)
            assert Counter(await cluster.leaders("t")) == {2: 6, 3: 6}
            heal(cluster)
            await asyncio.sleep(GIVEN_AWAY_S)
            assert Counter(await cluster.leaders("t")) == {1: 4, 2: 4, 3: 4}
            assert reasons(cluster) == {1: None, 2: None}
            assert not any(member.membership.unfit for member in cluster)

    run(main())


def test_an_outage_of_the_store_moves_nothing(tmp_path: Path) -> None:
    """Brokers that have nothing to write find it out too, when they hear of the first one."""

    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster)
            await asyncio.sleep(10)
            before = await cluster.partitions("t")
            cut(cluster, 1, 2, 3)
            for idle in (2, 3):
                cluster[idle].chain.buffered_bytes = 0
            await asyncio.sleep(50)
            assert reasons(cluster) == {1: StepDownReason.STORE, 2: StepDownReason.STORE}
            assert await cluster.partitions("t") == before
            for member in cluster:  # Some find out later than others that it is back.
                member.is_bucket_away = False
                await asyncio.sleep(2)
            await asyncio.sleep(30)
            assert await cluster.partitions("t") == before
            assert reasons(cluster) == {1: None, 2: None}

    run(main())


def test_a_gateway_hears_of_it_when_a_leader_can_store_again(tmp_path: Path) -> None:
    """What it still cannot store goes to that leader."""

    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster)
            cut(cluster, 1, 2, 3)
            await asyncio.sleep(30)
            gateway, told = cluster[3].membership, list[frozenset[int]]()
            gateway.subscribe(lambda: told.append(gateway.unfit))
            cluster[1].is_bucket_away = False
            await asyncio.sleep(30)
            assert gateway.unfit == {2, 3}
            assert told == [{2, 3}]

    run(main())


def test_a_chain_that_is_slow_while_the_store_can_be_written_gives_nothing_away(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            cluster[1].chain.buffered_bytes = 1_000
            await asyncio.sleep(60)
            assert cluster[1].membership.can_store
            assert set(await cluster.leaders("t")) == {1}

    run(main())


def test_a_chain_that_commits_is_not_probed_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            cut(cluster, 1)
            for _ in range(20):
                cluster[1].chain.committed_end += 1
                await asyncio.sleep(3)
            assert cluster[1].membership.can_store

    run(main())


def test_a_node_that_stays_cut_off_costs_the_others_few_probes(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            assert [member.probe_count for member in cluster] == [0, 0, 0]  # They cost nothing.
            cut(cluster, 1)
            await asyncio.sleep(60)
            before = [cluster[broker_id].probe_count for broker_id in (2, 3)]
            assert min(before) >= 5
            await asyncio.sleep(600)
            after = [cluster[broker_id].probe_count for broker_id in (2, 3)]
            assert all(5 <= a - b <= 12 for a, b in zip(after, before, strict=True))
            # The whole store goes away: they know as soon as the next one says so.
            cut(cluster, 2, 3)
            cluster[3].chain.buffered_bytes = 0
            led = await cluster.leaders("t")
            await asyncio.sleep(60)
            assert not cluster[3].membership.can_store
            assert await cluster.leaders("t") == led

    run(main())


def test_a_node_leads_again_later_after_each_relapse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leads that go round in a slow store would keep it slow: a move seals chains there."""
    monkeypatch.setattr(store_watch, "RELAPSE_SECONDS", 60.0)

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster)
            membership = cluster[1].membership
            for steady_s in (12, 24, 48):
                cut(cluster, 1)
                await asyncio.sleep(14)
                assert not membership.can_store
                heal(cluster)
                await asyncio.sleep(steady_s - 4)
                assert not membership.can_store
                await asyncio.sleep(12)
                assert membership.can_store
            await asyncio.sleep(60)
            cut(cluster, 1)
            await asyncio.sleep(14)
            heal(cluster)
            await asyncio.sleep(20)
            assert membership.can_store

    run(main())
