"""Connections that are served in this process, each with a client's socket."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Coroutine
from typing import Any

from tidelog_node.connections.connection import Connection
from tidelog_node.connections.frame_receiver import FrameHandler
from tidelog_node.connections.loop_buffers import LoopBuffers
from tidelog_node.connections.transport import TransportFactory, plain_transport

from tests.support.request_contexts import a_session

SOCKET_BUFFER_BYTES = 1 << 20  # the system gives less
REQUEST = struct.pack(">i", 8) + bytes(8)


class Owner:
    """Holds the tasks of connections."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def forget(self, connection: Connection) -> None:
        """Do nothing: the test ends with them."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it; the test looks at the tasks."""
        self.tasks.append(asyncio.get_running_loop().create_task(work))


def connect(
    handle: FrameHandler,
    *,
    owner: Owner | None = None,
    buffers: LoopBuffers | None = None,
    make_transport: TransportFactory = plain_transport,
) -> tuple[socket.socket, Connection]:
    """Return a client's socket and the connection that serves it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    session = a_session(client.getsockname()[1])
    served = Connection(
        make_transport(accepted, session),
        session,
        handle=handle,
        buffers=buffers or loop_buffers(),
        loop=asyncio.get_running_loop(),
        owner=owner or Owner(),
    )
    return client, served


def loop_buffers(*, request_bytes_max: int = 1000, frame_seconds_max: float = 30) -> LoopBuffers:
    """Return what the connections of the running loop share."""
    return LoopBuffers(
        request_bytes_max=request_bytes_max,
        queued_requests_max=10,
        queued_request_bytes_max=1_048_576,
        frame_seconds_max=frame_seconds_max,
        loop=asyncio.get_running_loop(),
    )


def unread_bytes(client: socket.socket | int) -> int:
    """Return how much a socket, or its descriptor, has received that is not read."""
    count = array.array("i", [0])
    fcntl.ioctl(client, termios.FIONREAD, count)
    return count[0]
