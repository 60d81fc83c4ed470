"""What every transport keeps to, so that a connection need not know which it has."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.model import ReadableFile
from tidelog_node.connections.node_transport import NodeTransport
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import PlainTransport, Transport
from tidelog_node.security.node_identity import NodeIdentity, generate_identity

from tests.support.holding_transport import HoldingTransport, TlsClient

DATA = bytes(range(256)) * 4096  # 1 MiB: more than a socket takes at once
SECONDS_MAX = 60.0
CLIENT, SERVER = generate_identity(1), generate_identity(2)
RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: on, 0 seconds


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the client's and the node's end of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    client.settimeout(SECONDS_MAX)
    with client, accepted:
        yield client, accepted


class TransportContract:
    """Holds for every ``Transport`` over a socket."""

    make_transport: Callable[[socket.socket], Transport]

    def meet(self, client: socket.socket, transport: Transport) -> socket.socket:
        """Return the client's end once both may send."""
        return client

    @pytest.fixture
    def ends(
        self, sockets: tuple[socket.socket, socket.socket]
    ) -> Iterator[tuple[socket.socket, Transport]]:
        """Return the client's socket and the node's transport."""
        client, accepted = sockets
        transport = type(self).make_transport(accepted)
        yield self.meet(client, transport), transport
        transport.close()

    def test_it_receives_what_the_client_sends(self, ends: tuple[socket.socket, Transport]) -> None:
        client, transport = ends
        client.sendall(DATA[:1000])
        assert receive(transport, 1000, room_bytes=300) == DATA[:1000]

    def test_receiving_blocks_where_nothing_came(
        self, ends: tuple[socket.socket, Transport]
    ) -> None:
        _, transport = ends
        with pytest.raises(BlockingIOError):
            transport.recv_into(memoryview(bytearray(10)))
        assert not transport.has_received

    def test_a_client_that_sends_no_more_is_received_as_no_bytes(
        self, ends: tuple[socket.socket, Transport]
    ) -> None:
        client, transport = ends
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert receive(transport, 4) == b"last"
        wait_for(transport, selectors.EVENT_READ)
        assert transport.recv_into(memoryview(bytearray(10))) == 0
        send_all(transport, lambda sent: transport.send(b"answer"[sent:]), 6)
        assert client.recv(100) == b"answer"

    def test_the_rest_of_a_partial_send_arrives_behind_it(
        self, ends: tuple[socket.socket, Transport]
    ) -> None:
        client, transport = ends
        arrived = send_all(
            transport, lambda sent: transport.send(memoryview(DATA)[sent:]), len(DATA), client
        )
        assert arrived == DATA

    def test_gathered_segments_and_a_part_of_a_file_arrive_in_order(
        self, ends: tuple[socket.socket, Transport], tmp_path: Path
    ) -> None:
        client, transport = ends
        (tmp_path / "log").write_bytes(b"before" + DATA)
        file = ReadableFile(tmp_path / "log")

        def send_heads(sent: int) -> int:
            both = memoryview(b"size" + b"head")[sent:]
            return transport.sendmsg([both[:2], both[2:]], has_more=True)

        def send_file(sent: int) -> int:
            return transport.sendfile(file, 6 + sent, len(DATA) - sent)

        send_all(transport, send_heads, 8)
        arrived = send_all(transport, send_file, len(DATA), client)
        while len(arrived) < 8 + len(DATA):
            arrived += client.recv(1 << 20)
        assert arrived == b"sizehead" + DATA
        assert transport.sendfile(file, 6 + len(DATA), 100) == 0

    def test_sending_blocks_while_the_client_takes_nothing(
        self, ends: tuple[socket.socket, Transport]
    ) -> None:
        client, transport = ends
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < 64 * len(DATA):
                sent += transport.send(DATA)
        assert 0 < sent < 64 * len(DATA)
        # What was sent or held back before is what arrives, and nothing else.
        arrived = 0
        while arrived < sent:
            with contextlib.suppress(BlockingIOError):
                arrived += len(client.recv(1 << 20, socket.MSG_DONTWAIT))
            with contextlib.suppress(BlockingIOError):
                transport.flush()
        assert arrived == sent
        assert not transport.wants_write

    def test_a_connection_that_is_reset_is_an_error(
        self, ends: tuple[socket.socket, Transport]
    ) -> None:
        client, transport = ends
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        client.close()
        wait_for(transport, selectors.EVENT_READ)
        with pytest.raises(ConnectionResetError):
            transport.recv_into(memoryview(bytearray(10)))
        with pytest.raises(BrokenPipeError):
            transport.send(DATA)

    def test_it_is_closed_once(self, ends: tuple[socket.socket, Transport]) -> None:
        client, transport = ends
        transport.close()
        assert client.recv(1) == b""
        descriptor = os.open(os.devnull, os.O_RDONLY)  # has the number that was given back
        transport.close()
        os.close(descriptor)
        assert transport.fileno() == -1
        with pytest.raises(OSError, match="Bad file descriptor"):
            transport.recv_into(memoryview(bytearray(10)))
        with pytest.raises(OSError, match="Bad file descriptor"):
            transport.send(b"x")


