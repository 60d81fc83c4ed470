"""The options of connections that a server accepts: they are set once, at the listening socket."""

from __future__ import annotations

import asyncio
import socket

from tidelog_core.config import ListenerConfig
from tidelog_core.metadata.endpoints import NODE
from tidelog_node.answers import Answer
from tidelog_node.connections.transport import PlainTransport, Transport
from tidelog_node.security.listeners import Listener, SecurityProtocol
from tidelog_node.server import Server
from tidelog_node.session import Session

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
        with socket.create_connection(("127.0.0.1", port)):
            return await asyncio.wait_for(accepted, 60)
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
