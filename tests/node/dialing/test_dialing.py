"""How a node reaches other brokers."""

from __future__ import annotations

import asyncio
import base64
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from types import ModuleType
from uuid import uuid4

import pytest
from tidelog.errors import ConnectionFailed, RequestTimedOut
from tidelog.wire.host_addresses import PortRefused
from tidelog_core.errors import BrokerNotAvailable
from tidelog_core.metadata.endpoints import NODE, BrokerEndpoint, plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker
from tidelog_node.connections.node_transport import NodeTransport
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import PlainTransport
from tidelog_node.dialing.dialer import Dialer
from tidelog_node.security import node_identity, node_trust
from tidelog_node.security.node_identity import NodeIdentity, generate_identity
from tidelog_node.security.node_trust import NodeTrust

from tests.support.memory_store import MemoryMetadataStore

OWN, PEER = generate_identity(1), generate_identity(2)


@pytest.fixture
def dialer() -> Dialer:
    view = ClusterView(MemoryMetadataStore(latency=0))
    return Dialer(NodeTrust(OWN, view))


def broker_at(port: int, identity: NodeIdentity = PEER) -> Broker:
    return Broker(
        broker_id=2,
        incarnation=uuid4(),
        endpoints=(*plaintext_endpoints("127.0.0.1", 1), BrokerEndpoint(NODE, "127.0.0.1", port)),
        certificate=base64.b64encode(identity.certificate).decode(),
    )


