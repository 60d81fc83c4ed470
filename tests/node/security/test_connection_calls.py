"""What the node asks of the system for a client that connects with TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from tidelog_core.config import ListenerConfig
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.security.tls_context import TlsMaterial, build_tls_context

from tests.support.certificates import Authority


class CountingSocket(socket.socket):
    """Counts the receives."""

    receive_count = 0

    def recv_into(self, *arguments: Any, **named: Any) -> int:
        self.receive_count += 1
        return super().recv_into(*arguments, **named)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, CountingSocket]]:
    """Return both ends of a connection, the client's first."""
    client, other = socket.socketpair()
    accepted = CountingSocket(fileno=other.detach())
    accepted.setblocking(False)
    with client, accepted:
        yield client, accepted


@pytest.mark.parametrize(
    "version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"]
)
@pytest.mark.parametrize("is_together", [False, True], ids=["request later", "request at once"])
def test_each_message_of_a_client_is_received_by_one_call(
    authority: Authority,
    ends: tuple[socket.socket, CountingSocket],
    version: ssl.TLSVersion,
    is_together: bool,
) -> None:
    """The end of the client's bytes is not looked for where an event of the socket shows it."""
    sock, accepted = ends
    pem = authority.node_pem().read_text()
    trusted = authority.trusted.read_text()
    config = ListenerConfig(ssl_client_auth="required")
    transport = TlsTransport(
        accepted,
        build_tls_context(config, TlsMaterial(pem, pem, "", trusted)),
        buffers=TlsBuffers(),
        on_established=lambda _: None,
    )
    context = authority.client_context(authority.client_pem("client"))
    context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    room, sent_count = memoryview(bytearray(100)), 0

    def take(*, is_request: bool) -> None:
        nonlocal sent_count
        sock.sendall(outgoing.read())
        sent_count += 1
        if is_request:
            assert bytes(room[: transport.recv_into(room)]) == b"request"
        else:
            with pytest.raises(BlockingIOError):
                transport.recv_into(room)
        assert not transport.has_received
        assert accepted.receive_count == sent_count

    is_done = False
    while not is_done:
        try:
            client.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            take(is_request=False)
            incoming.write(sock.recv(65_536))
    if outgoing.pending and not is_together:
        take(is_request=False)
    client.write(b"request")
    take(is_request=True)
