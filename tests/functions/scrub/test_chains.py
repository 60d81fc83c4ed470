"""The scrub and chains: what is needed stays, what is not goes, and little is asked for."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest
from tidelog_core.diskless.chain.start_probe import probe_key
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.collection.sealed_chain import collect_sealed, unneeded_end
from tidelog_core.diskless.wal.build import WalSlice, build_seal
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import (
    Heir,
    chains_prefix,
    checkpoint_key,
    heir_key,
    wal_key,
)
from tidelog_core.erasure.wal_copies import WalCopies
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import EpochChain, EpochChains
from tidelog_core.metadata.records import Topic
from tidelog_core.metadata.store import ALL_KEYS, Item, KeyRange
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.expiry import ExpiryRule
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_functions.invocation import TimeLimit
from tidelog_functions.scrub.chains import (
    CHAIN_AGE_MS,
    READ,
    UNNEEDED,
    ChainScrub,
    KnownTopics,
)
from tidelog_functions.scrub.scrub_run import ScrubRun
from tidelog_functions.scrub.settings import ScrubSettings

from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.function_world import (
    CLUSTER_ID,
    DAY_MS,
    LIMITS,
    FunctionWorld,
    Steps,
    age_orphans,
)
from tests.support.wal_objects import batch

A, B = chain_name(1), chain_name(2)
SEALED_LONG_MS = 2 * CHAIN_AGE_MS  # then no leader puts references to a chain any more


class CountedObjects(MemoryObjectStore):
    """Counts requests, a listing's by its pages, and refuses to delete what must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.rules: list[ExpiryRule] = []

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        self.requests["get"] += 1
        return await super().get_range(key, start, end)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        count = 0
        async for found in super().list(prefix, start_after=start_after):
            count += 1
            yield found
        self.requests["list"] += max(1, -(-count // 1_000))

    async def delete(self, keys: Sequence[str]) -> None:
        self.requests["delete"] += 1
        await super().delete(keys)

    async def expiry_rules(self) -> Sequence[ExpiryRule]:
        return self.rules


class CountedItems(SqliteMetadataStore):
    """Counts the items that were listed."""

    item_count = 0

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found = await super().list(collection, prefix=prefix, keys=keys)
        self.item_count += len(found)
        return found


class ChainWorld(FunctionWorld):
    """A diskless topic, and two chains: A of a node that has gone, B of the current leader."""

    objects: CountedObjects
    topic: Topic
    name: PartitionName

    async def begin(self, object_count: int = 3, *, tiered_to: int = 0) -> None:
        """Partition 0 has 10 offsets in each object of A, then goes on in B."""
        await self.start()
        self.topic = await self.create_topic(configs={"diskless.enable": "true"})
        self.name = PartitionName(self.topic.topic_id, 0)
        self.old = ChainOwner(self.objects, CLUSTER_ID, A)
        for number in range(object_count):
            await self.old.commit_batches(self.name, 0, batch(number * 10, 10))
        self.new = ChainOwner(self.objects, CLUSTER_ID, B)
        self.end = object_count * 10
        await self.take_over()
        for base in range(0, tiered_to, 10):
            await self.copy(self.topic, base)

    async def take_over(self) -> None:
        await self.old.seal(B)
        await self.name_chains((EpochChain(0, A, 0), EpochChain(1, B, self.end)))
        await self.new.commit_batches(self.name, 1, batch(self.end, 10))

    async def name_chains(self, chains: EpochChains) -> None:
        partition = await self.partition(self.topic)
        await self.store.commit([records.put(dataclasses.replace(partition, wal=chains))])

    async def chain_keys(self) -> list[str]:
        prefix = chains_prefix(CLUSTER_ID)
        return [one.key async for one in self.objects.list(prefix)]

    def seal_key(self) -> str:
        return wal_key(CLUSTER_ID, A, self.old.committed_end)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ChainWorld]:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    yield ChainWorld(store, CountedObjects())
    await store.close()


async def scrub_when_old(world: ChainWorld) -> None:
    """Scrub twice, more than the age of orphans apart."""
    await world.scrub()
    await age_orphans(world.store, by_ms=DAY_MS + 1)
    report = await world.scrub()
    assert report.failed == {}


async def test_a_sealed_chain_is_collected_once_everything_is_tiered(world: ChainWorld) -> None:
    await world.begin(tiered_to=30)
    await world.objects.put(checkpoint_key(CLUSTER_ID, A, 2), b"checkpoint")
    young = await world.scrub()
    assert (young.chains.young_count, young.chains.collected_count) == (4, 0)
    await age_orphans(world.store, by_ms=DAY_MS + 1)
    dry = await world.scrub(dry_run=True)
    assert (dry.chains.collected_count, len(await world.chain_keys())) == (4, 6)
    report = await world.scrub()
    assert (report.chains.chain_count, report.chains.collected_count) == (2, 4)
    assert report.foreign_count == 0
    assert await world.chain_keys() == [world.seal_key(), wal_key(CLUSTER_ID, B, 0)]
    assert await world.store.list(records.SCRUB_ORPHANS_COLLECTION) == []
    assert report.chains.problems == []


async def test_the_note_of_an_heir_stays_as_long_as_metadata_may_be_set_back(
    world: ChainWorld,
) -> None:
    await world.begin(tiered_to=30)
    note = heir_key(CLUSTER_ID, A, Heir(B, 0))
    await world.old.chains.note_heir(A, Heir(B, 0))
    await world.old.chains.note_heir(A, Heir(B, 0))
    await scrub_when_old(world)
    left = [world.seal_key(), note, wal_key(CLUSTER_ID, B, 0)]
    assert await world.chain_keys() == left
    data, modified_ms = world.objects._objects[note]
    world.objects._objects[note] = data, modified_ms - 41 * DAY_MS
    assert (await world.scrub(dry_run=True)).foreign_count == 0
    assert await world.chain_keys() == left
    await world.scrub()
    assert await world.chain_keys() == [world.seal_key(), wal_key(CLUSTER_ID, B, 0)]


async def test_what_the_tier_lacks_stays_however_old(world: ChainWorld) -> None:
    await world.begin(tiered_to=20)
    before = await world.chain_keys()
    await scrub_when_old(world)
    assert await world.chain_keys() == before


async def test_footers_decide_not_the_items(world: ChainWorld) -> None:
    """The metadata was set back: no item names the chain, but the tier lacks its last records."""
    await world.begin(tiered_to=20)
    await world.name_chains(())
    await scrub_when_old(world)
    assert await world.chain_keys() == [
        wal_key(CLUSTER_ID, A, 2), world.seal_key(), wal_key(CLUSTER_ID, B, 0),
    ]  # fmt: skip
    # What stays is not read with every sweep.
    world.objects.requests.clear()
    await world.scrub()
    assert world.objects.requests["get"] == 0


async def test_a_chain_without_a_seal_is_never_touched(world: ChainWorld) -> None:
    await world.begin(tiered_to=40)
    await world.objects.delete([world.seal_key()])
    await world.name_chains(())
    before = await world.chain_keys()
    await scrub_when_old(world)
    assert await world.chain_keys() == before


async def test_garbage_above_the_seal_goes_and_a_late_seal_stays(world: ChainWorld) -> None:
    await world.begin(tiered_to=30)
    world.old.build([WalSlice(*world.name, 0, batch(30, 1))])
    garbage = world.old.build([WalSlice(*world.name, 0, batch(31, 1))])
    await world.old.chains.put(A, 4, garbage.data)
    late = world.old._name(0)._replace(committed_end=0)
    await world.objects.delete([wal_key(CLUSTER_ID, A, 0)])
    await world.old.chains.put(A, 0, build_seal(late, B).data)
    await scrub_when_old(world)
    assert await world.chain_keys() == [
        wal_key(CLUSTER_ID, A, 0), world.seal_key(), wal_key(CLUSTER_ID, B, 0),
    ]  # fmt: skip


async def test_chains_of_a_deleted_topic_go_and_of_an_unknown_one_later(world: ChainWorld) -> None:
    await world.begin()
    tombstone = await world.delete_topic(world.topic)
    await scrub_when_old(world)
    assert wal_key(CLUSTER_ID, A, 0) not in await world.chain_keys()
    unknown = ChainOwner(world.objects, CLUSTER_ID, chain_name(3))
    await unknown.commit_batches(PartitionName(chain_name(9).chain_id, 0), 0, batch(0, 1))
    await unknown.seal(B)
    await scrub_when_old(world)
    assert wal_key(CLUSTER_ID, chain_name(3), 0) in await world.chain_keys()
    await age_orphans(world.store, by_ms=7 * DAY_MS)
    await world.scrub()
    assert wal_key(CLUSTER_ID, chain_name(3), 0) not in await world.chain_keys()
    assert tombstone.topic_id == world.topic.topic_id


async def test_a_topic_that_was_created_during_the_sweep_is_not_unknown(world: ChainWorld) -> None:
    """Its leader has used a chain that nobody needed for long, and has gone since."""
    await world.begin()
    before = await world.chain_keys()
    run = ScrubRun(
        store=world.store,
        objects=world.objects,
        cluster_id=CLUSTER_ID,
        settings=ScrubSettings(limits=LIMITS),
        clock_ms=world.clock,
        limit=TimeLimit(Steps()),
    )
    chains = ChainScrub(run, KnownTopics({}, (), is_complete=True))  # as they were before
    listed = [one async for one in world.objects.list(chains_prefix(CLUSTER_ID))]
    objects = [one for one in listed if str(A.chain_id) in one.key]
    long_ago = {UNNEEDED: world.clock() - 8 * DAY_MS}
    assert await chains.visit(objects, long_ago) == long_ago | {READ: world.clock()}
    assert await world.chain_keys() == before


async def test_what_a_restoration_has_left_out_stays_for_a_while(world: ChainWorld) -> None:
    """Behind a gap the log has begun again: whoever mends the bucket may restore once more."""
    await world.begin()
    before = await world.chain_keys()
    partition = dataclasses.replace(
        await world.partition(world.topic),
        wal=(EpochChain(1, B, 30),),
        log_start_offset=30,
        restored_log_start=30,
    )
    await world.store.commit([records.put(partition)])
    await scrub_when_old(world)
    assert await world.chain_keys() == before
    await age_orphans(world.store, by_ms=7 * DAY_MS)
    await world.scrub()
    assert await world.chain_keys() == [world.seal_key(), wal_key(CLUSTER_ID, B, 0)]


async def test_a_time_in_the_future_does_not_put_a_chain_off(world: ChainWorld) -> None:
    """The clock was wrong when the chain was read."""
    await world.begin(tiered_to=20)
    await world.name_chains(())
    await scrub_when_old(world)
    await age_orphans(world.store, by_ms=-365 * DAY_MS)
    await world.copy(world.topic, 20)
    await world.scrub()
    await scrub_when_old(world)
    assert await world.chain_keys() == [world.seal_key(), wal_key(CLUSTER_ID, B, 0)]


async def test_the_end_of_a_long_tier_is_found_by_its_last_segments(tmp_path: Path) -> None:
    store = CountedItems(tmp_path / "metadata.db")
    world = ChainWorld(store, CountedObjects())
    await world.begin(1, tiered_to=200)
    partition = await world.partition(world.topic)
    store.item_count = 0
    assert await unneeded_end(store, partition) == 200
    assert store.item_count >= 20
    store.item_count = 0
    partition = dataclasses.replace(partition, wal=(EpochChain(1, B, 190),))
    assert await unneeded_end(store, partition) == 200
    assert store.item_count < 12
    await store.close()


async def test_what_an_hour_of_objects_needs_is_not_kept_in_memory(world: ChainWorld) -> None:
    await world.begin(1)
    chain = ChainOwner(world.objects, CLUSTER_ID, chain_name(3))
    for number in range(300):
        await chain.commit(
            [WalSlice(world.topic.topic_id, n, 0, batch(number, 1)) for n in range(50)]
        )
    await chain.seal(B)
    asked: list[int] = []

    async def read_unneeded(names: Collection[PartitionName]) -> UnneededEnds:
        asked.append(len(names))
        return UnneededEnds(dict.fromkeys(names, 200))

    tracemalloc.start()
    try:
        found = await collect_sealed(chain.chains, CLUSTER_ID, chain.chain, read_unneeded)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.deleted), len(found.kept), asked) == (200, 100, [50])
    assert peak < 3 * 1024 * 1024  # 64 footers are read at once; 15,000 names take more than this


