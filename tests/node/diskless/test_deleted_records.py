"""Records that were deleted before they were tiered: an heir still knows who has written them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.diskless.bucket.chains import survey_chains
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import chains_prefix, wal_key
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import DELETED_EPOCHS_MAX, ChainName, EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.restoration.chain_tail import join_tail
from tidelog_core.restoration.plan import LEADER_EPOCH_JUMP
from tidelog_core.tier.keys import is_wal_key
from tidelog_node.diskless.recovery import log_recovery
from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.diskless.recovery.deleted_slices import DELETED_BYTES_MAX, slices_below

from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node
from tests.support.batches import batch_of

FIRST, SECOND = (ChainName(1, UUID(int=number)) for number in (1, 2))


async def delete_below(it: TakeoverNode, offset: int) -> None:
    """Store the log start, as a leader does of DeleteRecords."""
    await it.node.store.commit(
        [records.put(dataclasses.replace(it.stored(), log_start_offset=offset))]
    )
    await it.node.view.refresh()


@pytest.mark.parametrize("deleted", [3, 5, 6], ids=["one left", "within a batch", "all"])
async def test_a_retry_of_a_deleted_record_is_not_doubled_by_an_heir(
    tmp_path: Path, deleted: int
) -> None:
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        await it.send(b"a", b"b", producer=(7, 0, 0))
        await it.send(b"c", producer=(8, 3, 0))
        last = await it.send(b"d", b"e", b"f", producer=(7, 0, 2))
        await delete_below(it, deleted)
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        replica = await it.until_led()
        log = replica.log
        assert (log.log_start_offset, log.log_end_offset) == (deleted, 6)
        assert log.leader_epochs[-1] == (2, 6)
        again = it.node.send_batch(batch_of(b"d", b"e", b"f", producer=(7, 0, 2)))
        assert again.base_offset == last.base_offset
        again = it.node.send_batch(batch_of(b"c", producer=(8, 3, 0)))
        assert again.base_offset == 2
        gap = it.node.send_batch(batch_of(b"x", producer=(7, 0, 9)))
        assert gap.error_code is ErrorCode.out_of_order_sequence_number
        assert (await it.send(b"g", producer=(7, 0, 5))).base_offset == 6


async def test_a_retry_of_a_deleted_record_of_a_gateway_is_not_doubled_by_later_heirs(
    tmp_path: Path,
) -> None:
    objects, gateway = MemoryObjectStore(), ChainName(9, UUID(int=9))
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        replica = await it.until_led()
        for number in range(2):
            answer = it.node.send_batch(batch_of(b"%d" % number, producer=(number, 0, 0)))
            await it.chain.commit_by_gateway(gateway, replica)
            assert (await answer).base_offset == number
        await delete_below(it, 2)
    for _ in range(2):
        shutil.rmtree(tmp_path / "data")
        async with takeover_node(tmp_path, objects) as it:
            log = (await it.until_led()).log
            assert (log.log_start_offset, log.log_end_offset) == (2, 2)
            for number in range(2):
                again = it.node.send_batch(batch_of(b"%d" % number, producer=(number, 0, 0)))
                assert again.base_offset == number


@pytest.mark.parametrize("goes_on", [False, True], ids=["heirs write nothing", "heirs write"])
async def test_a_retry_of_a_deleted_record_is_not_doubled_after_several_deaths(
    tmp_path: Path, goes_on: bool
) -> None:
    """Each heir stores the chains in which the next one finds the producers."""
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        first = await it.send(b"a", b"b", producer=(7, 0, 0))
        await delete_below(it, 2)
        last = it.chain.name
    end = 2
    for death in range(1, 4):
        shutil.rmtree(tmp_path / "data")
        async with takeover_node(tmp_path, objects) as it:
            await it.until_led()
            assert last in {one.chain for one in it.stored().wal}
            if goes_on:
                await it.send(b"c", producer=(100 + death, 0, 0))
                end += 1
                await delete_below(it, end)
                last = it.chain.name
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        log = (await it.until_led()).log
        assert (log.log_start_offset, log.log_end_offset) == (end, end)
        again = it.node.send_batch(batch_of(b"a", b"b", producer=(7, 0, 0)))
        assert again.base_offset == first.base_offset
        if goes_on:
            again = it.node.send_batch(batch_of(b"c", producer=(103, 0, 0)))
            assert again.base_offset == end - 1
        assert (await it.send(b"d", producer=(7, 0, 2))).base_offset == end


async def restore_from_bucket(folder: Path, objects: MemoryObjectStore, log_start: int) -> None:
    """Replace the partition's item by the one that a restoration makes of the chains."""
    store = SqliteMetadataStore(folder / "metadata.db")
    view = ClusterView(store)
    cluster_id = (await view.refresh()).cluster_id
    (partition,) = view.image.partitions("t")
    listed = [one async for one in objects.list(chains_prefix(cluster_id))]
    found = await survey_chains(objects, cluster_id, [one for one in listed if is_wal_key(one.key)])
    tail = join_tail(
        found.partitions[PartitionName(partition.topic_id, 0)],
        tiered_end=log_start,
        log_start_offset=log_start,
        has_segments=False,
    )
    assert tail.problems == ()
    item = dataclasses.replace(
        partition,
        wal=tail.wal,
        leader_epoch=partition.leader_epoch + LEADER_EPOCH_JUMP,
        log_start_offset=log_start,
    )
    await store.commit([records.put(item)])
    await store.close()


