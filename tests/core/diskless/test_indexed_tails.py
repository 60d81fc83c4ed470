"""A reader that wants one more partition asks indexes which objects have it."""

from __future__ import annotations

from tidelog_core.diskless.chain.index import build_index, rows_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.tail.reader import TailReader
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import checkpoint_key
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.objects.memory import MemoryObjectStore

from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.wal_objects import CLUSTER, TOPIC_ID, batch

CHAIN = chain_name(1)
BUSY, RARE = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)
CHAINS = (EpochChain(7, CHAIN, 0),)


class CountedObjects(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.keys.append(key)
        return await super().get_range(key, start, end)


async def seen(*, indexed_to: int, is_torn: bool = False) -> tuple[list[bytes], int]:
    """Return the slices of the rare partition, and how many objects were read for it."""
    store = CountedObjects()
    owner = ChainOwner(store, CLUSTER, CHAIN)
    for number in range(200):
        slices = [WalSlice(*BUSY, 7, batch(number * 2))]
        if number % 20 == 0:
            slices.append(WalSlice(*RARE, 7, batch(number // 20 * 2)))
        await owner.commit(slices)
    reader = TailReader(ChainStore(store, CLUSTER))
    await reader.refresh([BUSY], [CHAIN])
    if indexed_to:
        stored = owner.stored
        rows = [(n, rows_of(parse_object(stored[n].data, key=""))) for n in range(indexed_to)]
        data = build_index(CHAIN, CLUSTER, rows, created_ms=0).data
        key = checkpoint_key(CLUSTER, CHAIN, indexed_to)
        await store.put(key, data[: -1 if is_torn else None])
    store.keys.clear()
    await reader.refresh([BUSY, RARE], [CHAIN])
    view = reader.view(RARE, 0, CHAINS)
    assert (view.end_offset, view.missing) == (20, None)
    return [one.rows for one in view.slices], len(store.keys)


async def test_few_objects_are_read_and_nothing_is_missed() -> None:
    without, count = await seen(indexed_to=0)
    assert count == 200
    assert await seen(indexed_to=150) == (without, 1 + 8 + 50)
    assert await seen(indexed_to=150, is_torn=True) == (without, 201)
