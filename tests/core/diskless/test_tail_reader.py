"""Readers of chains: they see what is committed, all of it, and ask for little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from tidelog_core.diskless.chain.follower import ChainFollower
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.tail.partition_tail import TailView
from tidelog_core.diskless.tail.reader import TailReader
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject, ObjectNotFound, StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta, ObjectStore
from tidelog_core.records.control import ControlType

from tests.core.diskless.tail_world import (
    InterruptedStore,
    Led,
    TailWorld,
    chains_of,
)
from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.wal_objects import CLUSTER, TOPIC_ID, batch

T0 = PartitionName(TOPIC_ID, 0)
T1 = PartitionName(TOPIC_ID, 1)
A, B, C = (chain_name(number) for number in range(3))


# -- against a model, by chance --


def run_schedule(seed: int, store: ObjectStore, *, rounds: int = 40) -> TailWorld:
    """Let a reader look again and again while things happen, and check what it sees."""

    async def run() -> TailWorld:
        world = TailWorld(store, seed)
        random = world.random

        async def interrupt() -> None:
            if random.random() < 0.3:
                for _ in range(random.randint(1, 12)):
                    await world.step()
            if random.random() < 0.02:
                raise StoreUnavailable("injected")

        reader = TailReader(ChainStore(InterruptedStore(store, interrupt), CLUSTER))  # type: ignore[arg-type]
        wanted = world.led[:2]
        for number in range(rounds):
            for _ in range(random.randint(0, 12)):
                await world.step()
            wanted = world.led[: 2 if number < rounds // 2 else 3]
            items = {led.name: led.chains for led in wanted}
            committed = {led.name: world.committed_end(led) for led in wanted}
            chains = chains_of(wanted)
            for _ in range(100):
                with suppress(StoreUnavailable):
                    await reader.refresh(items.keys(), chains)
                    break
            else:
                raise AssertionError("a refresh that failed cannot be repeated")
            for led in wanted:
                view = reader.view(led.name, led.tier_end, items[led.name])
                check_view(led, view, world)
                assert view.end_offset >= committed[led.name], "an acknowledged record is not seen"
                await check_bytes(store, view)
        return world

    return asyncio.run(run())


def check_view(led: Led, view: TailView, world: TailWorld) -> None:
    """Check that the view is the partition's history from its tier's end on."""
    assert view.missing is None
    assert view.start_offset == led.tier_end <= view.end_offset <= world.committed_end(led)
    rows = [row for one in view.slices for row in one.batches]
    seen = [
        (row.base_offset, row.producer_id, row.marker)
        for row in rows
        if row.base_offset >= view.start_offset
    ]
    expected: list[tuple[int, int, int]] = []
    for one in led.entries:
        if view.start_offset <= one.base and one.end <= view.end_offset:
            expected.append((one.base, one.producer, -1 if one.marker is None else one.marker))
            if one.foreign is not None:  # its second batch
                expected.append((one.end - 2, -1, -1))
    assert seen == expected
    began = led.open_at(view.end_offset)
    stable = min([view.end_offset, *led.open_at(view.end_offset, view.start_offset).values()])
    assert view.start_offset <= view.stable_offset <= stable
    if all(first >= view.start_offset for first in began.values()):
        assert view.stable_offset == stable
    hidden = {
        row.base_offset
        for row in rows
        for aborted in view.aborted
        if row.producer_id == aborted.producer_id
        and row.marker == -1
        and row.attributes & 0x10
        and aborted.first_offset <= row.base_offset <= aborted.last_offset
    }
    visible = range(view.start_offset, view.stable_offset)
    assert hidden & set(visible) == led.hidden() & set(visible)


async def check_bytes(store: ObjectStore, view: TailView) -> None:
    """Check that the slices name bytes that are there; nothing that is not tiered was collected."""
    for one in view.slices:
        key = wal_key(CLUSTER, one.chain, one.sequence)
        data = await store.get_range(key, one.position, one.position + one.size_bytes)
        assert crc32c(data) == one.crc32c


@pytest.mark.parametrize("seed", range(40))
def test_a_reader_sees_every_acknowledged_record_and_no_other(seed: int) -> None:
    run_schedule(seed, MemoryObjectStore())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first_seed", range(1_000, 5_000, 500))
def test_a_reader_sees_the_same_under_thousands_of_schedules(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        try:
            run_schedule(seed, MemoryObjectStore())
        except BaseException:
            print(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(2))
def test_a_folder_is_read_like_memory(seed: int, tmp_path: Path) -> None:
    run_schedule(seed, FolderObjectStore(tmp_path), rounds=12)


def test_the_schedules_have_everything_that_a_reader_may_meet() -> None:
    sealed = collected = references = aborted = epochs = 0
    for seed in range(6):
        world = run_schedule(seed, MemoryObjectStore())
        sealed += len(world.sealed)
        collected += sum(map(len, world.collected.values()))
        epochs += sum(led.chains[-1].leader_epoch for led in world.led)
        for led in world.led:
            references += sum(1 for one in led.entries if one.foreign is not None)
            aborted += sum(1 for one in led.entries if one.marker is ControlType.ABORT)
    assert min(sealed, collected, references, aborted, epochs) > 10


# -- one thing after the other --


def items(*chains: tuple[int, ChainName, int]) -> EpochChains:
    return tuple(EpochChain(*one) for one in chains)


def bases(view: TailView) -> list[int]:
    return [one.base_offset for one in view.slices]


class Bucket:
    """A memory store that counts the requests of its readers."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.counted = InterruptedStore(self.store, self._nothing)
        self.reader = TailReader(ChainStore(self.counted, CLUSTER))  # type: ignore[arg-type]

    def owner(self, chain: ChainName) -> ChainOwner:
        return ChainOwner(self.store, CLUSTER, chain)

    async def view(
        self, chains: EpochChains, tiered_end: int = 0, partition: PartitionName = T0
    ) -> TailView:
        await self.reader.refresh([partition], {one.chain for one in chains})
        return self.reader.view(partition, tiered_end, chains)

    def take_counts(self) -> tuple[int, int]:
        """Return how many listings and reads there were since the last call."""
        counts = (self.counted.list_count, self.counted.get_count)
        self.counted.list_count = self.counted.get_count = 0
        return counts

    async def _nothing(self) -> None:
        return


