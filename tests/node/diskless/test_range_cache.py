"""What is read ahead is what the store has, bounded, and gone once it is dropped."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.wal.build import ObjectName, WalSlice, build_seal
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import ObjectNotFound
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.range_cache import NoRoom, RangeCache

from tests.node.diskless.chained_log import CLUSTER, TOPIC_ID, new_chain
from tests.support.batches import batch_of
from tests.support.data_objects import build_data_object

SIZE, BYTES_MAX, BROKERS = 60, 400, (1, 2)


class CountedStore(MemoryObjectStore):
    """A store that counts its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read_count = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.read_count += 1
        return await super().get_range(key, start, end)


@pytest.mark.parametrize("seed", range(20))
async def test_every_read_is_what_the_store_has_and_memory_is_bounded(seed: int) -> None:
    chance, store = Random(seed), CountedStore()
    content = {f"object-{n}": chance.randbytes(SIZE) for n in range(12)}
    for key, data in content.items():
        await store.put(key, data)
    kept = RangeCache(store.get_range, BYTES_MAX)
    for _ in range(300):
        key, broker_id = chance.choice([*content]), chance.choice(BROKERS)
        start = chance.randrange(SIZE)
        end = chance.randrange(start + 1, SIZE + 8)  # beyond the end, too
        match chance.randrange(8):
            case 0:
                kept.drop(broker_id)
            case 1 | 2 | 3:
                try:
                    found = await kept.keep_for(broker_id)(key, start, end)
                except NoRoom:
                    assert kept.size_bytes + end - start > BYTES_MAX
                    continue
                assert found == content[key][start:end]
                assert kept.has(key, start, min(end, SIZE))
            case 4 | 5:
                assert await kept.read(key, start, end) == content[key][start:end]
            case _:
                was_kept, before = kept.has(key, start, end), store.read_count
                assert await kept.read_within(key, start, end) == content[key][start:end]
                assert store.read_count == before + (not was_kept)
        assert 0 <= kept.size_bytes <= BYTES_MAX
    for broker_id in BROKERS:
        kept.drop(broker_id)
    assert kept.size_bytes == 0


async def test_a_read_that_ends_after_the_drop_keeps_nothing() -> None:
    store, may_answer = CountedStore(), asyncio.Event()
    await store.put("one", b"data")

    async def read(key: str, start: int, end: int) -> bytes:
        await may_answer.wait()
        return await store.get_range(key, start, end)

    kept = RangeCache(read, BYTES_MAX)
    reading = asyncio.create_task(kept.keep_for(1)("one", 0, 4))
    for _ in range(3):
        await asyncio.sleep(0)
    assert kept.size_bytes == 4  # Reserved while it is read.
    kept.drop(1)
    kept.keep_for(1)  # The broker is doubted again.
    may_answer.set()
    assert await reading == b"data"
    assert not kept.has("one", 0, 4)
    assert kept.size_bytes == 0


async def test_what_cannot_be_read_is_not_kept() -> None:
    kept = RangeCache(CountedStore().get_range, BYTES_MAX)
    with pytest.raises(ObjectNotFound):
        await kept.keep_for(1)("none", 0, 4)
    assert kept.size_bytes == 0
    with pytest.raises(ObjectNotFound):
        await kept.read_within("none", 0, 4)


async def test_a_seal_in_the_place_of_a_collected_object_is_seen_whatever_is_kept() -> None:
    """The object was kept, collected, and then a seal came late. The listing has the seal."""
    store, chain = CountedStore(), new_chain()
    name = ObjectName(CLUSTER, chain, 3, 3, 0, 0)
    data = build_data_object(name, [WalSlice(TOPIC_ID, 0, 1, batch_of(b"v" * 500))]).data
    key = wal_key(CLUSTER, chain, 3)
    await store.put(key, data)
    kept = RangeCache(store.get_range)
    ahead = ChainStore(store, CLUSTER, read=kept.keep_for(2))
    assert not (await ahead.footer(chain, ListedObject(3, len(data)))).is_seal
    await store.delete([key])
    seal = build_seal(name, new_chain()).data
    assert len(seal) < len(data)
    await store.put(key, seal)
    chains = ChainStore(store, CLUSTER, read=kept.read)
    assert (await chains.footer(chain, ListedObject(3, len(seal)))).is_seal
