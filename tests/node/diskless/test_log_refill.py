"""What a log is made of before its partition is led: the local bytes that are right, and chains."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject, StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.log.values import CorruptLog
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, Partition, put
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.records.header import iter_headers
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_node.diskless.recovery import log_refill, slice_appends
from tidelog_node.diskless.recovery.chain_slices import (
    StoredSlice,
    WantedSlices,
    find_slices,
    log_of,
)
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.log_tail import LogTail, finish
from tidelog_node.diskless.recovery.log_tail import RefillTarget as RefilledReplica
from tidelog_node.replicas.replica import Replica

from tests.node.diskless.chained_log import (
    CLUSTER,
    NAME,
    TOPIC_ID,
    ChainedLog,
    filled,
    new_chain,
    replica_over,
)
from tests.support.batches import batch
from tests.support.log_building import PARTITION, content_of, open_log
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

P = ParamSpec("P")
T = TypeVar("T")


class CountedStore(MemoryObjectStore):
    """A store that counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        self.read_bytes += len(data)
        return data


class RefillTarget:
    """Refills logs from one chained log."""

    def __init__(self, chained: ChainedLog, store: CountedStore, view: ClusterView) -> None:
        self.chained, self.store = chained, store
        self._refill = LogRefill(node_context(MemoryMetadataStore(), view), store.get_range)

    async def slices(self, start: int = 0) -> tuple[list[StoredSlice], int]:
        wanted = WantedSlices(self.chained.chains, start)
        found = (await find_slices(ChainStore(self.store, CLUSTER), {NAME: wanted}, {})).slices
        return log_of(NAME, wanted, found[NAME], cluster_id=CLUSTER)

    async def __call__(self, replica: Replica, start: int = 0) -> LocalLog:
        slices, end = await self.slices(start)
        self.store.read_bytes = 0
        failures = await self._refill.refill({NAME: LogTail(replica, slices, end)})
        for error in failures.values():
            raise error
        return replica.log


def assert_same(log: LocalLog, other: LocalLog) -> None:
    assert content_of(log) == content_of(other)
    assert log.high_watermark == log.log_end_offset == other.log_end_offset
    assert log.last_stable_offset == other.last_stable_offset
    assert log.leader_epochs == other.leader_epochs
    assert encode_snapshot(log.producers.state) == encode_snapshot(other.producers.state)


@pytest.fixture
async def view() -> ClusterView:
    metadata = MemoryMetadataStore()
    await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
    view = ClusterView(metadata)
    await view.refresh()
    return view


@pytest.fixture
async def refilled(tmp_path: Path, view: ClusterView) -> AsyncIterator[RefillTarget]:
    store = CountedStore()
    chained = await filled(store, tmp_path / "leader")
    yield RefillTarget(chained, store, view)
    chained.log.close()


async def test_an_empty_log_gets_everything_back(refilled: RefillTarget, tmp_path: Path) -> None:
    log = await refilled(replica_over(tmp_path / "heir"))
    assert_same(log, refilled.chained.log)
    log.close()
    # And it is a log like any other afterwards.
    assert_same(await refilled(replica_over(tmp_path / "heir")), refilled.chained.log)
    assert refilled.store.read_bytes == 0