async def test_an_idle_reader_lists_each_live_chain_once_and_reads_nothing() -> None:
    bucket = Bucket()
    first, second = bucket.owner(A), bucket.owner(B)
    await first.commit_batches(T0, 0, batch(0))
    await first.seal(B)
    await second.commit_batches(T0, 1, batch(2))
    second.build([WalSlice(*T0, 1, batch(4))])  # A gap: its PUT does not come.
    second.build([WalSlice(*T0, 1, batch(6))])
    await second.put(2)
    chains = items((0, A, 0), (1, B, 2))
    for _ in range(2):
        assert bases(await bucket.view(chains)) == [0, 2]
    bucket.take_counts()
    for _ in range(3):
        assert bases(await bucket.view(chains)) == [0, 2]
    assert bucket.take_counts() == (3, 0)
    await second.put(1)
    assert bases(await bucket.view(chains)) == [0, 2, 4, 6]
    assert bucket.take_counts() == (1, 1)  # What was above the gap is known.


async def test_what_was_collected_is_left_to_the_tier() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 12, 2):
        await owner.commit_batches(T0, 0, batch(base))
    await owner.collect([0, 1, 2])
    found = await bucket.reader.refresh([T0], [A])
    assert (found.is_grown, found.is_collected) == (True, True)
    assert bases(bucket.reader.view(T0, 6, items((0, A, 0)))) == [6, 8, 10]
    found = await bucket.reader.refresh([T0], [A])
    assert (found.is_grown, found.is_collected) == (False, False)


async def test_offsets_that_neither_the_tier_nor_a_chain_has_are_missing() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 8, 2):
        await owner.commit_batches(T0, 0, batch(base))
    await owner.collect([1])
    view = await bucket.view(items((0, A, 0)))
    assert (view.end_offset, view.missing) == (2, (2, 4))
    over = bucket.reader.view(T0, 0, items((0, A, 0)), is_over_gaps=True)
    assert (bases(over), over.end_offset, over.missing) == ([0, 4, 6], 8, (2, 4))


async def test_records_from_before_the_first_chain_are_waited_for() -> None:
    """A topic that became diskless: its older records are on nodes until they are tiered."""
    bucket = Bucket()
    await bucket.owner(A).commit_batches(T0, 3, batch(10))
    chains = items((3, A, 10))
    view = await bucket.view(chains, tiered_end=4)
    assert (view.start_offset, view.end_offset, view.missing) == (4, 4, None)
    assert bases(await bucket.view(chains, tiered_end=10)) == [10]


async def test_slices_of_an_epoch_that_the_item_did_not_name_wait_for_it() -> None:
    bucket = Bucket()
    first, second = bucket.owner(A), bucket.owner(B)
    await first.commit_batches(T0, 0, batch(0))
    await first.commit_batches(T0, 2, batch(4))
    await second.commit_batches(T0, 1, batch(2))
    assert bases(await bucket.view(items((0, A, 0)))) == [0]
    assert bases(await bucket.view(items((0, A, 0), (1, B, 2), (2, A, 4)))) == [0, 2, 4]


async def test_a_partition_that_is_wanted_later_is_read_from_its_first_object_on() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 20, 2):
        await owner.commit_batches(T0, 0, batch(base))
    await owner.commit([WalSlice(*T1, 0, batch(0)), WalSlice(*T0, 0, batch(20))])
    chains = items((0, A, 0))
    await bucket.view(chains)
    bucket.take_counts()
    await bucket.reader.refresh([T0, T1], [A])
    assert bases(bucket.reader.view(T1, 0, chains)) == [0]
    assert bases(bucket.reader.view(T0, 0, chains)) == list(range(0, 22, 2))
    assert bucket.take_counts() == (2, 1)


