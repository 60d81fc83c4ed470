"""Clients of diskless topics are not read while the chain owes too much."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kio.schema.errors import ErrorCode
from tidelog_core.config import ListenerConfig
from tidelog_node.connections.server import Server
from tidelog_node.counters import NodeCounters
from tidelog_node.dispatch import Dispatch
from tidelog_node.replicas.replica import Replica
from tidelog_node.security.listeners import Listener, SecurityProtocol

from tests.node.replication.led_node import TOPIC, LedNode, led_node
from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS, HandChain
from tests.support.wire_client import frame, produce_body

PRODUCE, VERSION = 0, 8
BUDGET_BYTES = 1_000_000
CODE_AT = 4 + 4 + 2 + len(TOPIC) + 4 + 4  # behind the correlation id, topics and partitions


class Served:
    """A node with one diskless partition behind a socket."""

    def __init__(
        self, node: LedNode, replica: Replica, server: Server, counters: NodeCounters, port: int
    ) -> None:
        self.node, self.replica, self.server, self.port = node, replica, server, port
        self.counters = counters
        self.chain = HandChain()
        self.chain.enter(node.replicas, replica, 0)
        self.clients: list[Client] = []

    async def client(self) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]

    async def read_on(self) -> None:
        """Let the node receive what is there."""
        for _ in range(20):
            await asyncio.sleep(0.001)

    @property
    def end(self) -> int:
        return self.replica.log.log_end_offset

    def commit(self) -> None:
        self.replica.on_chain_committed(self.end)


class Client:
    """A producer that need not wait for answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, value: bytes, *, acks: int = -1, timeout_ms: int = 60_000) -> None:
        body = produce_body(TOPIC, batch_of(value), acks=acks, timeout_ms=timeout_ms)
        self.writer.write(frame(PRODUCE, VERSION, 1, body, tags=b""))

    async def code(self) -> ErrorCode:
        """Return the error code of the next answer."""
        async with asyncio.timeout(60):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            answer = await self.reader.readexactly(size)
        return ErrorCode(struct.unpack_from(">h", answer, CODE_AT)[0])


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    async with led_node(folder) as node:
        replica = await node.create_topic(replicas=(1,), **DISKLESS)
        dispatch = Dispatch([node.produce.hot_route()], (), elements_max=9, partitions_max=9)
        counters = NodeCounters()
        server = Server(
            dispatch,
            request_bytes_max=1_000_000,
            queued_requests_max=10,
            queued_request_bytes_max=BUDGET_BYTES,
            frame_seconds_max=30,
            idle_seconds_max=30,
            send_buffer_bytes=0,
            counters=counters,
        )
        listener = Listener(
            name="PLAINTEXT",
            port=0,
            protocol=SecurityProtocol.PLAINTEXT,
            config=ListenerConfig(),
        )
        port = server.bind(listener).port
        server.start_accepting()
        one = Served(node, replica, server, counters, port)
        try:
            yield one
        finally:
            for client in one.clients:
                client.writer.close()
            node.produce.close()
            await server.close(grace_seconds=0)
            dispatch.close()


async def test_requests_wait_for_room_and_come_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        first, second = await one.client(), await one.client()
        first.send(b"pending")
        await one.read_on()
        one.node.admission.set_full(True)
        for client in (first, second):
            client.send(b"waits")
            client.send(b"waits behind it")
            await one.read_on()
        assert one.end == 1
        one.commit()
        assert await first.code() is ErrorCode.none  # Answers go out.
        one.node.admission.set_full(False)
        await one.read_on()
        assert one.end == 5
        one.commit()
        for client in (first, first, second, second):
            assert await client.code() is ErrorCode.none
        assert not one.node.admission.is_active


async def test_no_more_are_carried_out_than_there_is_room_for(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        one.node.admission.set_full(True)
        for _ in range(5):
            (await one.client()).send(b"a")
            await one.read_on()
        for end in (1, 2, 3):
            one.node.admission.set_full(False)
            while one.end < end:  # noqa: ASYNC110
                await asyncio.sleep(0)
            one.node.admission.set_full(True)
            await one.read_on()
            assert one.end == end
        one.commit()
        for client in one.clients[:3]:
            assert await client.code() is ErrorCode.none


async def test_a_request_is_refused_before_its_client_gives_up(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        one.node.admission.set_full(True)
        late, silent = await one.client(), await one.client()
        late.send(b"a", timeout_ms=40)
        silent.send(b"a", acks=0, timeout_ms=40)
        assert await late.code() is ErrorCode.request_timed_out
        assert await silent.reader.read() == b""  # It cannot be told otherwise.
        assert one.end == 0
        late.send(b"a")
        await one.read_on()
        one.node.admission.set_full(False)
        await one.read_on()
        one.commit()
        assert await late.code() is ErrorCode.none
        assert one.end == 1


async def test_a_client_that_has_gone_is_forgotten(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        one.node.admission.set_full(True)
        gone = await one.client()
        gone.send(b"a", timeout_ms=200)
        await one.read_on()
        assert one.node.admission.is_active
        gone.writer.transport.abort()
        async with asyncio.timeout(60):
            while one.counters.listener("PLAINTEXT").open_count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        one.node.admission.set_full(False)
        assert not one.node.admission.is_active
        assert one.end == 0


async def test_the_memory_of_what_waits_is_bounded(tmp_path: Path) -> None:
    """Many clients send without end while nothing is taken."""
    async with served(tmp_path) as one:
        one.node.admission.set_full(True)
        for _ in range(20):
            client = await one.client()
            for _ in range(4):
                client.send(b"v" * 100_000)
        for _ in range(10):
            await one.read_on()
        assert one.end == 0
        assert one.server.memory.held_bytes <= 2 * BUDGET_BYTES
        one.node.admission.set_full(False)
        async with asyncio.timeout(60):
            while one.end < 80:
                await asyncio.sleep(0.01)
                one.commit()
        one.commit()
        for client in one.clients:
            for _ in range(4):
                assert await client.code() is ErrorCode.none
