"""What strangers send to the node listener stops nobody and leaves nothing behind."""

from __future__ import annotations

import base64
import contextlib
import random
import socket
import ssl
from pathlib import Path

from tidelog_core.metadata.endpoints import NODE
from tidelog_node.security.node_identity import generate_identity

from tests.support.broken_handshakes import broken
from tests.support.node_peers import connected_as, image_of, register_peer
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

CONNECTIONS = 400
GROWTH_BYTES_MAX = 30_000_000  # a connection in its handshake takes about 25 KB


def test_broken_handshakes_are_closed_and_true_nodes_get_in(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with NodeProcess(tmp_path / "node") as node:
        database = node.data_dir / "metadata.db"
        broker = image_of(database).brokers[1]
        endpoint = broker.endpoint_of(NODE)
        assert endpoint is not None
        hello = first_message(base64.b64decode(broker.certificate))
        files, rss_bytes = len(node.open_files()), node.rss_bytes()
        with contextlib.ExitStack() as stack:
            for _ in range(CONNECTIONS):
                client = stack.enter_context(
                    socket.create_connection((endpoint.host, endpoint.port), 10)
                )
                client.sendall(broken(hello, chance))
            with connected_as(register_peer(database, 2), database, 1):
                assert node.rss_bytes() - rss_bytes < GROWTH_BYTES_MAX
        eventually(lambda: len(node.open_files()) <= files + 1, "all are closed")
        assert "Traceback" not in node.log


def test_a_handshake_that_drips_is_closed_like_an_idle_connection(tmp_path: Path) -> None:
    """No byte of it counts as a sign of life, so nobody holds a connection without a key."""
    config = {"connections.max.idle.ms": "1000"}
    with NodeProcess(tmp_path / "node", config=config) as node:
        broker = image_of(node.data_dir / "metadata.db").brokers[1]
        endpoint = broker.endpoint_of(NODE)
        assert endpoint is not None
        hello = first_message(base64.b64decode(broker.certificate))
        with socket.create_connection((endpoint.host, endpoint.port), 10) as client:
            client.settimeout(0.1)
            is_closed = False
            for byte in hello:
                with contextlib.suppress(TimeoutError):
                    client.sendall(bytes([byte]))
                    is_closed = client.recv(1) == b""
                if is_closed:
                    break
            assert is_closed


def first_message(certificate: bytes) -> bytes:
    """Return what a node that is not registered begins its handshake with."""
    context = generate_identity(9).client_context([certificate], may_be_plain=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()
