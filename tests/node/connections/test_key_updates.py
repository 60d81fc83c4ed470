"""Clients of TLS 1.3 may change their keys, but neither keep a node busy nor fill its memory so."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_core.config import ListenerConfig
from tidelog_node.connections.tls_transport import RECEIVE_BYTES, TlsBuffers, TlsTransport
from tidelog_node.connections.transport import Transport
from tidelog_node.security.tls_context import TlsMaterial, build_tls_context

from tests.node.connections.served_connections import unread_bytes
from tests.support.certificates import Authority
from tests.support.key_updating_client import KeyUpdatingClient
from tests.support.waiting import eventually

FLOOD_UPDATES = 20_000
SECONDS_MAX = 10.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    pem = authority.node_pem().read_text()
    return build_tls_context(ListenerConfig(), TlsMaterial(pem, pem, "", ""))


@pytest.fixture
def ends(
    authority: Authority, context: ssl.SSLContext, tmp_path: Path
) -> Iterator[tuple[KeyUpdatingClient, Transport, socket.socket]]:
    """Return a client, the node's transport, and the socket below it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * RECEIVE_BYTES)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sock.settimeout(SECONDS_MAX)
    client = KeyUpdatingClient(sock, authority.client_context(), tmp_path / "keys")
    transport = TlsTransport(accepted, context, buffers=TlsBuffers(), on_established=lambda _: None)
    shaking = threading.Thread(target=shake_hands, args=(client,))
    shaking.start()
    while not transport.is_established:
        with contextlib.suppress(BlockingIOError):
            transport.recv_into(memoryview(bytearray()))
    shaking.join()
    with sock:
        yield client, transport, accepted
        transport.close()


def shake_hands(client: KeyUpdatingClient) -> None:
    while not client.go_on():
        pass


Ends = tuple[KeyUpdatingClient, Transport, socket.socket]


@pytest.mark.parametrize("are_requests", [False, True])
def test_a_client_may_change_its_key(ends: Ends, are_requests: bool) -> None:
    client, transport, _ = ends
    for number in range(3):
        update = client.key_updates(1, are_requests=are_requests)
        client.socket.sendall(update + client.records(b"request%d" % number))
        assert receive(transport, 8) == b"request%d" % number
        transport.flush()
        assert transport.send(b"answer") == 6
        assert client.receive(6) == b"answer"


def test_one_turn_takes_a_bounded_number_of_new_keys(ends: Ends) -> None:
    client, transport, accepted = ends
    with sending(client, client.key_updates(FLOOD_UPDATES, are_requests=False)):
        eventually(lambda: unread_bytes(accepted) > RECEIVE_BYTES + 10_000)
        before = unread_bytes(accepted)
        with pytest.raises(BlockingIOError):
            transport.recv_into(memoryview(bytearray(100)))
        assert unread_bytes(accepted) >= before - RECEIVE_BYTES


def test_a_client_that_takes_no_answers_to_its_new_keys_is_disconnected(ends: Ends) -> None:
    """Each answer would take memory, as long as the client goes on."""
    client, transport, _ = ends
    with (
        sending(client, client.key_updates(FLOOD_UPDATES, are_requests=True)),
        pytest.raises(ConnectionAbortedError, match="takes no answers"),
    ):
        serve(transport)


def serve(transport: Transport) -> None:
    """Receive and send as a connection does."""
    for _ in range(FLOOD_UPDATES):
        wait_for(transport, selectors.EVENT_READ)
        with contextlib.suppress(BlockingIOError):
            transport.recv_into(memoryview(bytearray(100)))
        transport.flush()


@contextlib.contextmanager
def sending(client: KeyUpdatingClient, data: bytes) -> Iterator[None]:
    """Have a thread send the data until it is sent or the node has closed the connection."""

    def send() -> None:
        with contextlib.suppress(OSError):
            client.socket.sendall(data)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        client.socket.shutdown(socket.SHUT_RDWR)
        thread.join()


def receive(transport: Transport, size_bytes: int) -> bytes:
    buffer = bytearray()
    while len(buffer) < size_bytes:
        wait_for(transport, selectors.EVENT_READ)
        piece = bytearray(size_bytes)
        with contextlib.suppress(BlockingIOError):
            buffer += piece[: transport.recv_into(memoryview(piece))]
    return bytes(buffer)


def wait_for(transport: Transport, event: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(transport.fileno(), event)
        assert selector.select(SECONDS_MAX)
