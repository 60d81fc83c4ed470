"""A node's chain is made when it is needed, and again after a deposal."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from tidelog_core.errors import StoreUnavailable, TidelogError, TierUnavailable
from tidelog_node.diskless.chain.node_chain import NodeChain
from tidelog_node.diskless.chain.owned_chain import OwnedChain

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


async def has_chain(node_chain: NodeChain) -> bool:
    with suppress(TidelogError):
        await node_chain.current()
    return node_chain.chain is not None
