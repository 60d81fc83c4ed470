"""A metadata store that was set back names old chains: no records get the offsets of others.

The store is SQLite, and it is set back as an operator would do it, with a copy of its file.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName, build_seal
from tidelog_core.diskless.wal.header import HEADER_SIZE
from tidelog_core.diskless.wal.keys import Heir, wal_key
from tidelog_core.errors import ObjectNotFound
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentState
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.tier.keys import log_start_key, parse_segment_key, partition_prefix
from tidelog_core.tier.manifest import log_start_object
from tidelog_node.diskless.takeover import leader_takeover, pending_takeovers

from tests.node.diskless.chained_log import new_chain
from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node
from tests.support.batches import batch_of
from tests.support.segment_items import segment_meta
from tests.support.tier_segments import put_segment

REFUSED = "diskless partition refused, its records are not in the metadata"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_takeovers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(leader_takeover, "UNKNOWN_SECONDS", 0.02)


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore()


async def begin(folder: Path, objects: MemoryObjectStore, partitions: int = 1) -> TakeoverNode:
    """Have a first node lead the partitions and commit one record of each; keep its metadata."""
    async with takeover_node(folder, objects) as it:
        await create(it, partitions=partitions)
        for number in range(partitions):
            await it.until_led(number)
        await append(it, *range(partitions))
    shutil.copy(folder / "metadata.db", folder / "kept.db")
    return it


async def append(it: TakeoverNode, *partitions: int) -> None:
    """Commit one record of each partition, in one object."""
    replicas = [it.replica(number) for number in partitions]
    for replica in replicas:
        replica.append(bytearray(batch_of(b"record")))
    assert await it.chain.commit(*replicas) is PutOutcome.STORED


async def go_on(folder: Path, objects: MemoryObjectStore, *partitions: int) -> TakeoverNode:
    """Have another node take the partitions over and commit a record of each of these."""
    async with takeover_node(folder, objects) as it:
        for replica in it.node.replicas.replicas():
            await it.until_led(replica.partition.partition)
        if partitions:
            await append(it, *partitions)
    return it


def set_back(folder: Path) -> None:
    shutil.copy(folder / "kept.db", folder / "metadata.db")
    shutil.rmtree(folder / "data")


async def until_refused(it: TakeoverNode, count: int = 1) -> None:
    await it.until(lambda: it.node.context.counters.chain.refused_count == count)


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(vars(record)["reason"]) for record in caplog.records if record.message == REFUSED]


async def test_a_partition_that_others_have_led_since_is_refused_and_no_other(
    tmp_path: Path, objects: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = await begin(tmp_path, objects, partitions=2)
    second = await go_on(tmp_path, objects, 0)
    set_back(tmp_path)
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led(1)
        await until_refused(it)
        assert not it.replica(0).is_leader
        assert [entry.chain for entry in it.stored(0).wal] == [first.chain.name]
        # It is not tried again and again.
        calls = it.chain_calls
        it.node.replicas.follow_again("t")
        await append(it, 1)
        assert it.chain_calls == calls
    (reason,) = reasons(caplog)
    assert (
        f"leader epoch of {it.replica(0).partition} is 1 in the chain {first.chain.name}" in reason
    )
    assert f"records of epoch 2 in the chain {second.chain.name}" in reason
    (logged,) = [record for record in caplog.records if record.message == REFUSED]
    assert "tidelog restore" in vars(logged)["hint"]


async def test_another_start_refuses_again_whatever_epochs_elections_have_begun(
    tmp_path: Path, objects: MemoryObjectStore
) -> None:
    await begin(tmp_path, objects)
    await go_on(tmp_path, objects, 0)
    set_back(tmp_path)
    for _ in range(3):
        async with takeover_node(tmp_path, objects) as it:
            await until_refused(it)
            epoch = it.stored().leader_epoch
            await it.node.change_partition(leader_epoch=epoch + 1)  # an election
            await it.until(lambda: it.chain_calls > 1)
            await until_refused(it)
            assert not it.replica().is_leader


async def test_records_that_are_several_chains_away_are_found(
    tmp_path: Path, objects: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    await begin(tmp_path, objects)
    for _ in range(2):
        await go_on(tmp_path, objects)  # without a record
    last = await go_on(tmp_path, objects, 0)
    set_back(tmp_path)
    async with takeover_node(tmp_path, objects) as it:
        await until_refused(it)
    assert f"records of epoch 4 in the chain {last.chain.name}" in reasons(caplog)[0]


async def test_epochs_without_records_are_no_reason_to_refuse(
    tmp_path: Path, objects: MemoryObjectStore
) -> None:
    """A restoration does not know of them either."""
    await begin(tmp_path, objects)
    await go_on(tmp_path, objects)
    set_back(tmp_path)
    async with takeover_node(tmp_path, objects) as it:
        replica = await it.until_led()
        assert replica.log.log_end_offset == 1


async def test_an_heir_that_found_the_seal_of_another_one_is_found(
    tmp_path: Path, objects: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The seal names the heir that was first, which took other partitions."""
    first = await begin(tmp_path, objects)
    chains, winner = ChainStore(objects, first.cluster_id), new_chain()
    await chains.note_heir(first.chain.name, Heir(winner, 0))
    seal = ObjectName(first.cluster_id, first.chain.name, 1, 1, 0, 0)
    assert await chains.put(first.chain.name, 1, build_seal(seal, winner).data) is PutOutcome.STORED
    second = await go_on(tmp_path, objects, 0)
    assert second.chain.entered == [("t-0", 2, 1)]
    set_back(tmp_path)
    async with takeover_node(tmp_path, objects) as it:
        await until_refused(it)
    assert f"in the chain {second.chain.name}" in reasons(caplog)[0]


