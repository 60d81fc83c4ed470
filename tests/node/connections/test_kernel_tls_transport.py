"""Kernel TLS: what leaves a node is encrypted, by the kernel or, where it has no TLS, by OpenSSL.

``make test-ktls`` runs these tests in a virtual machine whose kernel has TLS.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.model import ReadableFile
from tidelog_node.connections.kernel_tls_transport import KernelTlsTransport
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.ssl_socket_senders import CHUNK_BYTES, KernelSender
from tidelog_node.connections.tls_transport import TlsBuffers
from tidelog_node.connections.transport import Transport
from tidelog_node.security.kernel_tls import (
    allow_kernel_tls,
    kernel_encrypts,
    obstacle_to_kernel_tls,
)

from tests.node.connections import test_transport
from tests.node.connections.test_transport import (
    CLIENT,
    DATA,
    SECONDS_MAX,
    SERVER,
    client_after_handshake,
    receive,
    send_all,
    shaken_hands,
)

SECRET = b"the clear text of a record " * 100
SEEDS = range(3)
GCM_128, GCM_256 = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
CHACHA, CBC = "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA256"
TLS_1_3 = ""  # its suite
SUITES = (TLS_1_3, GCM_128, GCM_256, CHACHA, CBC)
HAS_KERNEL_TLS = not obstacle_to_kernel_tls()

Ends = tuple[Any, KernelTlsTransport]


@functools.cache
def watch() -> ReadWatch:
    return ReadWatch()


def limited(context: ssl.SSLContext, suite: str) -> ssl.SSLContext:
    """Allow only this suite of TLS 1.2, or only TLS 1.3."""
    if suite != TLS_1_3:
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{suite}:@SECLEVEL=0" if suite == CBC else suite)
    return context


def kernel_tls_transport(
    sock: socket.socket,
    on_established: Callable[[Any], None] = lambda _: None,
    *,
    suite: str = TLS_1_3,
    **options: Any,
) -> KernelTlsTransport:
    context = limited(SERVER.server_context([CLIENT.certificate]), suite)
    allow_kernel_tls(context)
    return KernelTlsTransport(
        sock,
        context,
        buffers=TlsBuffers(),
        watch=watch(),
        on_established=on_established,
        **options,
    )


def met(client: socket.socket, transport: Transport, suite: str) -> Any:
    """Return the client's end after the handshake."""
    if suite == TLS_1_3:
        return shaken_hands(client, transport)
    # The last message of the handshake is the server's, with TLS 1.2.
    return client_after_handshake(client, transport, limited(client_context(), suite))


def client_context() -> ssl.SSLContext:
    return CLIENT.client_context([SERVER.certificate])


sockets = test_transport.sockets


class TestKernelTlsTransport(test_transport.TestTlsTransport):
    """Where the kernel has TLS, it encrypts; elsewhere OpenSSL does, on the socket."""

    make_transport = staticmethod(kernel_tls_transport)
    make_tls = staticmethod(kernel_tls_transport)


class TestKernelTlsTransportOfTls12(test_transport.TransportContract):
    """The same with TLS 1.2, in which the kernel decrypts too."""

    make_transport = staticmethod(functools.partial(kernel_tls_transport, suite=GCM_256))

    def meet(self, client: socket.socket, transport: Transport) -> Any:
        return met(client, transport, GCM_256)


@pytest.fixture(params=SUITES, ids=lambda suite: suite or "TLS 1.3")
def suite(request: pytest.FixtureRequest) -> str:
    """Return the suite of TLS 1.2, or ``TLS_1_3``."""
    name: str = request.param
    return name


@pytest.fixture
def ends(sockets: tuple[socket.socket, socket.socket], suite: str) -> Iterator[Ends]:
    client, accepted = sockets
    transport = kernel_tls_transport(accepted, suite=suite)
    yield met(client, transport, suite), transport
    transport.close()


@pytest.fixture
def secret_file(tmp_path: Path) -> ReadableFile:
    (tmp_path / "log").write_bytes(SECRET)
    return ReadableFile(tmp_path / "log")


# -- the attack: who listens on the network must not read a record --


@pytest.mark.parametrize("way", ["send", "sendmsg", "sendfile"])
def test_nothing_leaves_in_the_clear(
    ends: Ends,
    sockets: tuple[socket.socket, socket.socket],
    way: str,
    secret_file: ReadableFile,
) -> None:
    _, transport = ends
    sent = {
        "send": lambda: transport.send(SECRET),
        "sendmsg": lambda: transport.sendmsg([SECRET[:100], SECRET[100:]], has_more=False),
        "sendfile": lambda: transport.sendfile(secret_file, 0, len(SECRET)),
    }[way]()
    assert sent == len(SECRET)
    on_the_wire = received_raw(sockets[0], len(SECRET))
    assert SECRET[:16] not in on_the_wire


