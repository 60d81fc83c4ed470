"""Clients of TLS 1.3 may change their keys, but neither keep a node busy nor fill its memory so."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tidelog_core.config import ListenerConfig
from tidelog_node.connections.kernel_tls_transport import KernelTlsTransport
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.tls_transport import RECEIVE_BYTES, TlsBuffers, TlsTransport
from tidelog_node.connections.transport import Transport
from tidelog_node.security.kernel_tls import allow_kernel_tls
from tidelog_node.security.tls_context import TlsMaterial, build_tls_context

from tests.node.connections.served_connections import unread_bytes
from tests.support.certificates import Authority
from tests.support.key_updating_client import KeyUpdatingClient
from tests.support.waiting import eventually
from tools.kernel_machine import EMULATED

FLOOD_UPDATES = 12_000
# An emulated machine takes longer for a handshake than this one for the whole flood.
WATCH_SECONDS = 1.0 if os.environ.get(EMULATED) else 0.01
SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    pem = authority.node_pem().read_text()
    return build_tls_context(ListenerConfig(), TlsMaterial(pem, pem, "", ""))


Ends = tuple[KeyUpdatingClient, TlsTransport | KernelTlsTransport, int]


def tls(sock: socket.socket, context: ssl.SSLContext) -> TlsTransport:
    return TlsTransport(sock, context, buffers=TlsBuffers(), on_established=lambda _: None)


@pytest.fixture
def ends(authority: Authority, context: ssl.SSLContext, tmp_path: Path) -> Iterator[Ends]:
    """Return a client, the node's transport, and its socket's descriptor."""
    with connected(tls, authority, context, tmp_path) as ends:
        yield ends


@pytest.fixture
def kernel_ends(authority: Authority, context: ssl.SSLContext, tmp_path: Path) -> Iterator[Ends]:
    """The same with kernel TLS, and a watch of little patience."""
    watch = ReadWatch(cpu_seconds_max=WATCH_SECONDS)

    def make(sock: socket.socket, context: ssl.SSLContext) -> KernelTlsTransport:
        allow_kernel_tls(context)
        return KernelTlsTransport(
            sock, context, buffers=TlsBuffers(), watch=watch, on_established=lambda _: None
        )

    with (
        contextlib.closing(watch),
        connected(make, authority, context, tmp_path) as ends,
    ):
        yield ends


@contextlib.contextmanager
def connected(
    make: Callable[[socket.socket, ssl.SSLContext], TlsTransport | KernelTlsTransport],
    authority: Authority,
    context: ssl.SSLContext,
    tmp_path: Path,
) -> Iterator[Ends]:
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
    transport = make(accepted, context)
    shaking = threading.Thread(target=shake_hands, args=(client,))
    shaking.start()
    while not transport.is_established:
        with contextlib.suppress(BlockingIOError):
            transport.recv_into(memoryview(bytearray()))
    shaking.join()
    with sock:
        yield client, transport, transport.fileno()
        transport.close()


def shake_hands(client: KeyUpdatingClient) -> None:
    while not client.go_on():
        pass


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
    client, transport, descriptor = ends
    with sending(client, client.key_updates(FLOOD_UPDATES, are_requests=False)):
        eventually(lambda: unread_bytes(descriptor) > RECEIVE_BYTES + 10_000)
        before = unread_bytes(descriptor)
        with pytest.raises(BlockingIOError):
            transport.recv_into(memoryview(bytearray(100)))
        assert unread_bytes(descriptor) >= before - RECEIVE_BYTES


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


# -- with kernel TLS OpenSSL reads the socket itself --


@pytest.mark.parametrize("are_requests", [False, True])
def test_a_client_may_change_its_key_where_openssl_reads_the_socket(
    kernel_ends: Ends, are_requests: bool
) -> None:
    client, transport, _ = kernel_ends
    client.socket.sendall(
        client.key_updates(1, are_requests=are_requests) + client.records(b"request")
    )
    assert receive(transport, 7) == b"request"
    assert transport.send(b"answer") == 6
    # A kernel that encrypts keeps its key; OpenSSL 3.0 announces no other one before it sends
    # something itself.
    assert client.receive(6) == b"answer"


def test_a_client_that_keeps_openssl_busy_is_disconnected(
    kernel_ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    client, transport, descriptor = kernel_ends
    with sending(client, client.key_updates(2 * FLOOD_UPDATES, are_requests=False)):
        with pytest.raises(ConnectionResetError):
            receive(transport, 1)
        # Nothing is left of it, and its descriptor is still the transport's.
        assert transport.fileno() == descriptor
        with pytest.raises(OSError, match="non-socket"):
            socket.socket(fileno=os.dup(descriptor))
    transport.close()
    eventually(lambda: bool(caplog.records))  # The watch's thread logs after it has cut the read.
    [record] = caplog.records
    assert record.__dict__["reason"] == "the client sends TLS messages without any bytes"
    assert record.__dict__["client"] == "127.0.0.1"


def test_a_read_that_was_cut_short_and_has_not_ended_yet_is_not_cut_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a busy machine the loop's thread comes to that later."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    watch = ReadWatch(cpu_seconds_max=WATCH_SECONDS)
    with closing(theirs), closing(ours), closing(watch):
        watch.begin(ours)
        began = time.thread_time()
        while time.thread_time() < began + 10 * WATCH_SECONDS:
            pass
        eventually(lambda: bool(caplog.records))
        time.sleep(5 * WATCH_SECONDS)
        watch.end()
    assert len(caplog.records) == 1


def test_a_watch_ends_no_read_that_others_follow(kernel_ends: Ends) -> None:
    """Time between reads is none of a read, and neither is that of reads before."""
    client, transport, _ = kernel_ends
    client.socket.sendall(client.records(b"first"))
    assert receive(transport, 5) == b"first"
    began = time.thread_time()
    while time.thread_time() < began + 5 * WATCH_SECONDS:
        with pytest.raises(BlockingIOError):
            transport.recv_into(memoryview(bytearray(100)))
    client.socket.sendall(client.records(b"second"))
    assert receive(transport, 6) == b"second"


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
        with contextlib.suppress(OSError):
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
