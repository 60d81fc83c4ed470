"""Partitions that leave a node, and may return to it, while their logs are opened again.

Two open logs over the same files would cut and overwrite each other's records.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.errors import StorageError
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition
from tidelog_node.replicas.replica import Replica
from tidelog_node.upkeep import log_reopener
from tidelog_node.upkeep.log_reopener import LogReopener

from tests.node.diskless.takeover_node import create, takeover_node
from tests.node.replication.led_node import LedNode, led_node
from tests.support.batches import batch_of
from tests.support.log_building import read_bytes
from tests.support.waiting import eventually_async

BROKEN = StorageError("broken", errno=errno.EIO)
NAME = TopicPartition("t", 0)

Change = Callable[[LedNode], Awaitable[None]]


class Reopened:
    """A node with one log in trouble, and a schedule of what opens it again."""

    def __init__(self, node: LedNode) -> None:
        self.node = node
        self.first = node.replica()
        self.while_open: Change | None = None  # while the log that was opened waits to be used
        self._changed: asyncio.Future[None] | None = None
        self.reopener = LogReopener(
            node.context,
            replicas=node.replicas,
            disk=node.replicas.disk,
            directories=node.directories,
            start_next_epoch=lambda _, __: None,
            register=self._register,
        )

    async def _register(self) -> None:
        assert self.while_open is not None
        changing = asyncio.ensure_future(self.while_open(self.node))
        self._changed = changing
        await asyncio.wait([changing])

    def fail(self, *, loses_records: bool) -> None:
        log = self.first.log
        log._segments.go_offline()
        if loses_records:
            (path,) = log.directory.glob("*.log")
            path.write_bytes(b"")
        self.first.note_failure(BROKEN)

    async def attempt(self, while_queued: Change | None = None) -> None:
        """Open the log again; ``while_queued`` runs before a thread begins with it."""
        released = threading.Event()
        if while_queued is not None:
            for _ in range(2):  # the executor's threads
                self.node.executor.submit(released.wait)
        attempt = asyncio.create_task(self.reopener.attempt_due())
        try:
            if while_queued is not None:
                await eventually_async(lambda: self.first.log._is_closed, "it has begun")
                await while_queued(self.node)
        finally:
            released.set()
            await attempt
        if self.while_open is not None:
            assert self._changed is not None
            await self._changed

    @property
    def directory(self) -> Path:
        return self.node.folder / "data" / str(NAME)

    def next_one(self) -> Replica:
        found = self.node.replica()
        assert found is not self.first
        return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reopener, "WAIT_SECONDS_MAX", 0.0)
    monkeypatch.setattr(log_reopener, "CHECK_SECONDS", 0.0)


@asynccontextmanager
async def diskless(folder: Path) -> AsyncIterator[Reopened]:
    """A diskless partition that this node leads, with one committed record."""
    async with takeover_node(folder) as it:
        await create(it)
        await it.until_led()
        await it.send(b"kept")
        await it.node.view.refresh()
        yield Reopened(it.node)


@asynccontextmanager
async def replicated(folder: Path) -> AsyncIterator[Reopened]:
    """A partition that this node follows at broker 2, with three records."""
    async with led_node(folder) as node:
        replica = await node.create_topic()
        for _ in range(3):
            replica.append(bytearray(batch_of(b"x")))
        epoch = replica.leader_epoch + 1
        await node.change_partition(leader=2, leader_epoch=epoch, isr=(2, 3))
        yield Reopened(node)


def stored(node: LedNode) -> Partition:
    partition = node.view.image.partition(NAME)
    assert partition is not None
    return partition


async def store(node: LedNode, partition: Partition) -> None:
    await node.store.commit([records.put(partition)])
    await node.view.refresh()


async def leave(node: LedNode) -> None:
    """Move the partition to broker 2, which has not entered a diskless one yet."""
    before = stored(node)
    epoch, wal = before.leader_epoch + 1, before.wal
    if before.is_diskless:
        wal = (*wal, EpochChain(epoch, wal[-1].chain, 1))
    await store(
        node,
        dataclasses.replace(before, replicas=(2,), isr=(2,), leader=2, leader_epoch=epoch, wal=wal),
    )
    for _ in range(10):  # A log that is removed is renamed in these turns.
        await asyncio.sleep(0.005)


async def return_(node: LedNode) -> None:
    """Make this node a replica again; its next replica would have opened the log by then."""
    await store(node, dataclasses.replace(stored(node), replicas=(2, 1)))
    for _ in range(10):
        await asyncio.sleep(0.005)


async def leave_and_return(node: LedNode) -> None:
    await leave(node)
    await return_(node)
    assert node.replica().opened_log is None


@pytest.mark.parametrize("stage", ["queued", "open"])
async def test_the_next_replica_opens_a_kept_log_once_nobody_else_has_it_open(
    tmp_path: Path, stage: str
) -> None:
    async with diskless(tmp_path) as one:
        data = read_bytes(one.first.log, 0)
        one.fail(loses_records=stage == "open")
        if stage == "open":
            one.while_open = leave_and_return
        await one.attempt(leave_and_return if stage == "queued" else None)
        replica = one.next_one()
        await eventually_async(lambda: replica.opened_log is not None, "it is open")
        assert not replica.log.is_offline
        assert read_bytes(replica.log, 0) == (data if stage == "queued" else b"")
        assert one.first.is_dropped
        assert one.first.opened_log is None


@pytest.mark.parametrize("stage", ["queued", "open"])
async def test_the_next_replica_of_a_replicated_partition_begins_with_an_empty_log(
    tmp_path: Path, stage: str
) -> None:
    """As if it had not been opened again when it left."""
    async with replicated(tmp_path) as one:
        one.fail(loses_records=stage == "open")
        if stage == "open":
            one.while_open = leave_and_return
        await one.attempt(leave_and_return if stage == "queued" else None)
        replica = one.next_one()
        await eventually_async(lambda: replica.is_follower, "it follows")
        assert replica.log.log_end_offset == 0
        replica.append_as_follower(memoryview(bytearray(batch_of(b"new"))))
        assert replica.log.log_end_offset == 1
        assert len(list(one.directory.glob("*.log"))) == 1


@pytest.mark.parametrize("stage", ["queued", "open"])
@pytest.mark.parametrize("fate", ["moves", "is deleted"])
async def test_no_log_is_removed_while_it_is_opened_again(
    tmp_path: Path, stage: str, fate: str
) -> None:
    async with replicated(tmp_path) as one:

        async def go(node: LedNode) -> None:
            if fate == "moves":
                await leave(node)
            else:
                await node.delete_topic()
                for _ in range(10):
                    await asyncio.sleep(0.005)
            assert one.directory.exists()

        one.fail(loses_records=stage == "open")
        if stage == "open":
            one.while_open = go
        await one.attempt(go if stage == "queued" else None)
        await eventually_async(lambda: not list(one.directory.parent.glob("t-0*")), "it is removed")


async def test_a_kept_log_that_was_opened_again_stays_until_another_broker_leads(
    tmp_path: Path,
) -> None:
    async with diskless(tmp_path) as one:
        one.fail(loses_records=False)
        await one.attempt(leave)
        assert one.node.replicas._left.replicas() == [one.first]
        assert one.directory.exists()
    assert (tmp_path / "data" / "clean-shutdown").exists()


async def test_a_partition_that_leaves_returns_and_leaves_is_kept_once(tmp_path: Path) -> None:
    async def leave_twice(node: LedNode) -> None:
        await leave_and_return(node)
        await leave(node)
        assert node.replicas.get(NAME) is None

    async with diskless(tmp_path) as one:
        one.fail(loses_records=False)
        await one.attempt(leave_twice)
        assert one.node.replicas._left.replicas() == [one.first]
        assert one.directory.exists()


async def test_a_topic_of_the_same_name_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    async def create_again(node: LedNode) -> None:
        await node.delete_topic()
        await node.create_topic(leader=2)
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert node.replica().opened_log is None

    async with replicated(tmp_path) as one:
        one.fail(loses_records=False)
        await one.attempt(create_again)
        replica = one.next_one()
        await eventually_async(lambda: replica.is_follower, "it follows")
        assert replica.log.log_end_offset == 0
        assert one.node.directories.has_log(replica)
        await eventually_async(
            lambda: [path.name for path in one.directory.parent.glob("t-0*")] == ["t-0"],
            "the other log is removed",
        )
