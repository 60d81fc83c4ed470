"""What a node makes of its disk: full, failed, well again, and what it says of it."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_node.disk import data_disk
from tidelog_node.disk.data_disk import FAILED, FULL, DataDisk, DiskWatch

from tests.node.replication.led_node import led_node
from tests.support.batches import batch_of
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

NO_ROOM = StorageError("no room", errno=errno.ENOSPC)
BROKEN = StorageError("broken", errno=errno.EIO)


@asynccontextmanager
async def a_watch(path: Path, **settings: int) -> AsyncIterator[tuple[DataDisk, DiskWatch]]:
    config = NodeConfig(**{"log_dir_reserve_bytes": 0, **settings})
    with ThreadPoolExecutor(1) as executor:
        disk, store = DataDisk(), MemoryMetadataStore()
        node = node_context(store, ClusterView(store), config=lambda: config, executor=executor)
        watch = DiskWatch(node, disk, path=path)
        yield disk, watch


def seconds_to_go(watch: DiskWatch) -> float:
    return watch._not_before - asyncio.get_running_loop().time()


def names(watch: DiskWatch) -> list[str]:
    return [reason.name for reason in watch.health.reasons]


async def test_a_disk_without_room_is_full_once_and_until_a_probe_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_disk, "CHECK_SECONDS", 25.0)

    async with a_watch(tmp_path) as (disk, watch):
        fitness: list[bool] = []
        disk.changed.subscribe(lambda: fitness.append(disk.is_fit))
        await watch.check()
        assert disk.is_fit
        for _ in range(100):
            assert disk.note(NO_ROOM)
        assert (disk.is_full, names(watch)) == (True, [FULL])
        await watch.check()
        assert disk.is_full  # It is not tried again at once.
        assert 15 < seconds_to_go(watch) <= 25
        watch._not_before = 0.0
        await watch.check()
        assert (disk.is_fit, names(watch), fitness) == (True, [], [False, True])
        # What is full again soon after is left alone for twice as long.
        disk.note(NO_ROOM)
        await watch.check()
        assert disk.is_full
        assert 40 < seconds_to_go(watch) <= 50
        watch._not_before = 0.0
        await watch.check()
        assert disk.is_fit
    said = [record.message.split(",")[0] for record in caplog.records]
    assert said == ["disk is full", "disk has room again"] * 2
    assert not list(tmp_path.iterdir())


async def test_a_disk_with_less_than_the_reserve_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_disk, "RESERVE_SHARE_MAX", 1)

    async with a_watch(tmp_path, log_dir_reserve_bytes=2**62) as (disk, watch):
        await watch.check()
        assert (disk.is_full, names(watch)) == (True, [FULL])


@pytest.mark.parametrize("finder", ["the watch", "an append"])
async def test_a_disk_that_falls_below_its_reserve_again_is_left_alone_for_longer(
    finder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk does that fills at the rate at which retention makes room."""
    monkeypatch.setattr(data_disk, "RESERVE_SHARE_MAX", 1)
    monkeypatch.setattr(data_disk, "CHECK_SECONDS", 0.0)

    async with a_watch(tmp_path) as (disk, watch):
        waits_s: list[float] = []
        for _ in range(4):
            watch._node = replace(
                watch._node, config=lambda: NodeConfig(log_dir_reserve_bytes=2**62)
            )
            if finder == "an append":
                disk.note_low()
            else:
                await watch.check()
            assert disk.is_full
            waits_s.append(seconds_to_go(watch))
            watch._node = replace(watch._node, config=lambda: NodeConfig(log_dir_reserve_bytes=0))
            await watch.check()
            assert disk.is_full is (waits_s[-1] > 0)
            watch._not_before = 0.0
            await watch.check()
            assert disk.is_fit
            monkeypatch.setattr(data_disk, "CHECK_SECONDS", 10.0)
        assert waits_s[0] <= 0
        assert 15 < waits_s[1] <= 20
        assert 35 < waits_s[2] <= 40
        assert 55 < waits_s[3] <= 60


async def test_a_disk_that_fails_a_probe_has_failed_until_one_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"

    async with a_watch(path) as (disk, watch):
        path.mkdir()
        assert not disk.note(BROKEN)
        await watch.check()
        assert disk.is_fit  # The disk takes what is written, whatever that log has met.
        path.rmdir()
        for _ in range(3):
            disk.note(BROKEN)
            await watch.check()
        assert (disk.has_failed, disk.is_full, names(watch)) == (True, False, [FAILED])
        path.mkdir()
        await watch.check()
        assert (disk.is_fit, names(watch)) == (True, [])
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.ERROR, logging.WARNING]


async def test_a_burst_does_not_take_the_reserve_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_disk, "RESERVE_SHARE_MAX", 1)

    config = {"log_dir_reserve_bytes": 0}
    async with a_watch(tmp_path, **config) as (disk, watch):
        await watch.check()
        assert 0 < disk.left_bytes <= shutil.disk_usage(tmp_path).total
        disk.left_bytes = -1
        disk.note_low()
        assert disk.is_fit
        assert disk.left_bytes > data_disk.LOW_STEP_BYTES
    async with a_watch(tmp_path, log_dir_reserve_bytes=2**62) as (disk, watch):
        disk.note_low()
        assert (disk.is_full, names(watch)) == (True, [FULL])


async def test_every_append_counts_and_none_is_taken_on_a_full_disk(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        replica, disk = await node.create_topic(), node.replicas.disk
        lows: list[int] = []
        disk.low.subscribe(lambda: lows.append(disk.left_bytes))
        disk.left_bytes = 10
        replica.append(bytearray(batch_of(b"x" * 100)))
        assert lows == [data_disk.LOW_STEP_BYTES]
        end_offset = replica.log.log_end_offset
        disk.change(is_full=True, has_failed=False)
        for append in (replica.append, replica.append_as_follower):
            with pytest.raises(StorageError, match="disk of this node is full"):
                append(memoryview(bytearray(batch_of(b"x"))))
        assert replica.log.log_end_offset == end_offset
