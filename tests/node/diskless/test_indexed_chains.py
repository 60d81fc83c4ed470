"""Heirs and replicas that join read indexes of chains instead of every footer."""

from __future__ import annotations

from collections import Counter

import pytest
from tidelog_core.diskless.chain.index import build_index, rows_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import checkpoint_key, wal_key
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.chain_slices import (
    ReadChains,
    WantedSlices,
    find_slices,
    log_of,
)

from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.wal_objects import CLUSTER, TOPIC_ID, batch, checkpoint

CHAIN, HEIR = chain_name(1), chain_name(2)
NAMES = [PartitionName(TOPIC_ID, number) for number in range(3)]


class CountedObjects(MemoryObjectStore):
    """Counts the reads of objects and of checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.reads[key.rpartition(".")[2]] += 1
        return await super().get_range(key, start, end)


class IndexedChain:
    """A sealed chain; object n has a slice of partition n % 3."""

    def __init__(self, count: int) -> None:
        self.store, self.count = CountedObjects(), count
        self.owner = ChainOwner(self.store, CLUSTER, CHAIN)

    async def begin(self) -> None:
        for number in range(self.count):
            one = WalSlice(*NAMES[number % 3], 7, batch(number // 3 * 2))
            await self.owner.commit([one])
        await self.owner.seal(HEIR)

    async def index(self, start: int, end: int) -> str:
        stored = self.owner.stored
        rows = [(n, rows_of(parse_object(stored[n].data, key="data"))) for n in range(start, end)]
        key = checkpoint_key(CLUSTER, CHAIN, end)
        await self.store.put(key, build_index(CHAIN, CLUSTER, rows, created_ms=0).data)
        return key

    async def find(self, start_offset: int = 0) -> ReadChains:
        self.store.reads.clear()
        wanted = {name: WantedSlices((EpochChain(7, CHAIN, 0),), start_offset) for name in NAMES}
        return await find_slices(ChainStore(self.store, CLUSTER), wanted, {CHAIN: self.count})


def logs(found: ReadChains, start_offset: int = 0) -> dict[PartitionName, tuple[object, int]]:
    """Return the slices and the end of each partition."""
    wanted = WantedSlices((EpochChain(7, CHAIN, 0),), start_offset)
    return {name: log_of(name, wanted, found.slices[name], cluster_id=CLUSTER) for name in NAMES}


async def chain_of(count: int) -> IndexedChain:
    chain = IndexedChain(count)
    await chain.begin()
    return chain


async def test_an_heir_of_a_thousand_objects_reads_one_checkpoint_and_what_came_since() -> None:
    chain = await chain_of(1_000)
    without = await chain.find()
    assert chain.store.reads == {"wal": 1_000}
    await chain.index(0, 950)
    found = await chain.find()
    assert chain.store.reads == {"ckpt": 1, "wal": 50}
    assert logs(found) == logs(without)
    assert [end for _, end in logs(found).values()] == [668, 666, 666]
    assert all(found.is_end_certain(name, CHAIN) for name in NAMES)


async def test_several_indexes_are_read_and_those_of_collected_objects_are_not() -> None:
    chain = await chain_of(100)
    without = logs(await chain.find(40), 40)
    for start, end in ((0, 20), (20, 60), (60, 70), (60, 90)):
        await chain.index(start, end)
    found = await chain.find(40)
    assert chain.store.reads == {"ckpt": 3, "wal": 10}
    assert logs(found, 40) == without
    await chain.owner.collect(range(30))
    found = await chain.find(40)
    assert chain.store.reads == {"ckpt": 2, "wal": 10}
    assert logs(found, 40) == without


@pytest.mark.parametrize("kind", ["missing", "torn", "old", "another chain's", "another kind"])
async def test_without_a_whole_index_it_is_only_slower(kind: str) -> None:
    chain = await chain_of(60)
    without = logs(await chain.find())
    key = await chain.index(0, 50)
    data = await chain.store.get(key)
    counts = {"ckpt": 1, "wal": 60}
    if kind == "missing":
        await chain.store.delete([key])
        counts = {"wal": 60}
    elif kind == "torn":
        await chain.store.replace(key, data[:-20])
    elif kind == "old":
        await chain.store.delete([key])
        await chain.index(0, 20)
        counts = {"ckpt": 1, "wal": 40}
    elif kind == "another kind":
        await chain.store.replace(key, checkpoint().data)
    else:
        other = await chain_of(20)
        await other.index(0, 20)
        await chain.store.replace(key, await other.store.get(checkpoint_key(CLUSTER, CHAIN, 20)))
    assert logs(await chain.find()) == without
    assert chain.store.reads == counts


async def test_an_index_of_more_than_the_chain_has_is_not_believed() -> None:
    chain = await chain_of(40)
    longer = await chain_of(60)
    await longer.index(0, 60)
    key = checkpoint_key(CLUSTER, CHAIN, 60)
    await chain.store.put(key, await longer.store.get(key))
    without = logs(await chain.find())
    assert chain.store.reads == {"wal": 40}
    assert [end for _, end in without.values()] == [28, 26, 26]


async def test_objects_that_are_gone_are_known_by_the_index() -> None:
    """A partition's end is certain although the object that has it was collected."""
    chain = await chain_of(40)
    await chain.owner.collect(range(30))
    found = await chain.find(100)
    assert found.whole_from[CHAIN] == 30
    await chain.index(0, 35)
    found = await chain.find(100)
    assert found.whole_from[CHAIN] == 0
    assert await chain.store.head(wal_key(CLUSTER, CHAIN, 39))
