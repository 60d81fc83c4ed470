"""The log of a diskless partition that has moved away stays until another broker leads it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tidelog_core.diskless.wal.header import HEADER_SIZE
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.records import Partition, delete
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.records.batch import decode_records
from tidelog_node.replicas import replica_logs
from tidelog_node.replicas.left_logs import LeftLogs
from tidelog_node.replicas.replica import Replica

from tests.node.diskless.takeover_node import TakeoverNode, create, takeover_node
from tests.node.replication.led_node import led_node
from tests.support.batches import batch_of
from tests.support.log_building import read_bytes

BATCH_HEADER_SIZE = 61
NAME = TopicPartition("t", 0)


async def store(it: TakeoverNode, *partitions: Partition) -> None:
    await it.node.store.commit([records.put(partition) for partition in partitions])
    await it.node.view.refresh()


async def lead_with_record(it: TakeoverNode) -> Partition:
    """Have the node lead a partition of one committed record, and return its item."""
    await create(it)
    await it.until_led()
    await it.send(b"kept")
    await it.node.view.refresh()
    partition: Partition = it.stored()
    return partition


def moved_away(partition: Partition) -> Partition:
    """Return its item with broker 2 as its leader, which has not entered the partition yet."""
    epoch = partition.leader_epoch + 1
    ended = EpochChain(epoch, partition.wal[-1].chain, 1)
    return dataclasses.replace(
        partition,
        replicas=(2,),
        isr=(2,),
        leader=2,
        leader_epoch=epoch,
        wal=(*partition.wal, ended),
    )


async def hand_over(it: TakeoverNode, partition: Partition) -> Partition:
    """Name broker 2 and return the item."""
    await store(it, moved_away(partition))
    for _ in range(10):  # A log that is removed is renamed in these turns.
        await asyncio.sleep(0.01)
    await it.node.view.refresh()
    assert it.node.replicas.get(NAME) is None
    return it.stored()  # type: ignore[no-any-return]


class Flushes:
    """Notes the threads that flush files of one folder; each flush takes some time."""

    def __init__(self, folder: Path, *, seconds: float = 0.0) -> None:
        self.threads: set[int] = set()
        self._folder, self._seconds = f"{folder}/t-", seconds
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path.startswith(self._folder) and path.endswith(".log"):
            self.threads.add(threading.get_ident())
            time.sleep(self._seconds)
        self._fsync(descriptor)


def log_of(it: TakeoverNode) -> Path:
    return it.node.folder / "data" / str(NAME)


async def test_a_leader_that_was_taken_out_leads_again_if_its_successor_cannot_read(
    tmp_path: Path,
) -> None:
    """It alone has the records: the object is damaged by then, and nobody has followed."""
    objects = MemoryObjectStore()
    async with takeover_node(tmp_path, objects) as it:
        led = await lead_with_record(it)
        data = read_bytes(it.replica().log, 0)
        given = await hand_over(it, led)
        key = wal_key(it.cluster_id, it.chain.name, 0)
        broken = bytearray(await objects.get(key))
        broken[HEADER_SIZE + BATCH_HEADER_SIZE] ^= 1  # in the records
        await objects.replace(key, bytes(broken))
        epoch = given.leader_epoch + 1
        await store(
            it, dataclasses.replace(given, leader=1, leader_epoch=epoch, replicas=(1,), isr=(1,))
        )
        replica = await it.until_led()
        assert replica.log.high_watermark == replica.log.log_end_offset == 1
        assert read_bytes(replica.log, 0) == data
        assert (await it.send(b"more")).base_offset == 1


async def test_the_log_goes_when_another_broker_leads(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        given = await hand_over(it, await lead_with_record(it))
        assert log_of(it).exists()
        entered = EpochChain(given.leader_epoch + 1, ChainName(2, uuid4()), 1)
        await store(
            it,
            dataclasses.replace(
                given, leader_epoch=entered.leader_epoch, wal=(*given.wal, entered)
            ),
        )
        await it.until(lambda: not log_of(it).exists())


async def test_the_log_of_a_deleted_topic_goes(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        await hand_over(it, await lead_with_record(it))
        await it.node.store.commit([delete(it.node.view.image.topics["t"])])
        await it.node.view.refresh()
        await it.until(lambda: not log_of(it).exists())


@pytest.mark.parametrize("wal", ["none", "led"])
async def test_no_log_stays_that_nobody_may_need(tmp_path: Path, wal: str) -> None:
    """Nothing was ever committed, or the new leader has entered the partition."""
    async with takeover_node(tmp_path) as it:
        led = await lead_with_record(it)
        entered = EpochChain(led.leader_epoch + 1, ChainName(2, uuid4()), 1)
        await store(
            it,
            dataclasses.replace(
                led,
                leader=2,
                leader_epoch=entered.leader_epoch,
                replicas=(2,),
                isr=(2,),
                wal=() if wal == "none" else (*led.wal, entered),
            ),
        )
        await it.until(lambda: not log_of(it).exists())


async def test_a_node_that_stops_closes_the_logs_that_it_keeps(tmp_path: Path) -> None:
    """Else the next start would take the unclean log for a clean one."""
    async with takeover_node(tmp_path) as it:
        await hand_over(it, await lead_with_record(it))
        (left,) = it.node.replicas._left.replicas()
        log = left.opened_log
        assert log is not None
    assert log._is_closed
    assert log_of(it).exists()


async def test_the_loop_does_not_wait_for_the_flush_of_a_log_that_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with takeover_node(tmp_path) as it:
        given = await hand_over(it, await lead_with_record(it))
        flushes = Flushes(log_of(it).parent)
        monkeypatch.setattr(os, "fsync", flushes.fsync)
        await store(it, dataclasses.replace(given, replicas=(2, 1)))
        await it.until(lambda: it.replica().is_follower)
        assert it.replica().log.log_end_offset == 1
        assert flushes.threads
        assert threading.get_ident() not in flushes.threads


KEPT_COUNT = 2 * replica_logs.CLOSE_THREADS


async def stop_in_haste(folder: Path) -> TakeoverNode:
    """Have a node that keeps logs of partitions that it has left stop, before all are flushed."""
    async with takeover_node(folder) as it:
        await create(it, partitions=KEPT_COUNT)
        for index in range(KEPT_COUNT):
            (await it.until_led(index)).append(bytearray(batch_of(b"%d" % index)))
        await it.chain.commit(*map(it.replica, range(KEPT_COUNT)))
        await it.node.view.refresh()
        await store(it, *(moved_away(it.stored(index)) for index in range(KEPT_COUNT)))
        await it.until(lambda: len(it.node.replicas._left.replicas()) == KEPT_COUNT)
        patch = pytest.MonkeyPatch()
        patch.setattr(os, "fsync", Flushes(log_of(it).parent, seconds=0.5).fsync)
        patch.setattr(replica_logs, "CLOSE_SECONDS_MAX", 0.0)
    patch.undo()
    return it


async def has_records(it: TakeoverNode) -> None:
    """Check that every partition is followed with the record that it had."""
    for index in range(KEPT_COUNT):
        await it.until(lambda index=index: it.replica(index).is_follower)  # type: ignore[misc]
        found = decode_records(memoryview(read_bytes(it.replica(index).log, 0)))
        assert [record.value for record in found] == [b"%d" % index]


async def test_a_stop_does_not_wait_for_all_logs_that_it_keeps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do they make it an unclean one. Those that are not flushed are recovered when opened."""
    it = await stop_in_haste(tmp_path)
    data = tmp_path / "data"
    assert (data / "clean-shutdown").exists()
    assert len(list(data.glob("t-*/clean-shutdown"))) < KEPT_COUNT
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    async with takeover_node(tmp_path, it.objects) as again:
        assert len(again.node.replicas._left.replicas()) == KEPT_COUNT
        returned = [again.stored(index) for index in range(KEPT_COUNT)]
        await store(again, *(dataclasses.replace(one, replicas=(2, 1)) for one in returned))
        await has_records(again)


