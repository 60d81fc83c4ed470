"""Leaders of diskless partitions are asked to hand over; their leader states write when it is time.

``test_chain_leader`` has what those decide. Here they only note what they are told at last.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.replication.placement.reassignment import target_replicas
from tidelog_node.membership import diskless_spreading
from tidelog_node.membership.diskless_spreading import AWAY_MS_MAX

from tests.node.membership.virtual_cluster import (
    LEASE_S,
    NoLogs,
    VirtualCluster,
    virtual_cluster,
)
from tests.support.virtual_time import run


class Asked(NoLogs):
    """Leader states that are never ready: they go on until they are told to stop."""

    hands_over = False

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []  # partition, successor

    def begin_hand_over(
        self, topic_id: UUID, partition: int, successor: int, *, is_leaving: bool
    ) -> bool:
        assert is_leaving
        self.told.append((partition, successor))
        return True


class Recovering(NoLogs):
    """Leader states that come one after the other: the logs are recovered first."""

    def __init__(self) -> None:
        self.led: set[int] = set()  # partitions

    def has_leader_state(self, topic_id: UUID, partition: int) -> bool:
        return partition in self.led


async def restart(cluster: VirtualCluster) -> list[Asked]:
    """Start all nodes again; return what their leader states note."""
    noted = [Asked() for _ in cluster]
    for member, logs in zip(cluster, noted, strict=True):
        member.logs = logs
        await member.kill()
        await member.start()
    return noted


async def create(cluster: VirtualCluster, count: int, leader: int) -> list[Asked]:
    """Create partitions with one leader; return what the leader states of all nodes note."""
    noted = await restart(cluster)
    await cluster.create("t", partitions=count, replicas=(leader,), diskless_enable="true")
    return noted


def test_leads_are_spread_by_requests_and_each_is_asked_for_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            noted = await create(cluster, 30, 1)
            await asyncio.sleep(40)
            found = await cluster.partitions("t")
            assert {partition.leader for partition in found} == {1}
            assert Counter(p.replicas[0] for p in found) == {1: 10, 2: 10, 3: 10}
            asked = [p for p in found if p.replicas[0] != 1]
            assert all((p.adding, p.removing) == (p.replicas[:1], (1,)) for p in asked)
            assert not [logs for logs in noted if logs.told]  # They decide when.

    run(main())


def test_leads_are_spread_although_replicas_are_on_a_broker_that_was_taken_out(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        config = NodeConfig(broker_unregister_after_ms=20_000)
        async with virtual_cluster(tmp_path, config=config) as cluster:
            await restart(cluster)
            await cluster[3].kill()
            await asyncio.sleep(60)
            assert cluster[1].view.image.brokers.keys() == {1, 2}
            await cluster.create(
                "t", partitions=6, replicas=(1, 2, 3), leader=1, diskless_enable="true"
            )
            before = Counter(p.replicas[0] for p in await cluster.partitions("t"))
            assert before == {1: 2, 2: 2, 3: 2}  # So 2 is asked to lead two of them already.
            await asyncio.sleep(40)
            found = await cluster.partitions("t")
            assert sum(p.replicas[0] == 2 for p in found) == 3
            assert all(set(p.replicas) == {1, 2, 3} for p in found)

    run(main())


def test_a_request_to_a_broker_that_has_died_leaves_no_replica_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster, 30, 1)
            await asyncio.sleep(40)
            asked = Counter(p.replicas[0] for p in await cluster.partitions("t"))
            assert asked == {1: 10, 2: 10, 3: 10}
            await cluster[3].kill()
            await asyncio.sleep(LEASE_S + 2 * AWAY_MS_MAX / 1000)
            found = await cluster.partitions("t")
            assert sum(p.replicas[0] == 2 for p in found) == 15
            assert all(len(target_replicas(p)) == 1 for p in found)

    run(main())


def test_a_node_that_stops_asks_first_and_tells_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            noted = await create(cluster, 6, 1)
            await asyncio.sleep(3)
            began = asyncio.get_running_loop().time()
            stopping = asyncio.create_task(cluster[1].stop())
            await asyncio.sleep(2)
            found = await cluster.partitions("t")
            assert all(p.leader == 1 and p.replicas[0] in (2, 3) for p in found)
            assert not noted[0].told
            await stopping
            assert 7 <= asyncio.get_running_loop().time() - began < 20
            assert set(noted[0].told) == {(p.partition, p.replicas[0]) for p in found}

    run(main())


def test_a_broker_that_gives_its_leads_away_gets_none(tmp_path: Path) -> None:
    """It may be about to leave, before its lease says so."""

    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster, 30, 1)
            for number, partition in enumerate(await cluster.partitions("t")):
                await cluster.lead(partition, 1 + number % 3)
            await asyncio.sleep(12)
            for partition in await cluster.partitions("t"):
                if partition.leader == 3:
                    await cluster.lead(partition, 1 + partition.partition % 2)
            await asyncio.sleep(4)
            found = await cluster.partitions("t")
            assert not [p for p in found if 3 in (p.leader, *p.replicas)]
            await asyncio.sleep(15)  # It stays, after all.
            found = await cluster.partitions("t")
            assert [p for p in found if p.replicas[0] == 3]

    run(main())


def test_leads_whose_logs_are_being_recovered_stay_until_they_are_led(tmp_path: Path) -> None:
    """Another node would begin again, and seal the chain of a leader that has handed over."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            logs = Recovering()
            cluster[1].logs = logs
            await cluster[1].kill()
            await cluster[1].start()
            await cluster.create("t", partitions=12, replicas=(1,), diskless_enable="true")
            logs.led = set(range(0, 12, 2))
            await asyncio.sleep(30)
            found = await cluster.partitions("t")
            assert {p.leader for p in found if p.partition % 2} == {1}
            assert [p for p in found if p.leader == 2]
            await cluster.add(3)
            await asyncio.sleep(30)
            found = await cluster.partitions("t")
            assert all((p.leader, p.leader_epoch) == (1, 0) for p in found if p.partition % 2)
            logs.led = set(range(12))
            await asyncio.sleep(20)
            assert Counter(await cluster.leaders("t")) == {1: 4, 2: 4, 3: 4}

    run(main())