async def test_an_heir_that_took_only_others_of_the_chain_is_no_reason_to_refuse(
    tmp_path: Path, objects: MemoryObjectStore
) -> None:
    """Partition 0 could not be recovered for a while. Partition 1 is two epochs ahead."""
    first = await begin(tmp_path, objects, partitions=2)
    key = wal_key(first.cluster_id, first.chain.name, 0)
    whole = await objects.get(key)
    broken = bytearray(whole)
    broken[112 + 61] ^= 1  # in the first slice
    await objects.replace(key, bytes(broken))
    shutil.rmtree(tmp_path / "data")
    for _ in range(2):
        async with takeover_node(tmp_path, objects) as it:
            await it.until_led(1)
            await append(it, 1)
    await objects.replace(key, whole)
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led(0)
        await it.until_led(1)
        assert [r.log.log_end_offset for r in (it.replica(0), it.replica(1))] == [1, 3]


async def test_a_table_with_far_greater_epochs_is_believed(
    tmp_path: Path, objects: MemoryObjectStore
) -> None:
    """As a restoration writes it: the epochs go on above all that the bucket has."""
    await begin(tmp_path, objects)
    await go_on(tmp_path, objects, 0)
    async with takeover_node(tmp_path, objects) as it:
        await it.until_led()
        await it.node.change_partition(leader_epoch=it.stored().leader_epoch + 1_000)
        await it.until(lambda: it.replica().is_leader and it.replica().leader_epoch > 1_000)
        await append(it, 0)
    await go_on(tmp_path, objects, 0)


async def tier(it: TakeoverNode, folder: Path, objects: MemoryObjectStore, base: int) -> None:
    """Put a whole segment that begins at the offset into the bucket, and nothing else."""
    folder.mkdir(parents=True)
    put_segment(folder, range(0, 10, 10))
    (index,), (log,) = folder.rglob("*.index"), folder.rglob("*.log")
    topic_id = it.stored().topic_id
    stem = (
        f"{partition_prefix(it.cluster_id, 't', topic_id, 0)}{base:020d}-1-{new_chain().chain_id}"
    )
    await objects.put(f"{stem}.index", index.read_bytes())
    await objects.put(f"{stem}.log", log.read_bytes())


@pytest.mark.parametrize("is_gap", [False, True], ids=["all of them", "the first ones"])
async def test_records_that_were_tiered_since_are_missing_in_the_chain(
    tmp_path: Path, objects: MemoryObjectStore, caplog: pytest.LogCaptureFixture, is_gap: bool
) -> None:
    """The metadata know no segment, and the chain's objects went once these were tiered."""
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        shutil.copy(tmp_path / "metadata.db", tmp_path / "kept.db")
        await append(it, 0)
        await append(it, 0)
        await tier(it, tmp_path / "tier" / "objects", objects, 0)
        gone = [0] if is_gap else [0, 1]
        await ChainStore(objects, it.cluster_id).delete(it.chain.name, gone)
        if not is_gap:  # An object without any of the partition is the last one.
            assert await it.chain.commit() is PutOutcome.STORED
    async with takeover_node(tmp_path, objects) as it:
        await until_refused(it)
        assert not it.replica().is_leader
    assert f"the segment {it.cluster_id}/t-" in reasons(caplog)[0]