@asynccontextmanager
async def listening(
    identity: NodeIdentity,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    may_be_plain: bool = False,
) -> AsyncIterator[int]:
    """Listen in the name of an identity; give the port. Encryption is never ended."""
    context = identity.server_context([OWN.certificate], may_be_plain=may_be_plain)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hold the connection."""


async def test_a_broker_that_does_not_listen_is_a_connection_that_failed(dialer: Dialer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = broker_at(server.getsockname()[1])
    with pytest.raises(ConnectionFailed):
        await dialer.dial(broker, timeout_s=60)
    with pytest.raises(OSError, match="failed"):
        await dialer.dial_leader(broker, timeout_s=60)
    assert not await dialer.is_there(broker, timeout_s=60)


async def test_a_connection_whose_libraries_cannot_be_loaded_has_failed(
    dialer: Dialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node executes ``ssl`` for its first connection, maybe out of descriptors."""

    class Unloadable(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError("_ssl: too many open files")

    with monkeypatch.context() as patch:
        for module in (node_identity, node_trust):
            patch.setattr(module, "ssl", Unloadable("ssl"))
        with pytest.raises(ConnectionFailed, match="too many open files"):
            await dialer.dial(broker_at(1), timeout_s=60)
        with pytest.raises(OSError, match="too many open files"):
            await dialer.dial_leader(broker_at(1), timeout_s=60)
        assert not await dialer.is_there(broker_at(1), timeout_s=60)
    async with listening(PEER, say_nothing) as port:
        assert await dialer.is_there(broker_at(port), timeout_s=60)
        await asyncio.sleep(0)


async def test_a_broker_that_answers_nothing_is_given_up_in_time(dialer: Dialer) -> None:
    async with listening(PEER, say_nothing) as port:
        with pytest.raises(RequestTimedOut):
            await dialer.dial(broker_at(port), timeout_s=0.3)
        # A leader's connection is asked only by its first request.
        connection = await dialer.dial_leader(broker_at(port), timeout_s=5)
        connection.close()
        assert await dialer.is_there(broker_at(port), timeout_s=60)
        await asyncio.sleep(0)


async def test_one_that_does_not_shake_hands_is_given_up_in_time(dialer: Dialer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = broker_at(server.getsockname()[1])
        with pytest.raises(TimeoutError):
            await dialer.dial_leader(broker, timeout_s=0.1)
        assert not await dialer.is_there(broker, timeout_s=0.1)


async def test_one_that_agrees_to_plain_bytes_and_never_accepts_is_given_up_in_time(
    dialer: Dialer,
) -> None:
    async with listening(PEER, say_nothing, may_be_plain=True) as port:
        with pytest.raises(TimeoutError):
            await dialer.dial_leader(broker_at(port), timeout_s=0.3)
        with pytest.raises(RequestTimedOut):
            await dialer.dial(broker_at(port), timeout_s=0.3)


async def test_one_that_sends_before_it_is_asked_is_refused(dialer: Dialer) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(1 << 20))

    async with listening(PEER, talk, may_be_plain=True) as port:
        with pytest.raises(ConnectionAbortedError, match="not asked for"):
            await dialer.dial_leader(broker_at(port), timeout_s=60)


async def test_another_process_at_the_brokers_address_is_not_taken_for_it(dialer: Dialer) -> None:
    async with listening(generate_identity(2), say_nothing) as port:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await dialer.dial_leader(broker_at(port), timeout_s=60)
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await dialer.dial(broker_at(port), timeout_s=60)
        assert not await dialer.is_there(broker_at(port), timeout_s=60)


async def test_a_held_connection_ends_with_the_other_process_whose_port_then_refuses() -> None:
    view = ClusterView(MemoryMetadataStore(latency=0))
    dialer = Dialer(NodeTrust(OWN, view, encrypts=True))
    writers: list[asyncio.StreamWriter] = []

    is_kept = asyncio.Event()

    async def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        is_kept.set()

    opened = asyncio.Event()
    async with listening(PEER, keep) as port:
        broker = broker_at(port)
        holding = asyncio.create_task(dialer.hold(broker, opened.set, timeout_s=30))
        async with asyncio.timeout(30):
            await opened.wait()
            await is_kept.wait()
        assert not holding.done()
        writers[0].transport.abort()
        async with asyncio.timeout(30):
            await holding
    with pytest.raises(PortRefused):
        await dialer.hold(broker, opened.set, timeout_s=30)


async def test_a_port_refuses_if_no_address_of_its_host_has_a_listener(dialer: Dialer) -> None:
    """``localhost`` may have two; asyncio then raises one error without a number."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    broker = replace(broker_at(port), endpoints=(BrokerEndpoint(NODE, "localhost", port),))
    with pytest.raises(PortRefused):
        await dialer.hold(broker, lambda: None, timeout_s=30)


async def test_a_port_refuses_if_another_address_of_its_host_leads_nowhere(
    dialer: Dialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name often has an IPv6 address where the network has no route for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    broker = replace(broker_at(port), endpoints=(BrokerEndpoint(NODE, "broker-2.example", port),))
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *args: object, **options: object) -> object:
        if host != "broker-2.example":
            return real(host, *args, **options)  # type: ignore[call-overload]
        if options.get("flags") == socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        kind = socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
        return [(socket.AF_INET, *kind, (at, port)) for at in ("255.255.255.255", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(PortRefused):
        await dialer.hold(broker, lambda: None, timeout_s=30)


async def test_a_refusal_by_the_other_node_itself_is_none_of_its_port(dialer: Dialer) -> None:
    """It has not read this node's registration yet, for example."""

    async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    async with server:
        with pytest.raises(OSError, match=r".") as found:
            await dialer.hold(
                broker_at(server.sockets[0].getsockname()[1]), lambda: None, timeout_s=30
            )
        assert not isinstance(found.value, PortRefused)


async def test_a_broker_is_reached_however_busy_its_node_is(dialer: Dialer) -> None:
    """The kernel takes the connection, and nobody accepts it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = broker_at(server.getsockname()[1])
        await dialer.reach(broker, timeout_s=30)
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(30)
            assert accepted.recv(1) == b""  # It was closed again.
    with pytest.raises(PortRefused):
        await dialer.reach(broker, timeout_s=30)


async def test_a_process_that_does_not_shake_hands_refuses_nothing(dialer: Dialer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = broker_at(server.getsockname()[1])
        with pytest.raises(TimeoutError):
            await dialer.hold(broker, lambda: None, timeout_s=0.1)
    async with listening(generate_identity(2), say_nothing) as port:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED") as found:
            await dialer.hold(broker_at(port), lambda: None, timeout_s=30)
        assert not isinstance(found.value, PortRefused)


async def test_a_broker_without_an_identity_is_not_dialed(dialer: Dialer) -> None:
    plain = Broker(broker_id=2, incarnation=uuid4(), endpoints=plaintext_endpoints("127.0.0.1", 1))
    with pytest.raises(BrokerNotAvailable, match="broker 2 has no listener NODE for nodes"):
        await dialer.dial(plain, timeout_s=60)
    assert not await dialer.is_there(plain, timeout_s=60)


async def test_a_node_that_closes_behind_the_handshake_is_noticed_at_once() -> None:
    dialer = Dialer(NodeTrust(OWN, ClusterView(MemoryMetadataStore(latency=0))))
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as executor:
        broker = broker_at(server.getsockname()[1])
        for _ in range(20):
            closing = loop.run_in_executor(executor, accept_and_close, server)
            with pytest.raises(OSError, match=r"closed|reset"):
                await ask(dialer, broker)
            await closing


async def ask(dialer: Dialer, broker: Broker) -> None:
    connection = await dialer.dial_leader(broker, timeout_s=60)
    await connection.exchange(b"request", timeout_s=60)


def accept_and_close(server: socket.socket) -> None:
    """Accept a node, make the handshake, go on in plain bytes and close."""
    accepted, _ = server.accept()
    accepted.setblocking(False)
    transport = NodeTransport(
        TlsTransport(
            accepted,
            PEER.server_context([OWN.certificate], may_be_plain=True),
            buffers=TlsBuffers(),
            on_established=lambda _: None,
        )
    )
    while True:
        select.select([accepted], (), (), 5)
        try:
            transport.recv_into(memoryview(bytearray(1)))
        except BlockingIOError:
            if not isinstance(transport._transport, PlainTransport):
                continue
        break
    transport.close()