def test_what_may_not_be_moved_yet_is_seldom_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the moves of the whole cluster are computed, on the event loop."""
    calls: list[int] = []
    compute = diskless_spreading.balancing_moves

    def counted(*args: Any) -> Any:
        calls.append(len(args[0]))
        return compute(*args)

    monkeypatch.setattr(diskless_spreading, "balancing_moves", counted)

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            cluster[1].logs = Recovering()
            await cluster[1].kill()
            await cluster[1].start()
            await cluster.create("t", partitions=12, replicas=(1,), diskless_enable="true")
            await asyncio.sleep(30)
            calls.clear()
            await asyncio.sleep(60)
            assert 1 <= len(calls) <= 13

    run(main())


def test_a_lead_that_came_back_unentered_is_not_given_to_the_same_broker_again(
    tmp_path: Path,
) -> None:
    """Its records in the bucket are damaged, for example, and only this broker has them."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            logs = Recovering()
            cluster[2].logs = logs
            await cluster[2].kill()
            await cluster[2].start()
            await cluster.create("t", partitions=6, replicas=(1, 2), diskless_enable="true")
            chain = ChainName(1, uuid4())
            for partition in await cluster.partitions("t"):
                entered = dataclasses.replace(partition, wal=(EpochChain(0, chain, 0),))
                await cluster[1].link.commit([records.put(entered)])
            for _ in range(20):
                await asyncio.sleep(5)
                given = [p for p in await cluster.partitions("t") if p.leader == 2]
                await asyncio.sleep(2)  # It tries in vain.
                for partition in given:
                    await cluster.lead(partition, 1)
            found = await cluster.partitions("t")
            assert max(partition.leader_epoch for partition in found) == 2
            assert {partition.leader for partition in found} == {1}

    run(main())
