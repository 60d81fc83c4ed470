"""A node's chain is made when it is needed, and again after a deposal."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.chain_seal import find_seal
from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import StoreUnavailable, TidelogError, TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_node.diskless.chain import node_chain as node_chain_module
from tidelog_node.diskless.chain.node_chain import NodeChain
from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.membership.registration import ensure_cluster

from tests.support.batches import batch
from tests.support.data_objects import build_data_object
from tests.support.diskless_node import running_chain
from tests.support.waiting import eventually_async


async def test_a_chain_is_opened_on_demand_and_another_one_after_it_has_ended(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path}/objects"
    async with running_chain(tmp_path, url) as node_chain:
        assert node_chain.client.worker_pid is None
        assert (node_chain.chain, node_chain.is_full) == (None, False)
        first, same = await asyncio.gather(node_chain.current(), node_chain.current())
        assert first is same is node_chain.chain
        assert list((tmp_path / "objects").rglob("probe-*")) == []
        ended: list[OwnedChain] = []
        node_chain.deposed.subscribe(ended.append)
        first.abandon("a partition was moved away and back")
        assert ended == [first]
        assert node_chain.chain is None
        second = await node_chain.current()
        assert second.name != first.name
        assert node_chain.client.restart_count == 0
        status = await node_chain.worker_status()
        assert status is not None
        assert ["put", "exists", 1] in status["requests"]  # of the probe
    assert await node_chain.worker_status() is None
    node_chain.chain = None
    with pytest.raises(TierUnavailable):
        await node_chain.current()


async def test_a_store_that_cannot_be_asked_is_asked_again_later(tmp_path: Path) -> None:
    in_the_way = tmp_path / "objects"
    in_the_way.write_bytes(b"not a folder")
    async with running_chain(tmp_path, f"file://{in_the_way}/below") as node_chain:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="objects"):
                await node_chain.current()
        assert (node_chain.chain, node_chain.refusal) == (None, None)
        in_the_way.unlink()
        await eventually_async(lambda: has_chain(node_chain))


async def test_the_chain_of_a_node_that_stops_is_sealed(tmp_path: Path) -> None:
    """Its partitions were handed over, so no heir seals it, and it would never be collected."""
    url, cluster_id = f"file://{tmp_path}/objects", await cluster_id_of(tmp_path)
    async with running_chain(tmp_path, url) as node_chain:
        first = await node_chain.current()
        first.put_empty_object()  # an object without records
        await eventually_async(lambda: first.committed_end == 1)
    async with running_chain(tmp_path, url) as node_chain:
        chains = ChainStore(node_chain.client, cluster_id)
        assert await find_seal(chains, first.name) == 1


async def test_what_a_killed_process_has_left_is_sealed_by_the_next_one(tmp_path: Path) -> None:
    url, cluster_id = f"file://{tmp_path}/objects", await cluster_id_of(tmp_path)
    async with running_chain(tmp_path, url) as node_chain:
        chains = ChainStore(node_chain.client, cluster_id)
        broker_id = (await node_chain.current()).name.broker_id
        left = [ChainName(broker_id, UUID(int=1)), ChainName(broker_id + 1, UUID(int=1))]
        for chain in left:
            slices = [WalSlice(UUID(int=2), 0, 0, bytes(batch()))]
            data = build_data_object(ObjectName(cluster_id, chain, 0, 0, 0, 0), slices).data
            assert await chains.put(chain, 0, data) is PutOutcome.STORED
    async with running_chain(tmp_path, url) as node_chain:
        await node_chain.current()
        chains = ChainStore(node_chain.client, cluster_id)

        async def is_sealed() -> bool:
            return await find_seal(chains, left[0]) == 1

        await eventually_async(is_sealed)
        assert await find_seal(chains, left[1]) is None  # another broker's


async def test_what_cannot_be_sealed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was away for a moment, or an object was damaged and has been mended."""
    monkeypatch.setattr(node_chain_module, "FORMER_RETRY_S", 0.05)
    url, cluster_id = f"file://{tmp_path}/objects", await cluster_id_of(tmp_path)
    async with running_chain(tmp_path, url) as node_chain:
        chain = ChainName((await node_chain.current()).name.broker_id, UUID(int=1))
        slices = [WalSlice(UUID(int=2), 0, 0, bytes(batch()))]
        data = build_data_object(ObjectName(cluster_id, chain, 0, 0, 0, 0), slices).data
        await ChainStore(node_chain.client, cluster_id).put(chain, 0, data)
    file = tmp_path / "objects" / wal_key(cluster_id, chain, 0)
    file.write_bytes(bytes(len(data)))
    async with running_chain(tmp_path, url) as node_chain:
        await node_chain.current()
        await eventually_async(lambda: "former chains are not sealed" in caplog.messages)
        file.write_bytes(data)
        chains = ChainStore(node_chain.client, cluster_id)

        async def is_sealed() -> bool:
            return await find_seal(chains, chain) == 1

        await eventually_async(is_sealed)


@pytest.mark.parametrize("is_other", [False, True], ids=["its own", "another broker's"])
async def test_a_node_without_a_chain_seals_what_was_left_by_a_worker_for_that_alone(
    tmp_path: Path, is_other: bool
) -> None:
    """The last diskless topic was deleted, so nobody opens a chain any more."""
    url, cluster_id = f"file://{tmp_path}/objects", await cluster_id_of(tmp_path)
    async with running_chain(tmp_path, url) as node_chain:
        broker_id = (await node_chain.current()).name.broker_id + is_other
        left = ChainName(broker_id, UUID(int=1))
        slices = [WalSlice(UUID(int=2), 0, 0, bytes(batch()))]
        data = build_data_object(ObjectName(cluster_id, left, 0, 0, 0, 0), slices).data
        chains = ChainStore(node_chain.client, cluster_id)
        assert await chains.put(left, 0, data) is PutOutcome.STORED
    async with running_chain(tmp_path, url) as node_chain:
        assert await node_chain.seal_chains_of(broker_id)
        assert (node_chain.chain, node_chain.client.worker_pid) == (None, None)
    store = FolderObjectStore(tmp_path / "objects")
    assert await find_seal(ChainStore(store, cluster_id), left) == 1
    await store.close()


async def cluster_id_of(folder: Path) -> str:
    store = SqliteMetadataStore(folder / "metadata.db")
    await ensure_cluster(store)
    view = ClusterView(store)
    await view.refresh()
    await store.close()
    return view.image.cluster_id


async def has_chain(node_chain: NodeChain) -> bool:
    with suppress(TidelogError):
        await node_chain.current()
    return node_chain.chain is not None


async def test_a_folder_that_hangs_keeps_no_other_work_of_the_node_back(tmp_path: Path) -> None:
    """Above all no log's flush: logs are on another file system."""
    objects = tmp_path / "objects"
    objects.mkdir()
    os.mkfifo(objects / "hanging")
    async with running_chain(tmp_path, f"file://{objects}") as node_chain:
        lender = node_chain.lender()
        reads = [asyncio.create_task(lender.lend("hanging", 0, 10)) for _ in range(50)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(node_chain._node.executor, int) == 0
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        os.close(os.open(objects / "hanging", os.O_WRONLY))
