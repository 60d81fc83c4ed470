"""Opens all connections from this node to other brokers.

They go to the brokers' listeners for nodes, and each end proves which broker it is
(``NodeIdentity``).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tidelog.wire.connection import Address, Connection
from tidelog.wire.host_addresses import connect, resolve
from tidelog.wire.opening import open_connection_by
from tidelog_core.errors import BrokerNotAvailable
from tidelog_core.metadata.endpoints import NODE, BrokerEndpoint
from tidelog_core.metadata.records import Broker

from tidelog_node.dialing.leader_connection import LeaderConnection
from tidelog_node.dialing.node_proof import NodeProof
from tidelog_node.dialing.pipelined_connection import PipelinedConnection
from tidelog_node.security.node_trust import NodeTrust

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections on behalf of this node's broker."""

    trust: NodeTrust
    listener: str = NODE  # the name of the listener for nodes

    @property
    def broker_id(self) -> int:
        """The broker in whose name connections are opened."""
        return self.trust.identity.broker_id

    async def dial(self, broker: Broker, *, timeout_s: float) -> Connection:
        """Return a connection that negotiates the versions of its requests.

        Raises ``BrokerNotAvailable``, ``ConnectionFailed`` and ``RequestTimedOut``.
        """
        endpoint = self._endpoint(broker)
        return await open_connection_by(
            partial(self._connect, broker),
            Address(endpoint.host, endpoint.port),
            client_id=f"tidelog-node-{self.broker_id}",
            timeout_s=timeout_s,
        )

    async def dial_leader(self, broker: Broker, *, timeout_s: float) -> LeaderConnection:
        """Return a connection for encoded requests, such as followers' fetches.

        Raises ``BrokerNotAvailable``, ``OSError`` and ``TimeoutError``.
        """
        async with asyncio.timeout(timeout_s):
            return await self._connect(broker, LeaderConnection)

    async def dial_pipelined(self, broker: Broker, *, timeout_s: float) -> PipelinedConnection:
        """Return a connection for encoded requests that do not wait for each other.

        Raises ``BrokerNotAvailable``, ``OSError`` and ``TimeoutError``.
        """
        async with asyncio.timeout(timeout_s):
            return await self._connect(broker, PipelinedConnection)

    async def hold(self, broker: Broker, on_open: Callable[[], None], *, timeout_s: float) -> None:
        """Open a connection on which nothing is sent, and return once it is lost.

        ``on_open`` is called once it is open. Raises ``PortRefused`` if nothing listens at the
        broker's address, ``BrokerNotAvailable``, other ``OSError`` and ``TimeoutError``.
        """
        async with asyncio.timeout(timeout_s):
            held = await self._connect(broker, HeldConnection)
        on_open()
        await held.end()

    async def reach(self, broker: Broker, *, timeout_s: float) -> None:
        """Open a connection and close it; any listener counts. Raises as ``hold``.

        The kernel of the other host takes it, however busy its node is.
        """
        endpoint = self._endpoint(broker)
        async with asyncio.timeout(timeout_s):
            sock = await connect(await resolve(endpoint.host, endpoint.port))
        sock.close()

    async def is_there(self, broker: Broker, *, timeout_s: float) -> bool:
        """Return whether the process that registered proves to be at its address.

        The other node need not know this one, which proves its identity before its first request.
        """
        try:
            endpoint, context = self._endpoint(broker), self._context(broker, encrypts=True)
            async with asyncio.timeout(timeout_s):
                transport, _ = await _open(endpoint, asyncio.Protocol, context)
        except (BrokerNotAvailable, OSError, TimeoutError):
            return False
        transport.abort()
        return True

    async def _connect(self, broker: Broker, make: Callable[[], P]) -> P:
        """Connect the protocol to the broker. Raises ``BrokerNotAvailable`` and ``OSError``."""
        endpoint = self._endpoint(broker)
        if not self.trust.encrypts:
            context = self._context(broker, encrypts=False)
            transport, proof = await _open(endpoint, lambda: NodeProof(context))
            try:
                is_plain = await proof.result
            except BaseException:
                transport.abort()
                raise
            if is_plain:
                if transport.is_closing():  # The protocol would never hear of it.
                    raise ConnectionResetError("closed behind the handshake")
                protocol = make()
                transport.set_protocol(protocol)
                protocol.connection_made(transport)
                return protocol
            transport.abort()
        context = self._context(broker, encrypts=True)
        _, protocol = await _open(endpoint, make, context)
        return protocol

    def _context(self, broker: Broker, *, encrypts: bool) -> ssl.SSLContext:
        """Return the context for the broker. Raises ``BrokerNotAvailable`` and ``OSError``."""
        try:
            context = self.trust.client_context(broker, encrypts=encrypts)
        except ImportError as error:
            # The first connection loads it, maybe out of descriptors. The next one tries again.
            raise OSError(f"OpenSSL cannot be loaded: {error}") from error
        if context is None:
            raise BrokerNotAvailable(f"broker {broker.broker_id} has no certificate for nodes")
        return context

    def _endpoint(self, broker: Broker) -> BrokerEndpoint:
        endpoint = broker.endpoint_of(self.listener)
        if endpoint is None:
            raise BrokerNotAvailable(
                f"broker {broker.broker_id} has no listener {self.listener} for nodes:"
                " give every node the same inter.broker.listener.name"
            )
        return endpoint


async def _open(
    endpoint: BrokerEndpoint, make: Callable[[], P], context: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, P]:
    """Connect the protocol to the endpoint. Raises ``PortRefused`` and other ``OSError``."""
    sock = await connect(await resolve(endpoint.host, endpoint.port))
    return await asyncio.get_running_loop().create_connection(
        make, sock=sock, ssl=context, server_hostname=None if context is None else endpoint.host
    )


class HeldConnection(asyncio.Protocol):
    """A connection on which nothing is sent: if it ends, the other process may have ended.

    The kernel closes a process's connections in the moment in which it is killed, and from then on
    its port refuses others. A host that goes down does neither. For one task.
    """

    def __init__(self) -> None:
        self._transport: asyncio.BaseTransport | None = None
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Note the end."""
        self._lost.set()

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        """Close: the other node answers nothing, since nothing was asked."""
        self._close()

    async def end(self) -> None:
        """Return once the connection is lost; closes it when cancelled."""
        try:
            await self._lost.wait()
        finally:
            self._close()

    def _close(self) -> None:
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()