@pytest.mark.parametrize("log_start", [2, 3], ids=["the first ones", "all of them"])
async def test_records_that_were_deleted_since_stay_deleted(
    tmp_path: Path, objects: MemoryObjectStore, log_start: int
) -> None:
    """The metadata know no log start, and the chain's objects went once the bucket had it."""
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        with (
            closing(sqlite3.connect(tmp_path / "metadata.db")) as store,
            closing(sqlite3.connect(tmp_path / "kept.db")) as kept,
        ):
            store.backup(kept)
        for _ in range(3):
            await append(it, 0)
        key = log_start_key(it.cluster_id, "t", it.stored().topic_id, 0, log_start)
        await objects.put(key, log_start_object(log_start))
        # An object without any of the partition is the last one.
        assert await it.chain.commit() is PutOutcome.STORED
        await ChainStore(objects, it.cluster_id).delete(it.chain.name, range(log_start))
    set_back(tmp_path)
    async with takeover_node(tmp_path, objects) as it:
        replica = await it.until_led()
        assert replica.log.log_end_offset == 3
        assert it.stored().log_start_offset == log_start
        assert it.node.context.counters.chain.refused_count == 0
        await append(it, 0)
    await go_on(tmp_path, objects, 0)


async def test_what_an_upload_has_left_is_no_reason_to_refuse(
    tmp_path: Path, objects: MemoryObjectStore
) -> None:
    """Its leader died before the metadata knew of it. All of its records are in the chain."""
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        await append(it, 0)
        await tier(it, tmp_path / "tier" / "objects", objects, 0)
    await go_on(tmp_path, objects, 0)


@pytest.mark.parametrize("left", ["nothing", "its log alone", "a part of its log"])
async def test_a_segment_that_is_not_whole_proves_nothing(
    tmp_path: Path, objects: MemoryObjectStore, left: str
) -> None:
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        await tier(it, tmp_path / "tier" / "objects", objects, 5)
        keys = [meta.key async for meta in objects.list(it.cluster_id) if ".index" in meta.key]
        logs = [key[:-6] + ".log" for key in keys]
        if left == "a part of its log":
            for key in logs:
                await objects.replace(key, (await objects.get(key))[:-1])
        else:
            await objects.delete(keys if left == "its log alone" else [*keys, *logs])
        await it.chain.commit()
        await it.chain.commit()
        await ChainStore(objects, it.cluster_id).delete(it.chain.name, [0])
    await go_on(tmp_path, objects, 0)


async def store_segment(it: TakeoverNode, objects: MemoryObjectStore, state: SegmentState) -> None:
    """Have the metadata know the segment of ``tier``, which begins at 0."""
    (key,) = [meta.key async for meta in objects.list(it.cluster_id) if ".index" in meta.key]
    parsed = parse_segment_key(key)
    assert parsed is not None
    segment = segment_meta(
        0, 2, topic_id=parsed.topic_id, partition=0, segment_id=parsed.segment_id, state=state
    )
    await it.node.store.commit([records.put(segment)])


async def test_a_copy_that_was_not_finished_leaves_a_damaged_partition_to_the_next_try(
    tmp_path: Path, objects: MemoryObjectStore
) -> None:
    """Its leader died before it was finished, and its object cannot be read for a while."""
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        await append(it, 0)
        await tier(it, tmp_path / "tier" / "objects", objects, 0)
        await store_segment(it, objects, SegmentState.COPY_STARTED)
        key = wal_key(it.cluster_id, it.chain.name, 0)
    whole = await objects.get(key)
    broken = bytearray(whole)
    broken[112 + 61] ^= 1  # in the first slice
    await objects.replace(key, bytes(broken))
    shutil.rmtree(tmp_path / "data")
    async with takeover_node(tmp_path, objects) as it:
        await it.until(lambda: it.chain_calls > 3)
        assert it.node.context.counters.chain.refused_count == 0
        await objects.replace(key, whole)
        await it.until_led()
        assert it.replica().log.log_end_offset == 1


async def test_a_tier_that_goes_on_while_the_chain_is_read_is_read_again(
    tmp_path: Path,
    objects: MemoryObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The leader before finishes a copy then, and collects its objects."""
    async with takeover_node(tmp_path, objects) as it:
        await create(it)
        await it.until_led()
        await append(it, 0)
        await tier(it, tmp_path / "tier" / "objects", objects, 0)
        assert await it.chain.commit() is PutOutcome.STORED
        before = it.chain.name
    gone = wal_key(it.cluster_id, before, 0)
    get_range = objects.get_range
    async with takeover_node(tmp_path, objects) as it:

        async def late(key: str, start: int, end: int) -> memoryview:
            if key == gone and end > HEADER_SIZE:  # a footer
                monkeypatch.setattr(objects, "get_range", get_range)
                await store_segment(it, objects, SegmentState.COPY_FINISHED)
                await objects.delete([gone])
                raise ObjectNotFound(key)
            return await get_range(key, start, end)

        monkeypatch.setattr(objects, "get_range", late)
        await it.until(lambda: it.chain_calls > 3)
        assert it.node.context.counters.chain.refused_count == 0
    found = [str(vars(record).get("reason")) for record in caplog.records]
    assert any("has gone on since it was read" in reason for reason in found)