async def test_a_start_recovers_logs_that_a_stop_has_not_flushed_on_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their partitions have returned while the node was down."""
    it = await stop_in_haste(tmp_path)
    metadata = SqliteMetadataStore(tmp_path / "metadata.db")
    returned = [
        dataclasses.replace(it.stored(index), replicas=(2, 1)) for index in range(KEPT_COUNT)
    ]
    await metadata.commit([records.put(one) for one in returned])
    await metadata.close()
    data = tmp_path / "data"
    unflushed = {path for path in data.glob("t-*") if not (path / "clean-shutdown").exists()}
    opened: dict[Path, set[int]] = {}  # the threads by folder
    open_file = os.open

    def note(path: Any, *args: Any, **named: Any) -> int:
        if str(path).endswith(".log"):
            opened.setdefault(Path(path).parent, set()).add(threading.get_ident())
        return open_file(path, *args, **named)

    assert unflushed
    monkeypatch.setattr(os, "open", note)
    async with takeover_node(tmp_path, it.objects) as again:
        assert again.node.directories.was_clean
        assert unflushed <= opened.keys()
        assert all(threading.get_ident() not in opened[folder] for folder in unflushed)
        await has_records(again)


async def test_a_log_that_is_left_again_before_it_was_opened_again_stays(tmp_path: Path) -> None:
    removed: list[Replica] = []
    left = LeftLogs(lambda _, replica: removed.append(replica))
    async with takeover_node(tmp_path) as it:
        partition = await lead_with_record(it)
        first = it.replica()
        given = await hand_over(it, partition)
        left.leave(first, it.node.view.image)
        left.take_back(NAME)
        await store(it, dataclasses.replace(given, replicas=(2, 1)))
        second = it.replica()
        left.leave(second, it.node.view.image)
        assert (left.replicas(), removed) == ([first], [])
        entered = EpochChain(given.leader_epoch + 1, ChainName(2, uuid4()), 1)
        await it.node.change_partition(leader_epoch=entered.leader_epoch, wal=(*given.wal, entered))
        left.follow_topic(it.node.view.image, "t")
        assert (left.replicas(), removed) == ([], [first])


@pytest.mark.parametrize("is_led", [True, False])
async def test_a_start_leaves_the_logs_of_partitions_that_moved_while_the_node_was_down(
    tmp_path: Path, is_led: bool
) -> None:
    """Otherwise each restart of a node would leave some on its disk for ever."""
    async with takeover_node(tmp_path) as it:
        given = await hand_over(it, await lead_with_record(it))
    assert log_of(it).exists()
    entered = EpochChain(given.leader_epoch + 1, ChainName(2, uuid4()), 1)
    led = dataclasses.replace(given, leader_epoch=entered.leader_epoch, wal=(*given.wal, entered))
    if is_led:
        metadata = SqliteMetadataStore(tmp_path / "metadata.db")
        await metadata.commit([records.put(led)])
        await metadata.close()
    async with takeover_node(tmp_path, it.objects) as again:
        if not is_led:
            assert len(again.node.replicas._left.replicas()) == 1
            await store(again, led)
        await again.until(lambda: not log_of(again).exists())
        assert again.node.replicas._left.replicas() == []


async def test_a_log_that_is_kept_without_being_opened_leaves_the_shutdown_clean(
    tmp_path: Path,
) -> None:
    """Else the next start recovers every log of the node, as after a crash."""
    mark = tmp_path / "data" / "clean-shutdown"
    async with takeover_node(tmp_path) as it:
        await hand_over(it, await lead_with_record(it))
    assert mark.exists()
    async with takeover_node(tmp_path, it.objects) as again:
        (left,) = again.node.replicas._left.replicas()
        assert left.opened_log is None
    assert log_of(again).exists()
    assert mark.exists()


async def test_a_kept_log_whose_file_has_failed_leaves_the_shutdown_clean(tmp_path: Path) -> None:
    async with takeover_node(tmp_path) as it:
        await hand_over(it, await lead_with_record(it))
        (left,) = it.node.replicas._left.replicas()
        assert left.opened_log is not None
        left.opened_log.take_offline()
    assert (tmp_path / "data" / "clean-shutdown").exists()


async def test_a_start_touches_no_log_of_a_replicated_partition(tmp_path: Path) -> None:
    """It may be the only copy of its records."""
    async with led_node(tmp_path) as node:
        await node.create_topic()
        node.send(b"a", acks=1)
    metadata = SqliteMetadataStore(tmp_path / "metadata.db")
    partition = node.view.image.partitions("t")[0]
    await metadata.commit([records.put(dataclasses.replace(partition, replicas=(2,), leader=2))])
    await metadata.close()
    async with led_node(tmp_path) as node:
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert list((tmp_path / "data" / str(NAME)).glob("*.log"))