def test_the_attack_finds_a_file_that_bypasses_the_transport(
    ends: Ends, sockets: tuple[socket.socket, socket.socket], secret_file: ReadableFile
) -> None:
    """Without the kernel's key, ``sendfile`` on the socket sends the file as it is."""
    _, transport = ends
    if transport.is_sent_by_kernel:
        pytest.skip("the kernel encrypts")
    os.sendfile(transport.fileno(), secret_file.fileno(), 0, len(SECRET))
    assert received_raw(sockets[0], len(SECRET)) == SECRET


def test_the_kernels_sender_refuses_a_socket_that_the_kernel_does_not_encrypt(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    context = SERVER.server_context([CLIENT.certificate])
    with context.wrap_socket(
        sockets[1], server_side=True, do_handshake_on_connect=False
    ) as before_the_handshake:
        assert not kernel_encrypts(before_the_handshake)
        with pytest.raises(PermissionError):
            KernelSender(before_the_handshake)


def test_the_kernel_encrypts_if_it_has_the_suite(ends: Ends, suite: str) -> None:
    _, transport = ends
    assert transport.is_sent_by_kernel == (HAS_KERNEL_TLS and suite != CBC)


# -- right bytes --


@pytest.mark.parametrize("seed", SEEDS)
def test_mixed_sends_arrive_in_order_at_a_slow_reader(
    ends: Ends, seed: int, tmp_path: Path
) -> None:
    client, transport = ends
    chance = random.Random(seed)
    stored = chance.randbytes(700_000)
    (tmp_path / "log").write_bytes(stored)
    file = ReadableFile(tmp_path / "log")
    expected, arrived = bytearray(), bytearray()
    for left in reversed(range(25)):
        has_more = left > 0 and chance.random() < 0.5
        size_bytes = chance.choice((1, 8, 300, 20_000, 65_536, 65_537, 300_000))
        start = chance.randrange(len(stored) - size_bytes)
        data = stored[start : start + size_bytes]
        expected += data
        way = chance.choice(("send", "sendmsg", "sendfile"))
        sent = 0
        while sent < size_bytes:
            with contextlib.suppress(BlockingIOError):
                if way == "send":
                    sent += transport.send(memoryview(data)[sent:])
                elif way == "sendmsg":
                    half = (size_bytes + sent) // 2
                    parts = [memoryview(data)[sent:half], memoryview(data)[half:]]
                    sent += transport.sendmsg(parts, has_more=has_more)
                else:
                    sent += transport.sendfile(file, start + sent, size_bytes - sent)
            arrived += taken(client, chance.choice((0, 1, 5_000)))
    while len(arrived) < len(expected):
        transport.flush()
        arrived += taken(client, 10_000)
    assert arrived == expected
    assert not transport.wants_write


def test_a_shorter_send_after_a_full_socket_keeps_the_connection(ends: Ends) -> None:
    """OpenSSL wants the very bytes again that it could not send; a connection may bring others."""
    client, transport = ends
    sent = bytearray()
    for data in (DATA[: CHUNK_BYTES + 1], b"x"):
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += data[: transport.send(data)]
    arrived = bytearray()
    while len(arrived) < len(sent):
        arrived += taken(client, 65_536)
        transport.flush()
    send_all(transport, lambda count: transport.send(b"y"[count:]), 1)
    assert arrived == sent
    assert client.recv(10) == b"y"


def test_requests_arrive_in_pieces_of_any_size(ends: Ends) -> None:
    client, transport = ends
    chance = random.Random(1)
    for _ in range(20):
        size_bytes = chance.choice((1, 5, 16_384, 16_385, 50_000))
        client.sendall(DATA[:size_bytes])
        room_bytes = chance.choice((size_bytes + 1, 1_000, 16_384))
        assert receive(transport, size_bytes, room_bytes=room_bytes) == DATA[:size_bytes]
        assert not transport.has_received


# -- the end of a key --


@pytest.mark.parametrize("way", ["sent", "received"])
def test_a_spent_key_is_reported_before_a_client_may_change_its_own(
    sockets: tuple[socket.socket, socket.socket], suite: str, way: str
) -> None:
    spent: list[bool] = []
    client, accepted = sockets
    transport = kernel_tls_transport(
        accepted, suite=suite, spent_bytes=1000, on_spent=lambda: spent.append(True)
    )
    end = met(client, transport, suite)
    if way == "sent":
        assert transport.send(DATA[:1000]) == 1000
    else:
        end.sendall(DATA[:999])
        receive(transport, 999)
        assert not spent
    end.sendall(b"!")
    receive(transport, 1)
    assert bool(spent) == (transport.is_sent_by_kernel and suite == TLS_1_3)
    transport.close()


def taken(client: Any, size_bytes: int) -> bytes:
    """Return what the client has received, so many bytes at most; it does not wait."""
    data = b""
    client._socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while len(data) < size_bytes:
            data += client.recv(size_bytes - len(data))
    client._socket.settimeout(SECONDS_MAX)
    return data


def received_raw(client: socket.socket, size_bytes: int) -> bytes:
    """Return the bytes of the network, so many at least."""
    client.settimeout(SECONDS_MAX)
    data = b""
    while len(data) < size_bytes:
        data += client.recv(65_536)
    return data
