"""The chains that had partitions of a sealed chain since, and what they have of them."""

from __future__ import annotations

import pytest
from tidelog_core.diskless.chain.index import build_index, rows_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.successors import LaterEpoch, Successors, SuccessorSearch
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import Heir, checkpoint_key, wal_key
from tidelog_core.objects.memory import MemoryObjectStore

from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.wal_objects import CLUSTER, TOPIC_ID, batch

NAME, OTHER = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)
OWN = chain_name(99)


class CountedObjects(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.read_count = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.read_count += 1
        return await super().get_range(key, start, end)


class World:
    """A sealed chain with an object, and others."""

    def __init__(self) -> None:
        self.store = CountedObjects()
        self.chains = ChainStore(self.store, CLUSTER)
        self.owners = [ChainOwner(self.store, CLUSTER, chain_name(n)) for n in range(40)]
        self.search = SuccessorSearch(self.chains)

    async def commit(self, number: int, epoch: int, name: PartitionName = NAME) -> None:
        owner = self.owners[number]
        await owner.commit_batches(name, epoch, batch(owner.next_sequence * 2))

    async def note(self, before: int, heir: int, first: int | None = None) -> None:
        owner = self.owners[heir]
        first = owner.next_sequence if first is None else first
        await self.chains.note_heir(chain_name(before), Heir(owner.chain, first))

    async def find(self) -> Successors:
        return await self.search.find(chain_name(0), 1, own=OWN)


@pytest.fixture
async def world() -> World:
    made = World()
    await made.commit(0, 1)
    await made.owners[0].seal(OWN)
    return made


async def test_without_others_nothing_is_found(world: World) -> None:
    await world.chains.note_heir(chain_name(0), Heir(OWN, 5))
    assert await world.find() == Successors({}, is_whole=True)


async def test_only_what_came_after_the_note_counts(world: World) -> None:
    await world.commit(1, 3)  # it led the partition before
    await world.note(0, 1)
    assert (await world.find()).epochs == {}
    await world.commit(1, 5)
    assert (await world.find()).epochs == {NAME: LaterEpoch(5, chain_name(1))}


async def test_the_heir_that_the_seal_names_needs_no_note(world: World) -> None:
    await world.store.delete([wal_key(CLUSTER, chain_name(0), 1)])
    await world.owners[0].seal(chain_name(2))
    await world.commit(2, 4)
    assert (await world.find()).epochs == {NAME: LaterEpoch(4, chain_name(2))}


async def test_chains_are_followed_step_by_step_and_in_circles(world: World) -> None:
    for number in range(39):
        await world.note(number, number + 1)
    await world.note(39, 3)
    await world.commit(39, 9)
    await world.commit(20, 4, OTHER)
    found = await world.find()
    assert found.epochs == {
        NAME: LaterEpoch(9, chain_name(39)),
        OTHER: LaterEpoch(4, chain_name(20)),
    }
    assert found.is_whole


async def test_many_heirs_of_one_chain_are_all_looked_at(world: World) -> None:
    for number in range(1, 40):
        await world.note(0, number)
        await world.commit(number, number + 1)
    assert (await world.find()).epochs == {NAME: LaterEpoch(40, chain_name(39))}


async def test_another_try_reads_what_came_since(world: World) -> None:
    await world.note(0, 1)
    for _ in range(20):
        await world.commit(1, 2)
    await world.find()
    world.store.read_count = 0
    await world.commit(1, 3)
    assert (await world.find()).epochs == {NAME: LaterEpoch(3, chain_name(1))}
    assert world.store.read_count == 2  # the seal, and the new object


async def test_what_was_read_before_the_seal_is_not_read_after_it(world: World) -> None:
    await world.note(0, 1)
    for _ in range(20):
        await world.commit(1, 2)
    await world.search.read_ahead(chain_name(0), own=OWN)
    assert world.store.read_count == 20
    world.store.read_count = 0
    await world.commit(1, 3)
    assert (await world.find()).epochs == {NAME: LaterEpoch(3, chain_name(1))}
    assert world.store.read_count == 2  # the seal, and the new object


async def test_reading_ahead_leaves_out_the_own_chain(world: World) -> None:
    await world.note(0, 1)
    await world.commit(1, 2)
    await world.search.read_ahead(chain_name(0), own=chain_name(1))
    assert world.store.read_count == 0
    await world.search.read_ahead(chain_name(0), own=None)  # A node without a chain has none.
    assert world.store.read_count == 1


async def test_a_chain_that_lives_long_is_read_by_its_indexes(world: World) -> None:
    """Also what was collected since: else each partition would cost a listing of its segments."""
    owner = world.owners[1]
    for _ in range(3):
        await world.commit(1, 9, OTHER)  # before the note
    await world.note(0, 1)
    for number in range(40):
        await world.commit(1, 2 + number // 20)
    rows = [(s, rows_of(parse_object(built.data, key="x"))) for s, built in owner.stored.items()]
    index = build_index(owner.chain, CLUSTER, rows[:40], created_ms=0)
    await world.store.put(checkpoint_key(CLUSTER, owner.chain, 40), index.data)
    await owner.collect(range(30))
    world.store.read_count = 0
    found = await world.find()
    assert found == Successors({NAME: LaterEpoch(3, owner.chain)}, is_whole=True)
    assert world.store.read_count == 5  # the seal, the index, three objects above
    await owner.collect([40])  # That no index had it cannot be seen any more.
    world.search = SuccessorSearch(world.chains)
    assert not (await world.find()).is_whole


@pytest.mark.parametrize("is_damaged", [False, True], ids=["collected", "damaged"])
async def test_what_cannot_be_read_leaves_a_doubt(world: World, is_damaged: bool) -> None:
    await world.note(0, 1)
    for _ in range(4):
        await world.commit(1, 2)
    assert (await world.find()).is_whole
    key = wal_key(CLUSTER, chain_name(1), 1)
    if is_damaged:
        await world.store.replace(key, (await world.store.get(key))[:-9])
    else:
        await world.store.delete([key])
    world.search = SuccessorSearch(world.chains)
    found = await world.find()
    assert not found.is_whole
    assert found.epochs == {NAME: LaterEpoch(2, chain_name(1))}