async def test_a_damaged_object_stays_and_is_named(world: ChainWorld) -> None:
    await world.begin(tiered_to=30)
    key = wal_key(CLUSTER_ID, A, 1)
    await world.objects.replace(key, (await world.objects.get(key))[:-1] + b"x")
    await world.scrub()
    await age_orphans(world.store, by_ms=DAY_MS + 1)
    report = await world.scrub()
    assert report.chains.problem_count == 1
    assert report.chains.problems[0].startswith(f"{key}: ")
    assert await world.chain_keys() == [key, world.seal_key(), wal_key(CLUSTER_ID, B, 0)]


async def test_a_chain_that_is_needed_and_has_no_object_left_is_a_problem(
    world: ChainWorld,
) -> None:
    await world.begin(tiered_to=20)
    await world.objects.delete([key for key in await world.chain_keys() if str(A.chain_id) in key])
    report = await world.scrub()
    (problem,) = report.chains.problems
    assert "offsets [20, 30) of events-0" in problem
    assert "lifecycle rule" in problem


@pytest.mark.parametrize("tiered_to", [0, 20], ids=["nothing tiered", "a part tiered"])
async def test_a_chain_with_deleted_records_alone_is_not_missed(
    world: ChainWorld, tiered_to: int
) -> None:
    """The item keeps it for the next heir, which finds there who has written them."""
    await world.begin(tiered_to=tiered_to)
    partition = await world.partition(world.topic)
    await world.store.commit([records.put(dataclasses.replace(partition, log_start_offset=30))])
    await scrub_when_old(world)
    assert await world.chain_keys() == [world.seal_key(), wal_key(CLUSTER_ID, B, 0)]
    await world.objects.delete([world.seal_key()])
    report = await world.scrub()
    assert report.chains.problems == []