async def test_a_failed_listing_costs_a_repetition_and_no_record() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 8, 2):
        await owner.commit_batches(T0, 0, batch(base))
    fails = True

    class Failing(InterruptedStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
            if fails and key.endswith("2.wal"):
                raise StoreUnavailable("injected")
            return await super().get_range(key, start, end)

    reader = TailReader(ChainStore(Failing(bucket.store, bucket._nothing), CLUSTER))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await reader.refresh([T0], [A])
    fails = False
    await reader.refresh([T0], [A])
    assert bases(reader.view(T0, 0, items((0, A, 0)))) == [0, 2, 4, 6]


async def test_a_damaged_object_is_named() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    await owner.commit_batches(T0, 0, batch(0))
    key = wal_key(CLUSTER, A, 1)
    await bucket.store.put(key, b"x" * 500)
    with pytest.raises(CorruptObject) as caught:
        await bucket.view(items((0, A, 0)))
    assert key in str(caught.value)


async def test_an_object_that_the_listing_missed_is_no_collected_one() -> None:
    """A page of a listing may be older than the next one, which has what came after the object."""
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 12, 2):
        owner.build([WalSlice(*T0, 0, batch(base))])
    for sequence in (0, 2, 3):
        await owner.put(sequence)

    class Growing(InterruptedStore):
        async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
            async for meta in super().list(prefix, start_after=start_after):
                yield meta
                if meta.key.endswith("3.wal"):  # The page is full.
                    for sequence in sorted(owner.in_flight):
                        await owner.put(sequence)
                    await owner.commit_batches(T0, 0, batch(owner.next_sequence * 2))

    reader = TailReader(ChainStore(Growing(bucket.store, bucket._nothing), CLUSTER))  # type: ignore[arg-type]
    assert not (await reader.refresh([T0], [A])).is_collected
    view = reader.view(T0, 0, items((0, A, 0)))
    assert (bases(view)[:7], view.missing) == (list(range(0, 14, 2)), None)


async def test_a_seal_counts_by_a_listing_that_is_younger() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    await owner.commit_batches(T0, 0, batch(0))
    await owner.seal(B)
    listed = await owner.chains.list(A)
    footers = {one.sequence: await owner.chains.footer(A, one) for one in listed}
    follower = ChainFollower()
    for is_sealed in (False, True):
        assert follower.start() == (1 if is_sealed else 0)
        follower.on_listed(listed)
        if wanted := follower.wanted():
            follower.on_footers({one.sequence: footers[one.sequence] for one in wanted})
        assert len(follower.take()) == (0 if is_sealed else 1)
        assert (follower.end, follower.is_sealed) == (1, is_sealed)


async def test_a_late_seal_ends_nothing() -> None:
    """The object was collected after the listing had named it, and the seal took its place."""
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 6, 2):
        await owner.commit_batches(T0, 0, batch(base))
    listed = await owner.chains.list(A)
    footers = {one.sequence: await owner.chains.footer(A, one) for one in listed}
    await owner.collect([1])
    await owner.seal(B, at=1)
    seal = await owner.chains.footer(A, (await owner.chains.list(A, 1))[0])
    follower = ChainFollower()
    follower.start()
    follower.on_listed(listed[:2])
    follower.on_footers({0: footers[0], 1: seal})
    assert [one.header.sequence for one in follower.take()] == [0]
    assert (follower.end, follower.is_sealed) == (1, False)
    follower.start()
    follower.on_listed(listed[1:])
    follower.on_footers({one.sequence: footers[one.sequence] for one in follower.wanted()})
    assert [one.header.sequence for one in follower.take()] == [2]
    assert (follower.end, follower.is_sealed) == (3, False)


async def test_a_seal_in_the_place_of_a_listed_object_is_listed_again() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 8, 2):
        await owner.commit_batches(T0, 0, batch(base))

    class Replacing(InterruptedStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
            if key.endswith("1.wal"):
                await owner.collect([1])
                await owner.seal(B, at=1)
            return await super().get_range(key, start, end)

    reader = TailReader(ChainStore(Replacing(bucket.store, bucket._nothing), CLUSTER))  # type: ignore[arg-type]
    await reader.refresh([T0], [A])
    assert bases(reader.view(T0, 4, items((0, A, 0)))) == [4, 6]


async def test_many_objects_are_read_in_portions() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 400, 2):
        await owner.commit_batches(T0, 0, batch(base))
    await owner.collect(range(20))
    view = await bucket.view(items((0, A, 0)), tiered_end=40)
    assert bases(view) == list(range(40, 400, 2))
    assert bucket.take_counts() == (2, 180)  # 20 are missing: a second listing says why.


async def test_objects_that_go_while_they_are_read_are_listed_again() -> None:
    bucket = Bucket()
    owner = bucket.owner(A)
    for base in range(0, 8, 2):
        await owner.commit_batches(T0, 0, batch(base))

    class Going(InterruptedStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
            if key.endswith("0.wal"):
                await owner.collect([0, 1])
                raise ObjectNotFound(key)
            return await super().get_range(key, start, end)

    reader = TailReader(ChainStore(Going(bucket.store, bucket._nothing), CLUSTER))  # type: ignore[arg-type]
    assert (await reader.refresh([T0], [A])).is_collected
    assert bases(reader.view(T0, 4, items((0, A, 0)))) == [4, 6]
