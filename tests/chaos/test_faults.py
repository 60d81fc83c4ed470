"""Faults that are done to real nodes really are, and end."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import psutil
import pytest
from tidelog import Producer, TidelogError

from tests.chaos.big_requests import NAMES, BigRequest
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import Faults
from tests.chaos.plan import FaultKind, PlannedFault
from tests.support.waiting import eventually_async


async def write(bootstrap: str, *, timeout_ms: int) -> None:
    async with Producer(bootstrap, delivery_timeout_ms=timeout_ms) as producer:
        await producer.send_and_wait("t", b"v", partition=0)


@pytest.mark.parametrize("kind", [FaultKind.DISK_FULL, FaultKind.DISK_FAILING])
async def test_a_disk_takes_no_records_while_it_is_full_or_fails(
    tmp_path: Path, kind: FaultKind
) -> None:
    cluster = ChaosCluster(
        tmp_path / "cluster",
        node_count=1,
        chance=random.Random(1),
        config={},
        has_disk_faults=True,
    )
    async with cluster:
        faults = Faults(cluster, lease_s=2.0, chance=random.Random(1))
        await write(cluster.bootstrap, timeout_ms=60_000)
        undo = await faults.begin(PlannedFault(kind, 0.0, 1.0, (1,), 0.5))
        with pytest.raises(TidelogError):
            await write(cluster.bootstrap, timeout_ms=1_000)
        await undo()
        await write(cluster.bootstrap, timeout_ms=60_000)
        assert cluster.died == []


async def test_pauses_stop_a_node_its_workers_or_both_until_they_end(tmp_path: Path) -> None:
    config = {"log.diskless.enable": "true"}  # so that a worker puts its records
    chance = random.Random(1)
    cluster = ChaosCluster(tmp_path / "cluster", node_count=1, chance=chance, config=config)
    async with cluster:
        faults = Faults(cluster, lease_s=2.0, chance=random.Random(1))
        await write(cluster.bootstrap, timeout_ms=60_000)
        process = psutil.Process(cluster.nodes[1].process.pid)

        def is_stopped(one: psutil.Process) -> bool:
            return one.status() == psutil.STATUS_STOPPED

        async def wait_for(*, node: bool, workers: bool) -> None:
            def holds() -> bool:
                found = {is_stopped(one) for one in process.children(recursive=True)}
                return is_stopped(process) == node and found == {workers}

            await eventually_async(holds, f"the node is stopped: {node}, its workers: {workers}")

        async def pause(kind: FaultKind) -> None:
            undo = await faults.begin(PlannedFault(kind, 0.0, 1.0, (1,), 0.5))
            of_node, of_workers = kind is not FaultKind.PAUSE_WORKERS, kind is not FaultKind.PAUSE
            await wait_for(node=of_node, workers=of_workers)
            await undo()
            await wait_for(node=False, workers=False)

        await wait_for(node=False, workers=False)
        await pause(FaultKind.PAUSE)
        await pause(FaultKind.PAUSE_MACHINE)
        await pause(FaultKind.PAUSE_WORKERS)
        await write(cluster.bootstrap, timeout_ms=60_000)
        assert cluster.died == []


async def test_a_node_serves_after_each_of_the_big_requests(tmp_path: Path) -> None:
    cluster = ChaosCluster(tmp_path / "cluster", node_count=1, chance=random.Random(1), config={})
    async with cluster:
        (node,) = cluster.nodes.values()
        for name in NAMES:
            request = BigRequest(name)
            await asyncio.to_thread(request.send, node.proxy.port, 0.0)
            await write(cluster.bootstrap, timeout_ms=60_000)
            request.close()
        assert cluster.died == []
