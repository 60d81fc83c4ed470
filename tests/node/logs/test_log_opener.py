"""Logs that are opened on another thread while the loop goes on, and topics change under it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError, UnknownTopicOrPartition
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, Topic
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.answers import PendingReply, TaskReply
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.membership.registration import ensure_cluster
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.wire.fetch import FetchPartition, FetchRequest

from tests.support.batches import batch_of
from tests.support.node_context import node_context
from tests.support.request_contexts import context_of

TOPIC = "t"
PARTITION_COUNT = 60
VERSION = 12


class Holder:
    """A node's logs, each with a record and closed in order. Made by ``holding``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteMetadataStore(folder / "metadata.db")
        self.view = ClusterView(self.store)
        self.executor = ThreadPoolExecutor(1)
        self.config = NodeConfig()

    async def open(self) -> None:
        self.directories = LogDirectories(self.folder / "data")
        self.context = node_context(
            self.store, self.view, config=lambda: self.config, executor=self.executor
        )
        self.replicas = ReplicaManager(self.context, directories=self.directories)
        await self.replicas.start()
        self.held = list(self.replicas.replicas())

    async def close(self) -> None:
        await self.replicas.close()
        self.directories.close()

    async def change_topic(self, **configs: str) -> None:
        topic = self.view.image.topics[TOPIC]
        await self.store.commit([records.put(dataclasses.replace(topic, configs=configs))])
        await self.view.refresh()


@asynccontextmanager
async def holding(folder: Path) -> AsyncIterator[Holder]:
    holder = Holder(folder)
    await ensure_cluster(holder.store)
    topic = Topic(name=TOPIC, topic_id=uuid4(), partition_count=PARTITION_COUNT, configs={})
    for number in range(PARTITION_COUNT):
        partition = Partition(
            topic_id=topic.topic_id,
            partition=number,
            replicas=(1,),
            leader=1,
            leader_epoch=0,
            isr=(1,),
        )
        await holder.store.commit([records.put(partition)])
    await holder.store.commit([records.put(topic)])
    await holder.view.refresh()
    await holder.open()
    for replica in holder.held:
        replica.append(bytearray(batch_of(b"x")))
    await holder.close()
    await holder.open()
    try:
        yield holder
    finally:
        await holder.close()
        await holder.store.close()
        holder.executor.shutdown()


def fetch_all() -> FetchRequest:
    wanted = [FetchPartition(n, -1, 0, -1, 0, 1 << 20) for n in range(PARTITION_COUNT)]
    return FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [(TOPIC.encode(), wanted)], b"", -1)


@contextmanager
def half_open(holder: Holder) -> Iterator[asyncio.Future[None]]:
    """Have all logs opened; the body runs while half of them are and one is just being opened."""
    middle = PARTITION_COUNT // 2
    with holder.held[middle].opening:  # The loop's own thread does not wait for it.
        opening = asyncio.ensure_future(holder.replicas.open_logs(holder.held))
        yield opening


async def until_half(holder: Holder) -> None:
    last = holder.held[PARTITION_COUNT // 2 - 1]
    async with asyncio.timeout(30):
        while last.opened_log is None:  # noqa: ASYNC110 - it is another thread that opens it
            await asyncio.sleep(0.001)


async def test_a_fetch_opens_logs_while_the_loop_goes_on(tmp_path: Path) -> None:
    async with holding(tmp_path) as holder:
        handler = FetchHandler(holder.context, replicas=holder.replicas)
        with holder.held[PARTITION_COUNT // 2].opening:
            answer = handler.handle(fetch_all(), context_of(VERSION))
            assert isinstance(answer, TaskReply)
            await until_half(holder)
            assert not answer.is_settled
        first = await answer
        again = handler.handle(fetch_all(), context_of(VERSION))
        assert not isinstance(again, PendingReply)  # nothing is left to open
        assert _parts(first) == _parts(again)
        await handler.close()


async def test_a_log_that_cannot_be_opened_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    async with holding(tmp_path) as holder:
        broken = holder.held[7]
        broken.refuse(StorageError("broken"))
        handler = FetchHandler(holder.context, replicas=holder.replicas)
        answer = handler.handle(fetch_all(), context_of(VERSION))
        assert isinstance(answer, TaskReply)
        await answer
        unopened = [replica for replica in holder.held if replica.opened_log is None]
        assert unopened == [broken]
        await handler.close()


async def test_a_topic_deleted_while_its_logs_are_opened_leaves_no_files(tmp_path: Path) -> None:
    async with holding(tmp_path) as holder:
        with half_open(holder) as opening:
            await until_half(holder)
            await holder.store.commit([records.delete(holder.view.image.topics[TOPIC])])
            await holder.view.refresh()
        await opening
        # Those that were open are being let go of, a few in each turn.
        closed = [replica for replica in holder.held if replica.opened_log is None]
        assert len(closed) >= PARTITION_COUNT // 2
        for replica in closed:
            with pytest.raises(UnknownTopicOrPartition):
                replica.open()
        async with asyncio.timeout(30):
            # Logs are taken away in turns, and their files on another thread.
            while list((tmp_path / "data").glob(f"{TOPIC}-*")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_logs_opened_while_settings_change_have_the_new_ones(tmp_path: Path) -> None:
    async with holding(tmp_path) as holder:
        with half_open(holder) as opening:
            await until_half(holder)
            await holder.change_topic(**{"segment.bytes": "12345"})
        await opening
        assert {replica.log.config.segment_bytes for replica in holder.held} == {12345}


async def test_logs_being_opened_when_the_node_stops_are_closed_in_order(tmp_path: Path) -> None:
    async with holding(tmp_path) as holder:
        opening = asyncio.ensure_future(holder.replicas.open_logs(holder.held))
        await until_half(holder)
        await holder.close()
        await opening
        marks = list((tmp_path / "data").glob(f"{TOPIC}-*/clean-shutdown"))
        assert len(marks) == PARTITION_COUNT
        assert (tmp_path / "data" / "clean-shutdown").exists()
        await holder.open()


def _parts(reply: Any) -> list[tuple[int, int] | bytes]:
    """Return a reply's parts, with slices of files told by position and size."""
    return [
        bytes(part)
        if isinstance(part, bytes | bytearray | memoryview)
        else (part.position, part.size_bytes)
        for part in reply
    ]
