"""A login over transports that hold bytes back, and the connection that takes over from it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_node.connections.kernel_tls_transport import KernelTlsTransport
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import Transport, TransportFactory
from tidelog_node.requests.session import Session
from tidelog_node.security.kernel_tls import allow_kernel_tls
from tidelog_node.security.node_identity import generate_identity

from tests.node.authentication.sasl_server import (
    AUTHENTICATE,
    HANDSHAKE,
    HOT,
    PASSWORD,
    USER,
    Client,
    sasl_server,
)
from tests.support.holding_transport import HoldingTransport

SEEDS = range(5)
HOT_REQUESTS = 5


async def log_in_and_ask(client: Client) -> None:
    """Log in, with requests behind the last token that were sent together with it."""
    await client.call(HANDSHAKE, 1, mechanism="PLAIN")
    client.send_request(AUTHENTICATE, 2, auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
    last = client.correlation_id
    for _ in range(HOT_REQUESTS):
        client.send_frame(client.header(HOT, 2))
    client.correlation_id = last
    assert (await client.response(AUTHENTICATE, 2)).error_code == ErrorCode.none
    for _ in range(HOT_REQUESTS):
        assert await client.receive() is not None


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_login_goes_through_a_transport_that_hands_out_few_bytes(seed: int) -> None:
    def make(sock: socket.socket, _: Session) -> Transport:
        return HoldingTransport(sock, chance=random.Random(seed), receive_bytes_max=3)

    async with sasl_server(make_transport=make) as served:
        client = await served.client()
        await log_in_and_ask(client)
        assert len(served.hot_sessions) == HOT_REQUESTS
        refused = await served.client()
        answer = await refused.call(HANDSHAKE, 1, mechanism="UNKNOWN")
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism


def tls_ends(watch: ReadWatch | None = None) -> tuple[TransportFactory, ssl.SSLContext]:
    """Return the node's end of TLS, kernel TLS with a ``watch``, and a client's context."""
    node, other = generate_identity(1), generate_identity(2)
    server_context = node.server_context([other.certificate])
    buffers = TlsBuffers()

    def make(sock: socket.socket, _: Session) -> Transport:
        if watch is not None:
            allow_kernel_tls(server_context)
            return KernelTlsTransport(
                sock,
                server_context,
                buffers=buffers,
                watch=watch,
                on_established=lambda _: None,
            )
        return TlsTransport(sock, server_context, buffers=buffers, on_established=lambda _: None)

    return make, other.client_context([node.certificate])


async def connect_by_tls(port: int, context: ssl.SSLContext) -> Client:
    return Client(
        *await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="")
    )


async def test_a_login_over_tls_is_taken_over_with_what_was_decrypted_already() -> None:
    make, context = tls_ends()
    async with sasl_server(make_transport=make) as served:
        client = await connect_by_tls(served.port, context)
        await log_in_and_ask(client)
        assert len(served.hot_sessions) == HOT_REQUESTS
        client.close()
        await client.writer.wait_closed()


async def test_a_login_over_kernel_tls_is_taken_over_with_what_was_decrypted_already() -> None:
    with contextlib.closing(ReadWatch()) as watch:
        make, context = tls_ends(watch)
        async with sasl_server(make_transport=make) as served:
            client = await connect_by_tls(served.port, context)
            await log_in_and_ask(client)
            assert len(served.hot_sessions) == HOT_REQUESTS
            client.close()
            await client.writer.wait_closed()


async def test_a_refusal_over_tls_reaches_the_client() -> None:
    make, context = tls_ends()
    async with sasl_server(make_transport=make) as served:
        client = await connect_by_tls(served.port, context)
        answer = await client.log_in_plain("wrong")
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert await client.is_closed()
        client.close()


async def test_a_handshake_of_tls_counts_in_the_time_of_a_login() -> None:
    make, _ = tls_ends()
    async with sasl_server(make_transport=make, seconds_max=0.2) as served:
        client = await served.client()
        client.send(b"\x16\x03\x01")
        assert await client.is_closed()
        assert "no login within" in served.logins.refusals[0][0]
