"""An heir that is killed while it refills its logs has lost and doubled nothing when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.log_refill import LIMITS, LogRefill, RefillLimits
from tidelog_node.diskless.recovery.log_tail import LogTail
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.replicas.replica import Replica

from tests.node.diskless.chained_log import CLUSTER
from tests.node.diskless.shared_chain import SharedChain, killed
from tests.node.diskless.test_log_refill import assert_same
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

PARTITIONS, OBJECTS = 5, 6


class Heir:
    """Refills the logs of a folder, until it has read so many objects."""

    def __init__(self, shared: SharedChain, view: ClusterView) -> None:
        self.shared, self._view = shared, view
        self.read_count = 0

    async def refill(
        self, replicas: dict[PartitionName, Replica], *, reads_max: int | None = None
    ) -> dict[PartitionName, Exception]:
        stuck = asyncio.Event()
        self.read_count = 0

        async def read(key: str, start: int, end: int) -> bytes:
            if self.read_count == reads_max:
                stuck.set()
                await asyncio.Event().wait()
            self.read_count += 1
            return await self.shared.store.get_range(key, start, end)

        tails = await self.shared.tails(replicas)
        work = self.refill_with(read, tails)
        if reads_max is None:
            return await work
        working = asyncio.create_task(work)
        waiting = asyncio.create_task(stuck.wait())
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        for _ in range(20):  # What was read before is appended.
            await asyncio.sleep(0)
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
        return {}

    async def refill_with(
        self,
        read: RangeReader,
        tails: dict[PartitionName, LogTail],
        limits: RefillLimits = LIMITS,
    ) -> dict[PartitionName, Exception]:
        context = node_context(MemoryMetadataStore(), self._view)
        refill = LogRefill(context, read, limits=limits)
        return dict(await refill.refill(tails))

    def assert_whole(self, replicas: dict[PartitionName, Replica]) -> None:
        for name, replica in replicas.items():
            assert_same(replica.log, self.shared.logs[name.partition])


@pytest.fixture
async def heir(tmp_path: Path) -> AsyncIterator[Heir]:
    metadata = MemoryMetadataStore()
    await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
    view = ClusterView(metadata)
    await view.refresh()
    shared = SharedChain(tmp_path / "leader", MemoryObjectStore(), PARTITIONS)
    await shared.fill(objects=OBJECTS)
    yield Heir(shared, view)
    shared.close()


def close(replicas: dict[PartitionName, Replica]) -> None:
    for replica in replicas.values():
        replica.log.close()


async def test_each_object_is_read_once_for_all_partitions(heir: Heir, tmp_path: Path) -> None:
    replicas = heir.shared.heir(tmp_path / "heir")
    assert not await heir.refill(replicas)
    heir.assert_whole(replicas)
    assert heir.read_count == heir.shared.object_count == 2 * OBJECTS + 1
    assert not await heir.refill(replicas)
    assert heir.read_count == 0
    close(replicas)


async def test_what_is_read_between_slices_counts_towards_the_bytes_ahead(
    heir: Heir, tmp_path: Path
) -> None:
    """Of an object with many partitions an heir may want few, and reads nearly all of it."""
    replicas = heir.shared.heir(tmp_path / "heir")
    some = {name: replicas[name] for name in (heir.shared.names[0], heir.shared.names[-1])}
    tails = await heir.shared.tails(some)
    wanted_bytes = sum(one.size_bytes for tail in tails.values() for one in tail.slices)
    limit_bytes = wanted_bytes // 2
    read_bytes = in_flight = in_flight_max = 0

    async def read(key: str, start: int, end: int) -> bytes:
        nonlocal read_bytes, in_flight, in_flight_max
        in_flight += end - start
        in_flight_max = max(in_flight_max, in_flight)
        read_bytes += end - start
        for _ in range(20):
            await asyncio.sleep(0)
        in_flight -= end - start
        return await heir.shared.store.get_range(key, start, end)

    limits = RefillLimits(bytes_ahead=limit_bytes)
    assert not await heir.refill_with(read, tails, limits)
    assert read_bytes > 2 * wanted_bytes
    assert in_flight_max <= limit_bytes
    heir.assert_whole(some)
    close(replicas)


@pytest.mark.parametrize("seed", range(8))
async def test_an_heir_is_killed_in_the_middle_and_again_and_has_everything_in_the_end(
    heir: Heir, tmp_path: Path, seed: int
) -> None:
    """The second time, the machine loses power: the ends of files are gone, or zeros."""
    chance = Random(seed)
    folder = tmp_path / "heir"
    for turn in range(3):
        replicas = heir.shared.heir(folder)
        await heir.refill(replicas, reads_max=chance.randrange(4 + 2 * turn))
        folder = killed(folder, tmp_path / f"killed-{turn}")
        close(replicas)
        if turn:
            _cut_some(folder, chance)
    replicas = heir.shared.heir(folder)
    assert not await heir.refill(replicas)
    heir.assert_whole(replicas)
    close(replicas)
    # And it is a log like any other when it is opened once more.
    replicas = heir.shared.heir(folder)
    assert not await heir.refill(replicas)
    assert heir.read_count == 0
    heir.assert_whole(replicas)
    close(replicas)


async def test_a_damaged_slice_fails_its_partition_and_no_other(heir: Heir, tmp_path: Path) -> None:
    replicas = heir.shared.heir(tmp_path / "heir")
    tails = await heir.shared.tails(replicas)
    broken = heir.shared.names[2]
    one = tails[broken].slices[3]
    key = wal_key(CLUSTER, one.chain, one.sequence)
    whole = await heir.shared.store.get(key)
    data = bytearray(whole)
    data[one.position + 70] ^= 1
    store = heir.shared.store
    assert isinstance(store, MemoryObjectStore)
    await store.replace(key, bytes(data))
    failures = await heir.refill(replicas)
    assert failures.keys() == {broken}
    error = failures[broken]
    assert isinstance(error, CorruptObject)
    assert error.key == key
    assert str(broken) in error.problem
    heir.assert_whole({name: replica for name, replica in replicas.items() if name != broken})
    assert replicas[broken].log.log_end_offset == one.base_offset
    await store.replace(key, whole)
    assert not await heir.refill(replicas)
    heir.assert_whole(replicas)
    close(replicas)


async def test_a_missing_object_fails_those_that_need_it(heir: Heir, tmp_path: Path) -> None:
    """And what they alone need behind it is not read."""
    replicas = heir.shared.heir(tmp_path / "heir")
    tails = await heir.shared.tails(replicas)
    one = tails[heir.shared.names[0]].slices[2]
    whole = {name: replicas.pop(name) for name in heir.shared.names[3:]}
    assert not await heir.refill(whole)
    await heir.shared.store.delete([wal_key(CLUSTER, one.chain, one.sequence)])
    refill = LogRefill(node_context(MemoryMetadataStore(), heir._view), heir.shared.store.get_range)
    failures = await refill.refill({name: tails[name] for name in heir.shared.names})
    assert failures.keys() == replicas.keys()
    assert all(isinstance(error, CorruptObject) for error in failures.values())
    for name, replica in replicas.items():
        assert replica.log.log_end_offset == tails[name].slices[2].base_offset
    close(whole | replicas)


def _cut_some(folder: Path, chance: Random) -> None:
    """Cut the last segment of some logs at any byte."""
    for directory in sorted(folder.iterdir()):
        if chance.random() < 0.7:
            path = max(directory.glob("*.log"))
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.truncate(chance.randrange(size + 1))
                if chance.random() < 0.5:
                    file.truncate(size)