async def test_a_rule_that_deletes_objects_of_chains_is_a_problem(world: ChainWorld) -> None:
    await world.begin()
    world.objects.rules = [
        ExpiryRule("old logs", f"{CLUSTER_ID}/wal/", "after 3 days"),
        ExpiryRule("staging", ".staging/", "after 1 days"),
    ]
    report = await world.scrub()
    assert report.chains.problems == [
        f"the bucket's lifecycle rule 'old logs' deletes objects below {CLUSTER_ID}/wal/ after 3"
        " days, which diskless topics need: limit the rule to another prefix, or remove it"
    ]


async def test_foreign_objects_among_chains_are_left_alone(world: ChainWorld) -> None:
    await world.begin(tiered_to=30)
    folder = chains_prefix(CLUSTER_ID)
    foreign = [
        f"{folder}{A.broker_id:010d}/{A.chain_id}/{1:020d}.wal.bak",
        f"{folder}{A.broker_id:010d}/notes.txt",
        f"{folder}notes/2026/11.txt",
    ]
    for key in foreign:
        await world.objects.put(key, b"?")
    await scrub_when_old(world)
    assert (await world.scrub()).foreign_count == 3
    left = [world.seal_key(), wal_key(CLUSTER_ID, B, 0), *foreign]
    assert await world.chain_keys() == sorted(left)


