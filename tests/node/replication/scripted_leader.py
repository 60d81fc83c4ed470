"""A leader of one partition that answers fetches with what a test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from tidelog_core.metadata.endpoints import NODE, BrokerEndpoint
from tidelog_node.membership.registration import register_broker
from tidelog_node.security.node_identity import generate_identity
from tidelog_node.wire.primitives import write_uvarint

from tests.node.replication.led_node import LedNode

OF_A_LATER_KAFKA = 9_999  # an error code
HELD_SECONDS = 0.5  # as a leader holds a fetch by default


class ScriptedLeader:
    """Answers every fetch with the next of its answers, and with the last from then on."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []  # error code, records
        self.holds = False  # the fetches for which it has no answer of their own
        self.topic_id = b""
        self.asked_count = 0
        self.connection_count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            while True:
                (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size_bytes)
                if self.holds and self.asked_count >= len(self.answers):
                    await asyncio.sleep(HELD_SECONDS)
                error_code, records = self.answers[min(self.asked_count, len(self.answers) - 1)]
                self.asked_count += 1
                out = bytearray(struct.pack(">iBihi", 0, 0, 0, 0, 0))
                out += b"\x02" + self.topic_id + b"\x02"
                out += struct.pack(">ihqqqBi", 0, error_code, 0, 0, 0, 1, -1)
                write_uvarint(out, len(records) + 1)
                out += records + b"\0\0\0"
                writer.write(struct.pack(">i", len(out)) + out)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def scripted_leader(node: LedNode) -> AsyncIterator[ScriptedLeader]:
    """Listen as broker 2 of the node's cluster."""
    leader = ScriptedLeader()
    async with listening_as_broker_2(node, leader.serve):
        yield leader


@asynccontextmanager
async def listening_as_broker_2(
    node: LedNode,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[None]:
    """Serve each connection to what the node's cluster knows as its broker 2."""
    identity = generate_identity(2)
    context = identity.server_context([node.context.dialer.trust.identity.certificate])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await register_broker(
            node.store,
            broker_id=2,
            incarnation=uuid4(),
            endpoints=(BrokerEndpoint(NODE, "127.0.0.1", port),),
            rack=None,
            certificate=identity.certificate,
        )
        yield
