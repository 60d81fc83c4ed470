"""A real follower and a real leader through a new registration of the follower's broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_node.answers import PendingReply
from tidelog_node.follower import fetcher
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.wire.fetch import parse_fetch

from tests.node.fetching.session_world import reply_bytes
from tests.node.replication.led_node import TOPIC, LedNode, led_node
from tests.node.replication.scripted_leader import listening_as_broker_2
from tests.node.replication.session_leader import BODY_AT
from tests.node.replication.test_following_exchanged_logs import (
    RECORDS,
    lose_two,
    register_again,
)
from tests.node.replication.test_following_sessions import run
from tests.node.replication.test_leader_answers import fetchers_of
from tests.support.batches import batch_of
from tests.support.node_context import node_context
from tests.support.request_contexts import context_of
from tests.support.waiting import eventually_async

FOLLOWER_ID, LEADER_ID = 1, 2


class LeadingNode:
    """Broker 2: its replicas, and its Fetch on a socket."""

    def __init__(self, folder: Path, follower: LedNode) -> None:
        self.directories = LogDirectories(folder)
        self.config = follower.config
        self.context = node_context(
            follower.store,
            follower.view,
            broker_id=LEADER_ID,
            config=lambda: self.config,
            executor=follower.executor,
        )
        self.replicas = ReplicaManager(self.context, directories=self.directories)

    async def start(self, config: NodeConfig) -> None:
        await self.replicas.start()
        self.config = config
        self.fetch = FetchHandler(self.context, replicas=self.replicas)

    async def stop(self) -> None:
        await self.fetch.close()
        await self.replicas.close()
        self.directories.close()

    @property
    def replica(self) -> Replica:
        return self.replicas.led_by_name[TOPIC.encode()][0]

    def append(self) -> None:
        self.replica.append(memoryview(bytearray(batch_of(b"record"))))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's fetches in order."""
        last: asyncio.Future[None] | None = None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size_bytes)
                version, correlation_id = struct.unpack_from(">hi", frame, 2)
                request = parse_fetch(memoryview(frame), BODY_AT, version)
                reply = self.fetch.handle(
                    request,
                    context_of(version, correlation_id=correlation_id, node_id=request.replica_id),
                )
                last = asyncio.ensure_future(_write(writer, reply, last))
        writer.close()


async def _write(
    writer: asyncio.StreamWriter, reply: object, last: asyncio.Future[None] | None
) -> None:
    found = await reply if isinstance(reply, PendingReply) else reply
    if last is not None:
        await last
    writer.write(reply_bytes(found))


@asynccontextmanager
async def leading_and_following(folder: Path) -> AsyncIterator[tuple[LeadingNode, LedNode]]:
    config = NodeConfig(replica_fetch_wait_max_ms=50, replica_fetch_backoff_ms=20)
    async with led_node(folder / "follower", config) as node:
        leader = LeadingNode(folder / "leader", node)
        await leader.start(config)
        async with listening_as_broker_2(node, leader.serve):
            await node.create_topic(leader=LEADER_ID, replicas=(LEADER_ID, FOLLOWER_ID))
            fetchers = fetchers_of(node)
            fetchers.start()
            try:
                yield leader, node
            finally:
                await fetchers.close()
                await leader.stop()


def test_a_leader_counts_on_nothing_that_a_follower_has_lost_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log comes back shorter, nothing is appended, and its disk takes nothing for a while."""
    monkeypatch.setattr(fetcher, "TROUBLE_SECONDS", 0.02)

    async def test() -> None:
        async with leading_and_following(tmp_path) as (leading, node):
            for _ in range(RECORDS):
                leading.append()
            replica, led = node.replica(), leading.replica
            await eventually_async(lambda: led.log.high_watermark == RECORDS, "all is acknowledged")
            await eventually_async(lambda: replica.log.high_watermark == RECORDS, "all know that")
            replica.log._segments.go_offline()
            await node.change_partition(isr=(LEADER_ID,))
            epoch = await register_again(node)
            lose_two(replica)
            node.replicas.disk.is_full = True
            leader = led.leader
            assert leader is not None
            told = leader.followers[FOLLOWER_ID]
            await eventually_async(lambda: told.replica_epoch == epoch, "the follower is heard")
            assert (told.log_end_offset, told.wants_in) == (1, False)
            await asyncio.sleep(0.2)
            assert (told.log_end_offset, told.wants_in) == (1, False)
            assert replica.log.log_end_offset == 1
            node.replicas.disk.is_full = False
            await eventually_async(lambda: told.wants_in, "it wants to be in sync again")
            assert told.log_end_offset == replica.log.log_end_offset == RECORDS
            await node.change_partition(
                isr=(LEADER_ID, FOLLOWER_ID), leader=FOLLOWER_ID, leader_epoch=1
            )
            assert node.replica().is_leader
            assert replica.log.log_end_offset == RECORDS
            files = [next(log.directory.glob("*.log")) for log in (led.log, replica.log)]
            assert files[0].read_bytes() == files[1].read_bytes()

    run(test())
