"""Connections that a server accepts.

Their options are set once, at the listening socket. One that cannot be served leaves nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tidelog_core.config import ListenerConfig
from tidelog_core.metadata.endpoints import NODE
from tidelog_node.answers import Answer
from tidelog_node.connections.server import Server
from tidelog_node.connections.transport import PlainTransport, Transport, TransportFactory
from tidelog_node.requests.session import Session
from tidelog_node.security.listeners import Listener, SecurityProtocol

OPTIONS = {
    "no delay": (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    "keep alive": (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    "send buffer": (socket.SOL_SOCKET, socket.SO_SNDBUF),
}
SEND_BUFFER_BYTES = 100_000


async def accepted_options(name: str) -> dict[str, int]:
    """Return the options of a connection that a server has accepted at the listener."""
    accepted: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

    def make_transport(sock: socket.socket, _: Session) -> Transport:
        found = {name: sock.getsockopt(*option) for name, option in OPTIONS.items()}
        control = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        found["is paced"] = int(control.startswith(b"bbr"))
        accepted.set_result(found | {"timeout": int(sock.gettimeout() or 0)})
        return PlainTransport(sock)

    async with serving(name, make_transport) as port:
        with socket.create_connection(("127.0.0.1", port)):
            return await asyncio.wait_for(accepted, 60)


@asynccontextmanager
async def serving(name: str, make_transport: TransportFactory) -> AsyncIterator[int]:
    """Yield the port of a server with the listener."""

    def handle(_: memoryview, __: Session) -> Answer:
        return []

    server = Server(
        handle,
        request_bytes_max=1000,
        queued_requests_max=10,
        queued_request_bytes_max=1_000_000,
        frame_seconds_max=30,
        idle_seconds_max=30,
        send_buffer_bytes=SEND_BUFFER_BYTES,
        nodes_listener=NODE,
        make_transport=make_transport,
    )
    listener = Listener(
        name=name, port=0, protocol=SecurityProtocol.PLAINTEXT, config=ListenerConfig()
    )
    port = server.bind(listener).port
    server.start_accepting()
    try:
        yield port
    finally:
        await server.close(grace_seconds=0)


def test_accepted_connections_send_at_once_and_notice_lost_clients() -> None:
    options = asyncio.run(accepted_options("PLAIN"))
    assert options["no delay"]
    assert options["keep alive"]
    assert options["timeout"] == 0
    # Linux doubles it, for its own use.
    assert options["send buffer"] in (SEND_BUFFER_BYTES, 2 * SEND_BUFFER_BYTES)


def test_connections_of_other_nodes_have_the_systems_growing_send_buffer() -> None:
    options = asyncio.run(accepted_options(NODE))
    assert options["no delay"]
    assert options["keep alive"]
    assert options["send buffer"] not in (SEND_BUFFER_BYTES, 2 * SEND_BUFFER_BYTES)
    # Pacing costs more than such a buffer saves.
    assert not options["is paced"]


async def test_a_connection_whose_libraries_cannot_be_loaded_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node executes ``ssl`` for its first connection with TLS, maybe out of descriptors."""
    problems = [ImportError("_ssl: too many open files")]
    left: list[Session] = []

    def make_transport(sock: socket.socket, session: Session) -> Transport:
        session.on_close(left.append)
        if problems:
            raise problems.pop()
        return PlainTransport(sock)

    async with serving("TLS", make_transport) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        assert len(left) == 1
        assert "_ssl: too many open files" in caplog.records[-1].__dict__["reason"]
        _, other = await asyncio.open_connection("127.0.0.1", port)
        other.close()
        await other.wait_closed()