async def test_what_a_probe_has_left_goes(world: ChainWorld) -> None:
    await world.start()
    await world.objects.put(probe_key(CLUSTER_ID, A.chain_id), b"first")
    await scrub_when_old(world)
    assert await world.chain_keys() == []


async def test_ten_thousand_objects_are_listed_and_not_read(world: ChainWorld) -> None:
    await world.begin(1)
    data = await world.objects.get(wal_key(CLUSTER_ID, A, 0))
    chain = chain_name(3)
    for sequence in range(10_000):
        await world.objects.put(wal_key(CLUSTER_ID, chain, sequence), data)
    await world.name_chains(
        (EpochChain(0, A, 0), EpochChain(1, chain, 10), EpochChain(2, B, 100_010))
    )
    world.objects.requests.clear()
    for _ in range(2):
        report = await world.scrub()
    assert report.chains.chain_count == 3
    assert report.object_count == 10_003
    assert world.objects.requests == {"list": 2 * 11}


async def test_retention_collects_a_chain_within_two_hours(world: ChainWorld) -> None:
    await world.begin(tiered_to=30)
    unknown = ChainOwner(world.objects, CLUSTER_ID, chain_name(3))
    await unknown.commit_batches(PartitionName(chain_name(9).chain_id, 0), 0, batch(0, 1))
    await unknown.seal(B)
    for _ in range(7):  # every 15 minutes
        await world.retain()
        await age_orphans(world.store, by_ms=15 * 60_000)
    assert await world.chain_keys() == [
        world.seal_key(), wal_key(CLUSTER_ID, B, 0),
        *(wal_key(CLUSTER_ID, chain_name(3), n) for n in range(2)),
    ]  # fmt: skip
    world.objects.requests.clear()
    result = await world.retain()
    assert (result.chain_object_deleted_count, result.failed) == (0, {})
    assert world.objects.requests == {"list": 1}


