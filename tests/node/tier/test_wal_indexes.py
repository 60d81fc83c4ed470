"""The checkpoints that the WAL worker writes: few, bounded, and deleted with their objects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidelog_core.diskless.chain.index import ChainIndex, rows_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import BuiltObject, Snapshot, WalSlice
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.tier import wal_indexes
from tidelog_node.tier.wal_indexes import WalIndexes
from tidelog_node.tier.wal_messages import WalIndexRequest

from tests.support.chain_owner import chain_name
from tests.support.data_objects import build_data_object
from tests.support.wal_objects import CLUSTER, TOPIC_ID, batch, name

CHAIN, OTHER = chain_name(1), chain_name(2)
ROW_BYTES = 96


async def at_once(work: Callable[[], BuiltObject]) -> BuiltObject:
    return work()


class Owner:
    """The worker's part of one chain with a slice in each object."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.restart()

    def restart(self) -> None:
        self.indexes = WalIndexes(self.store, at_once)

    def build(self, *sequences: int, chain: ChainName = CHAIN) -> None:
        for sequence in sequences:
            one = WalSlice(TOPIC_ID, 0, 7, batch(2 * sequence))
            built = build_data_object(name(sequence, chain=chain), [one])
            self.indexes.note(built.header, rows_of(parse_object(built.data, key="")))

    async def write(
        self,
        end: int,
        first_kept: int = 0,
        chain: ChainName = CHAIN,
        snapshots: tuple[Snapshot, ...] = (),
    ) -> int:
        """Write checkpoints; return the first object that is in one."""
        request = WalIndexRequest(CLUSTER, chain, end, first_kept, 0, snapshots)
        return int((await self.indexes.write(request))["start"])

    async def found(self, chain: ChainName = CHAIN) -> list[tuple[int, int]]:
        """Return the objects that the checkpoints in the bucket have."""
        chains = ChainStore(self.store, CLUSTER)
        listed = (await chains.list_all(chain)).checkpoints
        indexes = [await chains.index(chain, one) for one in listed]
        assert all(isinstance(one, ChainIndex) for one in indexes)
        for one in indexes:
            assert one is not None
            assert [n for n, _ in one.slices()] == list(range(one.start, one.end))
        return [(one.start, one.end) for one in indexes if one is not None]


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Owner:
    monkeypatch.setattr(wal_indexes, "INDEX_BYTES_MAX", 10 * ROW_BYTES)
    return Owner()


async def test_a_small_index_grows_and_only_the_last_one_stays(owner: Owner) -> None:
    owner.build(*range(9))
    assert await owner.write(3) == 0
    assert await owner.found() == [(0, 3)]
    assert await owner.write(3) == 0
    assert await owner.write(7) == 0
    assert await owner.found() == [(0, 7)]
    # What is not committed is in none.
    owner.build(9)
    assert await owner.write(9) == 0
    assert await owner.found() == [(0, 9)]


async def test_a_full_index_is_not_written_again(owner: Owner) -> None:
    owner.build(*range(35))
    await owner.write(12)
    assert await owner.found() == [(0, 10), (10, 12)]
    await owner.write(35)
    assert await owner.found() == [(0, 10), (10, 20), (20, 30), (30, 35)]
    assert owner.indexes._rows_bytes == 5 * ROW_BYTES


async def test_the_last_index_has_the_producers(owner: Owner) -> None:
    snapshots = (Snapshot(TOPIC_ID, 0, 5, b"producers"),)
    owner.build(*range(25))
    await owner.write(25, snapshots=snapshots)
    chains = ChainStore(owner.store, CLUSTER)
    listed = (await chains.list_all(CHAIN)).checkpoints
    indexes = [await chains.index(CHAIN, one) for one in listed]
    found = [(one.end, one.snapshots) for one in indexes if one is not None]
    assert found == [(10, ()), (20, ()), (25, snapshots)]


async def test_an_index_goes_with_its_objects(owner: Owner) -> None:
    owner.build(*range(25))
    await owner.write(25)
    await owner.write(25, first_kept=13)
    assert await owner.found() == [(10, 20), (20, 25)]
    owner.build(25)
    await owner.write(26, first_kept=23)
    assert await owner.found() == [(23, 26)]


async def test_a_worker_that_was_started_since_goes_on_from_what_it_builds(owner: Owner) -> None:
    owner.build(*range(15))
    await owner.write(15)
    owner.restart()
    assert await owner.write(15) == 15  # It knows nothing of this chain.
    owner.build(18, 19)  # what was in flight is built again
    assert await owner.write(20) == 18
    assert await owner.found() == [(0, 10), (10, 15), (18, 20)]
    owner.build(20)
    await owner.write(21, first_kept=19)
    assert await owner.found() == [(19, 21)]


async def test_too_many_rows_are_forgotten_and_no_index_is_lost(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_indexes, "ROWS_BYTES_MAX", 8 * ROW_BYTES)
    owner.build(*range(5))
    await owner.write(5)
    owner.build(*range(5, 12))
    assert owner.indexes._rows_bytes == 8 * ROW_BYTES
    assert await owner.write(12) == 4
    assert await owner.found() == [(0, 5), (4, 12)]


async def test_the_next_chain_starts_again(owner: Owner) -> None:
    owner.build(*range(4))
    owner.build(0, 1, chain=OTHER)
    assert await owner.write(4) == 4
    assert await owner.write(2, chain=OTHER) == 0
    assert await owner.found() == []
    assert await owner.found(OTHER) == [(0, 2)]


async def test_a_store_that_is_away_is_tried_again(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.build(*range(12))
    put, failures = owner.store.put, [StoreUnavailable("away"), StoreUnavailable("away")]

    async def fails(key: str, data: bytes, *, kms_key_id: str = "") -> None:
        await put(key, data, kms_key_id=kms_key_id)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(owner.store, "put", fails)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await owner.write(12)
    assert await owner.write(12) == 10
    assert await owner.found() == [(0, 10), (10, 12)]


async def test_a_chain_that_begins_while_an_index_is_written_keeps_all_of_its_own(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.build(*range(12))
    put = owner.store.put

    async def slow(key: str, data: bytes, *, kms_key_id: str = "") -> None:
        await put(key, data, kms_key_id=kms_key_id)
        owner.build(*range(12), chain=OTHER)
        monkeypatch.setattr(owner.store, "put", put)

    monkeypatch.setattr(owner.store, "put", slow)
    await owner.write(12)
    assert await owner.write(12, chain=OTHER) == 0
    assert await owner.found(OTHER) == [(0, 10), (10, 12)]


async def test_rows_that_are_forgotten_while_they_are_written_are_no_error(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_indexes, "ROWS_BYTES_MAX", 12 * ROW_BYTES)
    owner.build(*range(10))
    put = owner.store.put

    async def slow(key: str, data: bytes, *, kms_key_id: str = "") -> None:
        await put(key, data, kms_key_id=kms_key_id)
        owner.build(*range(10, 15))

    monkeypatch.setattr(owner.store, "put", slow)
    await owner.write(10)
    assert await owner.found() == [(0, 10)]
    assert owner.indexes._rows_bytes == 5 * ROW_BYTES
