"""Chains that an earlier leader may still write are ended, whatever the store does meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer
from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.errors import CorruptObject, StoreUnavailable, TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_node.diskless.recovery.chain_seal import seal_chain
from tidelog_node.node_context import NodeContext

from tests.node.diskless.chained_log import CLUSTER, NAME, new_chain
from tests.support.data_objects import build_data_object
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.wal_objects import batch


class FailingStore(MemoryObjectStore):
    """Fails some calls first; a failed put may have been done."""

    def __init__(self, failures: list[Exception]) -> None:
        super().__init__()
        self.failures = failures

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if self.failures:
            raise self.failures.pop()
        return await super().get_range(key, start, end)


@pytest.fixture
async def node() -> NodeContext:
    metadata = MemoryMetadataStore()
    await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
    view = ClusterView(metadata)
    await view.refresh()
    return node_context(metadata, view)


def data(chain: ChainName, sequence: int) -> bytes:
    name = ObjectName(CLUSTER, chain, sequence, max(0, sequence - 2), 0, 0)
    one = WalSlice(NAME.topic_id, NAME.partition, 7, batch(2 * sequence))
    return build_data_object(name, [one]).data


async def filled(store: ObjectStore, *sequences: int) -> tuple[ChainStore, ChainName]:
    chains, chain = ChainStore(store, CLUSTER), new_chain()
    for sequence in sequences:
        assert await chains.put(chain, sequence, data(chain, sequence)) is PutOutcome.STORED
    return chains, chain


async def seal(node: NodeContext, chains: ChainStore, chain: ChainName) -> int:
    sealer = ChainSealer(chain, now_ms=node.membership.now_ms())
    end = await seal_chain(node, chains, sealer, heir=new_chain(2))
    assert sealer.end == end
    return end


async def test_the_owner_meets_the_seal_and_everything_before_it_stays(
    node: NodeContext, tmp_path: Path
) -> None:
    chains, chain = await filled(FolderObjectStore(tmp_path), 0, 1, 2)
    assert await seal(node, chains, chain) == 3
    assert await chains.put(chain, 3, data(chain, 3)) is PutOutcome.TAKEN
    header = await chains.header(chain, 2)
    assert header is not None
    assert header.sequence == 2


async def test_an_object_above_a_gap_is_left_out(node: NodeContext) -> None:
    chains, chain = await filled(MemoryObjectStore(), 0, 2)
    assert await seal(node, chains, chain) == 1


async def test_a_chain_without_objects_is_sealed_at_its_beginning(node: NodeContext) -> None:
    chains, chain = await filled(MemoryObjectStore())
    assert await seal(node, chains, chain) == 0
    assert await seal(node, chains, chain) == 0


async def test_heirs_at_once_find_the_same_end(node: NodeContext) -> None:
    chains, chain = await filled(MemoryObjectStore(), *range(5))
    assert set(await asyncio.gather(*(seal(node, chains, chain) for _ in range(5)))) == {5}


async def test_a_store_that_is_away_holds_the_seal_up_and_nothing_else(node: NodeContext) -> None:
    failures = [StoreUnavailable("away"), TierUnavailable("restarts")]
    store = FailingStore(failures)
    chains, chain = await filled(store, 0, 1)
    assert await seal(node, chains, chain) == 2
    assert not failures


async def test_a_damaged_header_is_no_end(node: NodeContext) -> None:
    store = MemoryObjectStore()
    chains, chain = await filled(store, 0, 1)
    async for meta in store.list(""):
        broken = bytearray(await store.get(meta.key))
        broken[40] ^= 1
        await store.replace(meta.key, bytes(broken))
    with pytest.raises(CorruptObject):
        await seal(node, chains, chain)
    assert len([meta async for meta in store.list("")]) == 2