async def test_retention_collects_what_the_last_diskless_topic_has_left_within_two_hours(
    world: ChainWorld,
) -> None:
    """No live topic is diskless, and the topic's own objects and items are gone for long."""
    await world.begin()
    await world.new.seal(A)
    await world.delete_topic(world.topic)
    for _ in range(8):  # every 15 minutes
        result = await world.retain()
        assert result.failed == {}
        world.clock.now_ms += 15 * 60_000
    assert await world.store.list(records.partition_collection(world.topic.topic_id)) == []
    assert await world.chain_keys() == [world.seal_key(), wal_key(CLUSTER_ID, B, 1)]
    world.objects.requests.clear()
    await world.retain()
    # Of the deleted topic nothing is looked for any more.
    assert world.objects.requests == {"list": 1}
    world.clock.now_ms += DAY_MS
    await world.retain()
    assert await world.store.list(records.DELETED_TOPIC_COLLECTION) == []


async def test_an_erasure_is_not_held_up_by_records_of_a_deleted_topic(world: ChainWorld) -> None:
    """What nobody needs of the topic itself stays as long as its neighbours in the objects do."""
    await world.begin(tiered_to=30)
    other = await world.create_topic("other", configs=world.topic.configs)
    name = PartitionName(other.topic_id, 0)
    await world.new.commit(
        [WalSlice(*world.name, 1, batch(40, 5)), WalSlice(*name, 0, batch(0, 5))]
    )
    await world.new.seal(A)
    for base in (30, 40):
        await world.copy(world.topic, base)
    await world.name_chains(())
    copies = WalCopies(world.store, world.objects, CLUSTER_ID)
    frontier = await copies.frontier()
    assert await copies.remaining(frontier, {world.name}) == {world.name}
    await copies.collect()
    assert await copies.remaining(frontier, {world.name}) == {world.name}
    await world.delete_topic(other)
    await world.retain()
    world.clock.now_ms += 15 * 60_000
    await world.retain()  # Its items are gone now.
    await copies.collect()
    assert await copies.remaining(frontier, {world.name}) == set()


async def gateways_chain(world: ChainWorld) -> ChainOwner:
    """Return a gateway's chain: to the first object the leader has a reference, then garbage."""
    gateway = ChainOwner(world.objects, CLUSTER_ID, chain_name(3))
    for number in range(2):
        foreign = WalSlice(*world.name, -1, batch(number, 10), is_foreign=True)
        assert await gateway.commit([foreign]) == number
    reference = gateway.foreign(0, 1, world.end + 10)
    await world.new.commit([], references=[reference])
    return gateway


async def test_what_a_gateway_has_goes_once_no_reference_names_it(world: ChainWorld) -> None:
    await world.begin()
    gateway = await gateways_chain(world)
    await gateway.seal(B)
    await scrub_when_old(world)
    keys = await world.chain_keys()
    assert wal_key(CLUSTER_ID, gateway.chain, 1) in keys, "a reference may still come"
    world.clock.now_ms += SEALED_LONG_MS
    await scrub_when_old(world)
    keys = await world.chain_keys()
    assert wal_key(CLUSTER_ID, gateway.chain, 0) in keys, "the leader refers to it"
    assert wal_key(CLUSTER_ID, gateway.chain, 1) not in keys, "nobody does"
    # The leader's object goes when the tier has its records.
    await world.objects.delete([wal_key(CLUSTER_ID, B, 1)])
    await age_orphans(world.store, by_ms=DAY_MS + 1)
    await world.scrub()
    keys = [key for key in await world.chain_keys() if str(gateway.chain.chain_id) in key]
    assert keys == [wal_key(CLUSTER_ID, gateway.chain, 2)], "the seal stays"


async def test_a_damaged_object_may_refer_to_anything(world: ChainWorld) -> None:
    await world.begin()
    gateway = await gateways_chain(world)
    await gateway.seal(B)
    key = wal_key(CLUSTER_ID, B, 1)
    await world.objects.replace(key, (await world.objects.get(key))[:-1] + b"x")
    await world.scrub()
    await age_orphans(world.store, by_ms=DAY_MS + 1)
    world.clock.now_ms += SEALED_LONG_MS
    report = await world.scrub()
    assert report.chains.problem_count or report.failed
    assert wal_key(CLUSTER_ID, gateway.chain, 1) in await world.chain_keys()
