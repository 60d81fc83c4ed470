"""A server of this process with one TLS listener, and the sessions of its clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache

from tidelog_core.config import ListenerConfig
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_node.answers import Answer
from tidelog_node.authentication.login_log import LoginLog
from tidelog_node.authentication.tls_clients import TlsClients
from tidelog_node.connections.kernel_tls_transport import SPENT_BYTES
from tidelog_node.connections.listener_transports import ListenerTransports
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.server import Server
from tidelog_node.connections.tls_transport import TlsBuffers
from tidelog_node.requests.node_sessions import NodeSessions
from tidelog_node.requests.session import Session
from tidelog_node.security.listener_tls import ListenerTls
from tidelog_node.security.listeners import Listener, Listeners, SecurityProtocol
from tidelog_node.security.node_identity import generate_identity
from tidelog_node.security.node_trust import NodeTrust

from tests.support.memory_store import MemoryMetadataStore

NAME = "TLS"
REQUEST = struct.pack(">i8s", 8, b"request!")


def principal_of(_: memoryview, session: Session) -> Answer:
    """Answer every request with the client's principal."""
    text = str(session.principal).encode()
    return [struct.pack(">i", len(text)) + text]


@asynccontextmanager
async def tls_server(
    config: ListenerConfig,
    handle: Callable[[memoryview, Session], Answer] = principal_of,
    *,
    watch: ReadWatch | None = None,
    spent_bytes: int = SPENT_BYTES,
) -> AsyncIterator[tuple[Server, int]]:
    """Run a server; give it and its port. With a ``watch`` its listener has kernel TLS."""
    listener = Listener(name=NAME, port=0, protocol=SecurityProtocol.SSL, config=config)
    with ThreadPoolExecutor(1) as executor:
        tls = ListenerTls([listener], executor)
        await tls.load()
        trust = NodeTrust(generate_identity(1), ClusterView(MemoryMetadataStore(latency=0)))
        buffers = cache(TlsBuffers)
        server = Server(
            handle,
            request_bytes_max=1_000_000,
            queued_requests_max=10,
            queued_request_bytes_max=10_000_000,
            frame_seconds_max=30,
            idle_seconds_max=30,
            send_buffer_bytes=0,
            make_transport=ListenerTransports(
                Listeners(clients=(listener,)).nodes.name,
                trust=trust,
                nodes=NodeSessions(trust),
                buffers=buffers,
                of_clients=TlsClients(
                    [listener],
                    tls=tls,
                    logins=LoginLog(),
                    buffers=buffers,
                    kernel_tls={} if watch is None else {NAME: watch},
                    spent_bytes=spent_bytes,
                ),
            ),
        )
        port = server.bind(listener).port
        server.start_accepting()
        try:
            yield server, port
        finally:
            await server.close(grace_seconds=0)


async def ask(port: int, context: ssl.SSLContext) -> str:
    """Send a request and return the answer. Raises ``ConnectionError`` if refused."""
    return await asyncio.to_thread(_ask, port, context)


def _ask(port: int, context: ssl.SSLContext) -> str:
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(REQUEST)
            answer = client.recv(1000)
    except ssl.SSLError as error:
        raise ConnectionRefusedError(str(error)) from error
    if not answer:
        raise ConnectionResetError("closed")
    return answer[4:].decode()
