"""Idle and slow clients of a TLS listener take bounded memory, and keep nobody waiting."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
from pathlib import Path

import pytest

from tests.node.security.test_tls_clients import ask_versions, tls_node
from tests.support.certificates import Authority
from tests.support.wire_client import frame

IDLE_BYTES_MAX = 60_000  # a connection: OpenSSL's state and ours
# Encrypted bytes held back, kernel aside, and answers that are not encrypted yet.
SLOW_BYTES_MAX = 1_700_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("idle_count", "slow_count"), [(200, 5), pytest.param(5000, 100, marks=pytest.mark.slow)]
)
def test_idle_and_slow_clients_take_bounded_memory(
    tmp_path: Path, idle_count: int, slow_count: int
) -> None:
    authority = Authority(tmp_path / "authority")
    context = authority.client_context()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tls_node(tmp_path, authority) as node, contextlib.ExitStack() as stack:
        ask_versions(node, context)
        rss_bytes = node.rss_bytes()
        for _ in range(idle_count):
            connected(stack, node.port, context)
        idle_bytes = (node.rss_bytes() - rss_bytes) / idle_count
        print(f"{idle_bytes:.0f} bytes an idle client")
        ask_versions(node, context)
        rss_bytes = node.rss_bytes()
        for _ in range(slow_count):
            ask_much(connected(stack, node.port, context))
        ask_versions(node, context)
        slow_bytes = (node.rss_bytes() - rss_bytes) / slow_count
        print(f"{slow_bytes:.0f} bytes a slow client")
        assert idle_bytes < IDLE_BYTES_MAX
        assert slow_bytes < SLOW_BYTES_MAX


def connected(stack: contextlib.ExitStack, port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    client = stack.enter_context(context.wrap_socket(sock, server_hostname="127.0.0.1"))
    client.sendall(frame(18, 0, 1, b"", tags=b""))
    (size,) = struct.unpack(">i", client.recv(4))
    while size:
        size -= len(client.recv(size))
    return client


def ask_much(client: ssl.SSLSocket) -> None:
    """Ask for megabytes of answers, and take none of them."""
    client.settimeout(0.2)
    requests = b"".join(frame(18, 0, number, b"", tags=b"") for number in range(500))
    with contextlib.suppress(TimeoutError):
        for _ in range(40):
            client.sendall(requests)
