"""A node writes checkpoints of its chain if something is new, and heirs find all slices in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_node.diskless.chain.checkpoints import ChainCheckpoints
from tidelog_node.diskless.recovery.chain_slices import WantedSlices, find_slices, log_of

from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.waiting import eventually_async
from tests.support.wal_objects import CLUSTER
from tests.support.wal_scene import WalScene


class Checkpointing:
    """A chain with two partitions, and what writes its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.scene = WalScene(folder, chain_id=UUID(int=5))
        self.config = NodeConfig()
        store = MemoryMetadataStore()
        self.view = ClusterView(store)
        node = node_context(store, self.view, config=lambda: self.config)
        self.checkpoints = ChainCheckpoints(node, lambda: self.scene.chain)
        self.chains = ChainStore(self.scene.store, CLUSTER)
        self.scene.lead(2)

    async def append(self, count: int) -> None:
        """Have so many objects, with a record of each partition."""
        chain = self.scene.chain
        for _ in range(count):
            wanted = chain.committed_end + 1
            for log in self.scene.logs:
                log.append()

            def is_committed(wanted: int = wanted) -> bool:
                return chain.committed_end >= wanted and not chain.buffered_bytes

            await eventually_async(is_committed, seconds=30)

    async def ends(self) -> list[int]:
        return [one.sequence for one in (await self.chains.list_all(self.scene.name)).checkpoints]

    async def require_all_found(self) -> None:
        """Compare what an heir finds with the logs."""
        chains = (EpochChain(0, self.scene.name, 0),)
        wanted = {log.name: WantedSlices(chains, 0) for log in self.scene.logs}
        end = self.scene.chain.committed_end
        found = await find_slices(self.chains, wanted, {self.scene.name: end})
        for log in self.scene.logs:
            one = log_of(log.name, wanted[log.name], found.slices[log.name], cluster_id=CLUSTER)
            assert one[1] == log.committed_end
            assert sum(each.size_bytes for each in one[0]) == len(log.content)


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Checkpointing]:
    checkpointing = Checkpointing(tmp_path)
    yield checkpointing
    await checkpointing.scene.close()


async def test_one_is_written_if_something_is_new(it: Checkpointing) -> None:
    await it.checkpoints.write()
    assert await it.ends() == []
    await it.append(3)
    first = it.scene.chain.committed_end
    for _ in range(2):
        await it.checkpoints.write()
        assert await it.ends() == [first]
    await it.append(2)
    await it.checkpoints.write()
    assert await it.ends() == [it.scene.chain.committed_end]
    await it.require_all_found()
    await it.append(1)  # not in it
    await it.require_all_found()


async def test_a_worker_that_was_killed_costs_only_footers(it: Checkpointing) -> None:
    await it.append(3)
    await it.checkpoints.write()
    before = await it.ends()
    it.scene.worker.kill(0.0)
    await eventually_async(lambda: it.scene.worker.wal is not None, seconds=30)
    await it.append(3)
    await it.checkpoints.write()
    assert await it.ends() == [*before, it.scene.chain.committed_end]
    await it.require_all_found()


async def test_a_failure_is_tried_again(it: Checkpointing, monkeypatch: pytest.MonkeyPatch) -> None:
    await it.append(1)
    put = it.scene.store.put

    async def away(key: str, data: bytes, *, kms_key_id: str = "") -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(it.scene.store, "put", away)
    with pytest.raises(StoreUnavailable):
        await it.checkpoints.write()
    monkeypatch.setattr(it.scene.store, "put", put)
    await it.checkpoints.write()
    assert await it.ends() == [it.scene.chain.committed_end]


async def test_it_runs_by_the_interval(it: Checkpointing) -> None:
    it.config = NodeConfig(diskless_checkpoint_interval_ms=1_000)
    await it.append(1)
    running = asyncio.create_task(it.checkpoints.run())
    ends: list[int] = []
    async with asyncio.timeout(30):
        while not ends:
            await asyncio.sleep(0.05)
            ends = await it.ends()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert ends == [it.scene.chain.committed_end]


async def test_one_is_written_before_the_interval_after_many_objects(it: Checkpointing) -> None:
    """A folder gets hundreds a second, and an heir reads the footers that no checkpoint has."""
    node = node_context(MemoryMetadataStore(), it.view, config=lambda: it.config)
    checkpoints = ChainCheckpoints(node, lambda: it.scene.chain, objects_max=4)
    await it.append(3)
    assert checkpoints.new_count == it.scene.chain.committed_end
    running = asyncio.create_task(checkpoints.run())
    await it.append(4)
    await eventually_async(lambda: checkpoints.new_count < 4, seconds=60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await it.ends() == [it.scene.chain.committed_end - checkpoints.new_count]
    await it.require_all_found()