async def test_the_loop_has_turns_while_a_long_tail_is_appended(
    refilled: RefillTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of whole batches, however many a slice has. A log may have a part of the first."""
    monkeypatch.setattr(slice_appends, "APPENDED_BYTES_MAX", 300)
    pieces: list[list[int]] = []  # the sizes of the batches in each

    def append_piece(replica: RefilledReplica, data: bytearray) -> None:
        pieces.append([header.size_bytes for _, header in iter_headers(data)])
        slice_appends.append_slice(replica, data)

    monkeypatch.setattr(log_refill, "append_slice", append_piece)
    content = content_of(refilled.chained.log)
    sizes = [header.size_bytes for _, header in iter_headers(content)]
    kept = sizes[0] + sizes[1]
    for number, some in enumerate((b"", content[:kept])):
        replica = replica_over(tmp_path / f"node{number}")
        if some:
            replica.log.append_as_follower(bytearray(some))
        pieces.clear()
        assert_same(await refilled(replica), refilled.chained.log)
        assert all(sum(piece) <= 300 or len(piece) == 1 for piece in pieces)
        assert len(pieces) > 1
        replica.log.close()


async def test_a_log_that_has_everything_reads_nothing(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    refilled.chained.log.flush()
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    log = await refilled(replica_over(tmp_path / "again"))
    assert refilled.store.read_bytes == 0
    assert_same(log, refilled.chained.log)


async def test_references_are_refilled_and_compared_like_slices(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    chained, gateway = refilled.chained, new_chain(9)
    await chained.append_by_gateway(gateway, batch(3), batch(1))
    await chained.append(batch(2))
    await chained.append_by_gateway(gateway, batch(1))
    log = await refilled(replica_over(tmp_path / "heir"))
    assert_same(log, chained.log)
    log.close()
    assert_same(await refilled(replica_over(tmp_path / "heir")), chained.log)
    assert refilled.store.read_bytes == 0


class CountedExecutor(ThreadPoolExecutor):
    """A thread that counts its tasks."""

    task_count = 0

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.task_count += 1
        return super().submit(work, *args, **kwargs)


async def test_small_slices_are_compared_together(refilled: RefillTarget, tmp_path: Path) -> None:
    """A task for each would cost more than its bytes: a log may have thousands of them."""
    slices, _ = await refilled.slices()
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    log = open_log(tmp_path / "again")
    executor = CountedExecutor(1)
    store = MemoryMetadataStore()
    refill = LogRefill(
        node_context(store, ClusterView(store), executor=executor), refilled.store.get_range
    )
    assert await refill.comparison.count(log, slices) == len(slices) > 10
    assert executor.task_count == 1
    log.close()
    executor.shutdown()


class MeetingStore(CountedStore):
    """A store whose listings are answered once so many have begun."""

    def __init__(self, listings: int) -> None:
        super().__init__()
        self.left = listings
        self._all_begun = asyncio.Event()

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.left -= 1
        if self.left <= 0:
            self._all_begun.set()
        await self._all_begun.wait()
        async for meta in super().list(prefix, start_after=start_after):
            yield meta


async def test_chains_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """A partition that has been led by several brokers has as many listings to wait for."""
    store = MeetingStore(3)
    chained = await filled(store, tmp_path / "leader")
    assert len({entry.chain for entry in chained.chains}) == store.left == 3
    wanted = {NAME: WantedSlices(chained.chains, 0)}
    async with asyncio.timeout(30):
        found = await find_slices(ChainStore(store, CLUSTER), wanted, {})
    _, end = log_of(NAME, wanted[NAME], found.slices[NAME], cluster_id=CLUSTER)
    assert end == chained.log.log_end_offset
    chained.log.close()


async def test_what_is_kept_ends_before_the_first_slice_that_differs(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    """Also in the middle of slices that are compared together, and behind the first segment."""
    slices, _ = await refilled.slices()
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    log = open_log(tmp_path / "again")
    store = MemoryMetadataStore()
    refill = LogRefill(node_context(store, ClusterView(store)), refilled.store.get_range)
    assert len(log.file_ranges(0, log.log_end_offset)) > 2
    for number, one in enumerate(slices):
        path, start, end = log.file_ranges(one.base_offset, one.end_offset)[-1]
        data = path.read_bytes()
        for position in (start + 61, end - 1):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            assert await refill.comparison.count(log, slices) == number
            assert (
                await refill.comparison.count(log, slices[number + 1 :]) == len(slices) - number - 1
            )
        path.write_bytes(data)
    assert await refill.comparison.count(log, slices) == len(slices)
    log.close()


@pytest.mark.parametrize("wrong", ["base offset", "leader epoch", "record"])
async def test_a_reference_with_other_local_bytes_is_fetched_again(
    refilled: RefillTarget, tmp_path: Path, wrong: str
) -> None:
    chained = refilled.chained
    await chained.append_by_gateway(new_chain(9), batch(3), batch(1))
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    path = max((tmp_path / "again").glob("*.log"))
    (_, header), (at, last) = list(iter_headers(path.read_bytes()))[-2:]
    assert header.next_offset == last.base_offset
    place = {"base offset": at + 7, "leader epoch": at + 15, "record": at + last.size_bytes - 1}
    data = bytearray(path.read_bytes())
    data[place[wrong]] ^= 1
    path.write_bytes(data)
    assert_same(await refilled(replica_over(tmp_path / "again")), chained.log)
    assert refilled.store.read_bytes > 0


async def test_records_that_no_chain_has_are_cut(refilled: RefillTarget, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    replica = replica_over(tmp_path / "again")
    ahead = batch(3, producer_id=7, producer_epoch=0, base_sequence=12)
    replica.log.append_as_leader(ahead, leader_epoch=5)
    assert_same(await refilled(replica), refilled.chained.log)


async def test_a_log_that_leads_meanwhile_is_left_as_it_is(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    """A late write made its partition replicated: its followers have what the chain lacks."""
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    replica = replica_over(tmp_path / "again")
    replica.log.append_as_leader(batch(3), leader_epoch=5)
    end_offset = replica.log.log_end_offset
    replica.is_leader = True
    with pytest.raises(StorageError, match="is led here already"):
        await refilled(replica)
    assert replica.log.log_end_offset == end_offset > refilled.chained.log.log_end_offset


async def test_a_log_that_follows_meanwhile_is_left_as_it_is(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    """Another node was elected during a long refill: what it has may count on this replica."""
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    replica = replica_over(tmp_path / "again")
    replica.log.append_as_leader(batch(3), leader_epoch=5)
    end_offset = replica.log.log_end_offset
    _follow_another(replica)
    with pytest.raises(StorageError, match="is led elsewhere by now"):
        await refilled(replica)
    assert replica.log.log_end_offset == end_offset > refilled.chained.log.log_end_offset


def test_a_log_that_follows_meanwhile_keeps_its_high_watermark(tmp_path: Path) -> None:
    """Its position has been sent to its leader by now, and nothing would send it again."""
    replica = replica_over(tmp_path / "here")
    replica.log.append_as_leader(batch(3), leader_epoch=5)
    _follow_another(replica)
    with pytest.raises(StorageError, match="is led elsewhere by now"):
        finish(LogTail(replica, (), replica.log.log_end_offset))
    assert replica.log.high_watermark == 0
    replica.log.close()


def _follow_another(replica: Replica) -> None:
    elsewhere = Partition(
        topic_id=TOPIC_ID,
        partition=PARTITION.partition,
        replicas=(2, 1),
        leader=2,
        leader_epoch=6,
        isr=(2, 1),
    )
    assert replica.role is not None
    replica.role.on_partition(elsewhere, replica.log, leads=False, rules=ReplicationRules())


@pytest.mark.parametrize("seed", range(25))
async def test_whatever_a_crash_left_the_log_is_the_chains(
    refilled: RefillTarget, tmp_path: Path, seed: int
) -> None:
    """Files are cut at any byte, lost, or have other bytes."""
    chance = random.Random(seed)
    folder = tmp_path / "crashed"
    shutil.copytree(tmp_path / "leader", folder)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in chance.sample(files, chance.randint(1, 4)):
        data = bytearray(path.read_bytes())
        match chance.choice(("cut", "flip", "lose")):
            case "cut":
                path.write_bytes(data[: chance.randrange(len(data) + 1)])
            case "flip" if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
            case _:
                path.unlink()
    replica = replica_over(folder)
    try:
        replica.open()
    except CorruptLog:
        # It cannot be opened at all: the node sets it aside and begins with an empty one.
        replica = replica_over(tmp_path / "anew")
    assert_same(await refilled(replica), refilled.chained.log)


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("has_zeros", [False, True], ids=["cut", "zeros"])
async def test_a_power_cut_may_leave_any_byte_of_the_last_segment(
    refilled: RefillTarget, tmp_path: Path, step: int, has_zeros: bool
) -> None:
    last = max((tmp_path / "leader").glob("*.log")).name
    size = (tmp_path / "leader" / last).stat().st_size
    for position in range(0, size + 1, step):
        folder = tmp_path / "cut"
        shutil.copytree(tmp_path / "leader", folder)
        os.truncate(folder / last, position)
        if has_zeros:  # The file had its size before it had its bytes.
            os.truncate(folder / last, size)
        log = await refilled(replica_over(folder))
        assert_same(log, refilled.chained.log)
        log.close()
        shutil.rmtree(folder)


async def test_bytes_that_no_crc_of_a_batch_covers_are_compared_too(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    """A batch's base offset and leader epoch: the log opens with any of them."""
    folder = tmp_path / "crashed"
    shutil.copytree(tmp_path / "leader", folder)
    path = min(folder.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[15] ^= 8  # the first batch's leader epoch
    path.write_bytes(data)
    assert_same(await refilled(replica_over(folder)), refilled.chained.log)
    assert refilled.store.read_bytes == len(content_of(refilled.chained.log))


async def test_a_log_begins_with_the_batch_that_has_the_log_start(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    """DeleteRecords may have gone to the middle of a batch, and then the disk was lost."""
    chained = refilled.chained
    begin = chained.log.log_end_offset
    await chained.append(batch(1), batch(5), batch(1))
    replica = replica_over(tmp_path / "heir", log_start_offset=begin + 3)
    log = await refilled(replica, begin + 3)
    assert content_of(log) == chained.bytes_from(begin + 1)
    replica.keep_back_deleted()
    assert (log.log_start_offset, log.log_end_offset) == (begin + 3, begin + 7)


async def test_a_slice_with_other_bytes_is_an_error_that_names_it(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    slices, _ = await refilled.slices()
    broken = slices[3]
    key = wal_key(CLUSTER, broken.chain, broken.sequence)
    data = bytearray(await refilled.store.get(key))
    data[broken.position + 70] ^= 1
    await refilled.store.replace(key, bytes(data))
    replica = replica_over(tmp_path / "heir")
    with pytest.raises(CorruptObject, match="its CRC does not match") as caught:
        await refilled(replica)
    assert caught.value.key == key
    assert str(NAME) in caught.value.problem
    # What came before is right; a local copy of the slice would have been too.
    assert replica.log.log_end_offset == broken.base_offset
    shutil.copytree(tmp_path / "leader", tmp_path / "again")
    assert_same(await refilled(replica_over(tmp_path / "again")), refilled.chained.log)


async def test_a_missing_object_is_found_by_the_gap_it_leaves(refilled: RefillTarget) -> None:
    slices, _ = await refilled.slices()
    await refilled.store.delete([wal_key(CLUSTER, slices[2].chain, slices[2].sequence)])
    with pytest.raises(CorruptObject, match="are missing before it") as caught:
        await refilled.slices()
    assert caught.value.key == wal_key(CLUSTER, slices[3].chain, slices[3].sequence)


async def test_a_chain_that_ends_before_the_next_epoch_begins_is_an_error(
    refilled: RefillTarget,
) -> None:
    slices, _ = await refilled.slices()
    last = [one for one in slices if one.leader_epoch == 2][-1]
    await refilled.store.delete([wal_key(CLUSTER, last.chain, last.sequence)])
    with pytest.raises(CorruptObject, match=r"are missing before it|begins at"):
        await refilled.slices()


async def test_what_a_zombie_wrote_above_the_next_epoch_is_no_part_of_the_log(
    tmp_path: Path, view: ClusterView
) -> None:
    store = CountedStore()
    chained = ChainedLog(open_log(tmp_path / "leader"), store)
    first, second = new_chain(1), new_chain(2)
    chained.begin(0, first)
    await chained.append(batch(2))
    entry = chained.chains[-1]
    chained.begin(1, second)
    await chained.append(batch(1))
    zombie = ChainedLog(open_log(tmp_path / "zombie"), store, (entry,), {first: 1})
    zombie.log.truncate_fully_and_start_at(2)
    await zombie.append(batch(4), sequence=2)  # above the gap at 1
    refilled = RefillTarget(chained, store, view)
    assert_same(await refilled(replica_over(tmp_path / "heir")), chained.log)


async def test_the_log_of_a_partition_that_has_left_the_node_stays_as_it_is(
    refilled: RefillTarget, tmp_path: Path
) -> None:
    """If the partition returns, its next replica opens the same files on another thread."""
    replica = replica_over(tmp_path / "heir")
    replica.open()
    replica.drop()
    with pytest.raises(StorageError, match="has left"):
        await refilled(replica)
    assert replica.log.log_end_offset == 0
    replica.log.close()