class TestPlainTransport(TransportContract):
    """The socket alone."""

    make_transport = PlainTransport


class TestHoldingTransport(TransportContract):
    """The one of these tests, so that what they find with it means something."""

    make_transport = staticmethod(
        lambda sock: HoldingTransport(
            sock, receive_bytes_max=7, held_bytes_max=20_000, send_bytes_max=16_384
        )
    )


def tls_transport(
    sock: socket.socket, on_established: Callable[[Any], None] = lambda _: None
) -> Transport:
    return TlsTransport(
        sock,
        SERVER.server_context([CLIENT.certificate]),
        buffers=TlsBuffers(),
        on_established=on_established,
    )


class TestTlsTransport(TransportContract):
    """Encrypted, between two nodes."""

    make_transport = staticmethod(tls_transport)
    make_tls = staticmethod(tls_transport)

    def meet(self, client: socket.socket, transport: Transport) -> socket.socket:
        return shaken_hands(client, transport)

    def test_what_comes_with_the_handshake_is_received(
        self, sockets: tuple[socket.socket, socket.socket]
    ) -> None:
        client, accepted = sockets
        with contextlib.closing(type(self).make_transport(accepted)) as transport:
            ends = shaken_hands(client, transport, first=b"first")
            assert receive(transport, 5) == b"first"
            send_all(transport, lambda sent: transport.send(b"answer"[sent:]), 6)
            assert ends.recv(100) == b"answer"

    def test_a_stranger_is_refused_before_it_sends_a_byte(
        self, sockets: tuple[socket.socket, socket.socket]
    ) -> None:
        client, accepted = sockets
        with (
            contextlib.closing(type(self).make_transport(accepted)) as transport,
            pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            shaken_hands(client, transport, identity=generate_identity(3))

    def test_a_client_that_is_not_wanted_after_the_handshake_is_refused(
        self, sockets: tuple[socket.socket, socket.socket]
    ) -> None:
        def refuse(tls: ssl.SSLObject | ssl.SSLSocket) -> None:
            assert tls.getpeercert(binary_form=True) == CLIENT.certificate
            raise PermissionError("not wanted")

        client, accepted = sockets
        with (
            contextlib.closing(type(self).make_tls(accepted, refuse)) as transport,
            pytest.raises(PermissionError, match="not wanted"),
        ):
            shaken_hands(client, transport)

    def test_bytes_that_are_no_tls_are_an_error(
        self, sockets: tuple[socket.socket, socket.socket]
    ) -> None:
        client, accepted = sockets
        client.sendall(b"\0\0\0\x10GET / HTTP/1.1\r\n\r\n")
        with contextlib.closing(type(self).make_transport(accepted)) as transport:
            wait_for(transport, selectors.EVENT_READ)
            with pytest.raises(OSError, match=r"WRONG_VERSION_NUMBER|HTTP"):
                transport.recv_into(memoryview(bytearray(100)))


class TestNodeTransport(TransportContract):
    """Of a node that has proved who it is, and wants no encryption either."""

    make_transport = staticmethod(lambda sock: node_transport(sock, may_be_plain=True))

    def meet(self, client: socket.socket, transport: Transport) -> socket.socket:
        prove(client, transport)
        return client

    def test_bytes_behind_the_handshake_are_received(
        self, sockets: tuple[socket.socket, socket.socket]
    ) -> None:
        client, accepted = sockets
        transport = type(self).make_transport(accepted)
        prove(client, transport, first=b"first")
        assert receive(transport, 3, room_bytes=3) == b"fir"
        assert transport.has_received
        assert receive(transport, 2) == b"st"
        assert not transport.has_received

    def test_what_is_sent_is_plain(self, sockets: tuple[socket.socket, socket.socket]) -> None:
        client, accepted = sockets
        transport = type(self).make_transport(accepted)
        prove(client, transport)
        assert transport.send(b"answer") == 6
        assert client.recv(100) == b"answer"


class TestEncryptedNodeTransport(TestTlsTransport):
    """Of a node of which one end wants encryption: all as with TLS alone."""

    make_transport = staticmethod(lambda sock: node_transport(sock, may_be_plain=False))


@pytest.mark.parametrize(("here", "there"), [(True, False), (False, True), (False, False)])
def test_a_connection_stays_encrypted_unless_both_ends_agree(
    here: bool, there: bool, sockets: tuple[socket.socket, socket.socket]
) -> None:
    client, accepted = sockets
    transport = node_transport(accepted, may_be_plain=here)
    context = CLIENT.client_context([SERVER.certificate], may_be_plain=there)
    end = shaken_hands(client, transport, context=context, first=b"request")
    assert receive(transport, 7) == b"request"
    assert transport.send(b"answer") == 6
    assert end.recv(100) == b"answer"


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_encrypted_bytes_of_any_size_arrive_in_order_both_ways(data: st.DataObject) -> None:
    sizes = st.lists(st.integers(1, 100_000), min_size=1, max_size=8)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    client.settimeout(SECONDS_MAX)
    transport = node_transport(accepted, may_be_plain=False)
    with client, contextlib.closing(transport):
        end = shaken_hands(client, transport)
        for size_bytes in data.draw(sizes):
            end.sendall(DATA[:size_bytes])
            room_bytes = data.draw(st.integers(1, 70_000))
            assert receive(transport, size_bytes, room_bytes=room_bytes) == DATA[:size_bytes]
        for size_bytes in data.draw(sizes):
            view = memoryview(DATA)[:size_bytes]

            def send(sent: int, view: memoryview = view) -> int:
                return transport.send(view[sent:])

            assert send_all(transport, send, size_bytes, end) == view


def node_transport(sock: socket.socket, *, may_be_plain: bool) -> NodeTransport:
    context = SERVER.server_context([CLIENT.certificate], may_be_plain=may_be_plain)
    return NodeTransport(
        TlsTransport(sock, context, buffers=TlsBuffers(), on_established=lambda _: None)
    )


def client_after_handshake(
    client: socket.socket, transport: Transport, context: ssl.SSLContext
) -> TlsClient:
    """Return the client's end, whose last message of the handshake is not sent yet."""
    end = TlsClient(client, context)
    while not end.go_on():
        with contextlib.suppress(BlockingIOError):
            transport.recv_into(memoryview(bytearray()))
    return end


def prove(client: socket.socket, transport: Transport, *, first: bytes = b"") -> None:
    """Prove who both are, and come back to plain bytes; ``first`` follows the last message."""
    context = CLIENT.client_context([SERVER.certificate], may_be_plain=True)
    end = client_after_handshake(client, transport, context)
    end.flush(first)
    wait_for(transport, selectors.EVENT_READ)
    if not first:
        with contextlib.suppress(BlockingIOError):
            transport.recv_into(memoryview(bytearray(1)))
        assert end.recv(1) == b""  # It is accepted.


def wait_for(transport: Transport, event: int) -> None:
    """Wait until the socket is readable or writable."""
    with selectors.DefaultSelector() as selector:
        selector.register(transport.fileno(), event)
        assert selector.select(SECONDS_MAX)


def receive(transport: Transport, size_bytes: int, *, room_bytes: int = 1 << 16) -> bytes:
    """Return so many bytes, as a connection would receive them."""
    received = b""
    while len(received) < size_bytes:
        if not transport.has_received:
            wait_for(transport, selectors.EVENT_READ)
        buffer = bytearray(room_bytes)
        with contextlib.suppress(BlockingIOError):
            received += buffer[: transport.recv_into(memoryview(buffer))]
    return received


def send_all(
    transport: Transport,
    send_from: Callable[[int], int],
    size_bytes: int,
    client: socket.socket | None = None,
) -> bytes:
    """Send so many bytes, as a connection would; return what the client receives meanwhile."""
    sent, arrived = 0, b""
    while sent < size_bytes or transport.wants_write or (client and len(arrived) < size_bytes):
        with contextlib.suppress(BlockingIOError):
            if sent < size_bytes:
                sent += send_from(sent)
            elif transport.wants_write:
                transport.flush()
        if client is not None:
            with contextlib.suppress(BlockingIOError):
                arrived += client.recv(1 << 20, socket.MSG_DONTWAIT)
    return arrived


def shaken_hands(
    client: socket.socket,
    transport: Transport,
    *,
    identity: NodeIdentity = CLIENT,
    context: ssl.SSLContext | None = None,
    first: bytes = b"",
) -> Any:
    """Return the client's end after the handshake; ``first`` is sent with its last message."""
    context = context or identity.client_context([SERVER.certificate])
    end = client_after_handshake(client, transport, context)
    end.sendall(first)
    wait_for(transport, selectors.EVENT_READ)
    if not first:
        with contextlib.suppress(BlockingIOError):
            transport.recv_into(memoryview(bytearray(1)))
    return end