async def test_a_retry_of_a_deleted_record_is_not_doubled_after_a_restoration(
    tmp_path: Path,
) -> None:
    """All nodes and the metadata store are lost: the chains of all epochs know the producers."""
    objects = MemoryObjectStore()
    for number in range(3):
        async with takeover_node(tmp_path, objects) as it:
            if not number:
                await create(it)
            await it.until_led()
            await it.send(b"%d" % number, producer=(number, 0, 0))
    shutil.rmtree(tmp_path / "data")
    await restore_from_bucket(tmp_path, objects, log_start=3)
    async with takeover_node(tmp_path, objects) as it:
        log = (await it.until_led()).log
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        for number in range(3):
            again = it.node.send_batch(batch_of(b"%d" % number, producer=(number, 0, 0)))
            assert again.base_offset == number
        assert (await it.send(b"new", producer=(0, 0, 1))).base_offset == 3


async def test_a_damaged_chain_with_deleted_records_alone_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it, partitions=2)
        for number in range(2):
            await it.until_led(number)
        await it.send(b"a", producer=(7, 0, 0))
        await delete_below(it, 1)
        key = wal_key(it.cluster_id, it.chain.name, 0)
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        for number in range(2):
            await it.until_led(number)
    data = bytearray(await objects.get(key))
    data[-1] ^= 1
    await objects.replace(key, bytes(data))
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        for number in range(2):
            await it.until_led(number)
        assert it.node.context.counters.chain.damaged_count == 1
        assert any(key in str(vars(one).get("reason")) for one in caplog.records)


async def test_an_item_does_not_grow_with_every_death(tmp_path: Path) -> None:
    objects = MemoryObjectStore()
    for death in range(DELETED_EPOCHS_MAX + 3):
        async with takeover_node(tmp_path, objects) as it:
            if not death:
                await create(it)
            await it.until_led()
            await it.send(b"a", producer=(death, 0, 0))
            await delete_below(it, death + 1)
            kept = min(death, DELETED_EPOCHS_MAX)
            assert len(it.stored().wal) == kept + 1
        shutil.rmtree(tmp_path / "data")


@pytest.mark.parametrize("limit", ["DELETED_BYTES_MAX", "RECOVERED_BYTES_MAX"])
async def test_only_the_last_bytes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(log_recovery, limit, 200)
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        for number in range(10):
            await it.send(b"%d" % number, producer=(number, 0, 0))
        await delete_below(it, 10)
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        log = (await it.until_led()).log
        known = [number for number in range(10) if log.producers.state.entry(number)]
        assert known == [8, 9]


async def test_a_log_without_its_deleted_records_is_led_all_the_same(tmp_path: Path) -> None:
    """The tier had them, so their objects were collected."""
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        for number in range(3):
            await it.send(b"%d" % number, producer=(7, 0, number))
        await delete_below(it, 2)
        gone = [wal_key(it.cluster_id, it.chain.name, sequence) for sequence in (0, 1)]
        await objects.delete(gone)
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        log = (await it.until_led()).log
        assert (log.log_start_offset, log.log_end_offset) == (2, 3)


async def test_damaged_deleted_records_do_not_keep_a_partition_from_being_led(
    tmp_path: Path,
) -> None:
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        for number in range(3):
            await it.send(b"%d" % number, producer=(7, 0, number))
        await delete_below(it, 2)
        key = wal_key(it.cluster_id, it.chain.name, 0)
        data = bytearray(await objects.get(key))
        data[150] ^= 1
        await objects.replace(key, bytes(data))
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        log = (await it.until_led()).log
        assert (log.log_start_offset, log.log_end_offset) == (2, 3)


def one_slice(
    chain: ChainName, epoch: int, base_offset: int, end_offset: int, *, sequence: int = 0
) -> StoredSlice:
    return StoredSlice(chain, sequence, epoch, base_offset, end_offset, 112, 100, 0, sequence)


def test_slices_follow_each_other_over_epochs_and_without_what_was_not_acknowledged() -> None:
    chains = (EpochChain(1, FIRST, 0), EpochChain(2, SECOND, 20))
    found = {
        FIRST: [
            one_slice(FIRST, 1, 0, 10),
            one_slice(FIRST, 1, 10, 20, sequence=1),
            one_slice(FIRST, 1, 20, 30, sequence=2),  # above the next epoch's first offset
        ],
        SECOND: [one_slice(SECOND, 2, 20, 30)],
    }
    stored = {FIRST: {0, 1, 2}, SECOND: {0}}
    below = slices_below(chains, found, stored, end_offset=30)
    assert [(one.chain, one.base_offset) for one in below] == [
        (FIRST, 0),
        (FIRST, 10),
        (SECOND, 20),
    ]
    assert slices_below(chains, found, stored, end_offset=25) == []
    # Of the first chain an index is left, and one object.
    stored[FIRST] = {1}
    below = slices_below(chains, found, stored, end_offset=20)
    assert [one.base_offset for one in below] == [10]
    # The bytes of a reference are in the gateway's chain.
    gateway = ChainName(9, UUID(int=9))
    referenced = found[SECOND][0]._replace(chain=gateway, sequence=70, is_reference=True)
    found[SECOND] = [referenced]
    assert slices_below(chains, found, stored, end_offset=30) == []
    stored[gateway] = {70}
    assert slices_below(chains, found, stored, end_offset=30)[1:] == [referenced]


def test_the_last_slice_counts_whatever_its_size() -> None:
    """A partition that takes more than the limit in one object."""
    chains = (EpochChain(1, FIRST, 0),)
    large = one_slice(FIRST, 1, 10, 20, sequence=1)._replace(size_bytes=DELETED_BYTES_MAX + 1)
    found = {FIRST: [one_slice(FIRST, 1, 0, 10), large]}
    assert slices_below(chains, found, {FIRST: {0, 1}}, end_offset=20) == [large]
