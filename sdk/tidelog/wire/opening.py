"""Opens connections to nodes.

A node has answered ApiVersions by the time that its connection counts as open. One address of a
host may take connections on which nothing is ever answered: the next address is tried beside it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as ssl_module
from collections.abc import Awaitable, Callable
from functools import partial

from tidelog.errors import ConnectionFailed, RequestTimedOut, TidelogError
from tidelog.wire.connection import Address, Connection
from tidelog.wire.frame_buffers import FrameBuffers
from tidelog.wire.host_addresses import Host, HostAddress, connect
from tidelog.wire.requests import API_VERSIONS
from tidelog.wire.staggered import AllFailed, first_success
from tidelog.wire.tls_refusals import tls_refusal

ANSWER_SECONDS = 1.0  # that an address has to answer before the next one is tried beside it

Connect = Callable[[Callable[[], Connection]], Awaitable[object]]


async def open_connection(
    address: Address,
    *,
    client_id: str,
    timeout_s: float,
    ssl: ssl_module.SSLContext | None = None,
    host: Host | None = None,
    buffers: FrameBuffers | None = None,
) -> Connection:
    """Open a connection and negotiate the versions, all within ``timeout_s``.

    ``host`` knows earlier connections to the address. ``buffers`` are those of the client; without
    them it has its own.

    Raises ``ConnectionFailed`` if the node cannot be reached, ``RequestTimedOut`` if it
    does not answer in time, and ``AuthenticationFailed`` if the node or the client refuses the
    certificate of the other.
    """
    new = partial(
        Connection, address, client_id=client_id, has_tls=ssl is not None, buffers=buffers
    )
    opening = _Opening(address, new, ssl, host or Host(*address), timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            return await opening.first()
    except TimeoutError:
        lacking = f"answer {API_VERSIONS.name}" if opening.is_connected else "accept"
        raise RequestTimedOut(f"{address} did not {lacking} within {timeout_s:g} s") from None


async def open_connection_by(
    connect: Connect, address: Address, *, client_id: str, timeout_s: float
) -> Connection:
    """As ``open_connection``; ``connect`` connects the protocol that it is given the maker of."""
    connection = Connection(address, client_id=client_id)
    try:
        async with asyncio.timeout(timeout_s):
            await connect(lambda: connection)
    except TimeoutError:
        raise RequestTimedOut(f"{address} did not accept within {timeout_s:g} s") from None
    except (OSError, ValueError, OverflowError) as problem:
        raise _failed(address, problem) from problem
    await _negotiated(connection, timeout_s)
    return connection


class _Opening:
    """The attempts to open one connection."""

    def __init__(
        self,
        address: Address,
        new: Callable[[], Connection],
        ssl: ssl_module.SSLContext | None,
        host: Host,
        timeout_s: float,
    ) -> None:
        self._address = address
        self._new = new
        self._ssl = ssl
        self._host = host
        self._timeout_s = timeout_s
        self._untried: list[HostAddress] = []  # addresses that have taken no connection yet
        self._error: TidelogError = ConnectionFailed(f"cannot connect to {address}")
        self.is_connected = False  # Some address has taken a connection.

    async def first(self) -> Connection:
        """Return the connection on which a node answers first. Raises as ``open_connection``."""
        try:
            self._untried = await self._host.addresses()
        except (OSError, ValueError, OverflowError) as problem:
            raise _failed(self._address, problem) from problem
        if len(self._untried) <= 1:
            return await self._attempt()
        try:
            return await first_success(
                [self._attempt] * len(self._untried),
                next_after_s=ANSWER_SECONDS,
                discard=Connection.abort,
            )
        except AllFailed as failed:
            errors = failed.errors
        raise min(errors, key=lambda error: isinstance(error, TidelogError) and error.retriable)

    async def _attempt(self) -> Connection:
        """Return a connection to one of the addresses that are left."""
        if not self._untried:
            raise self._error
        connection = self._new()
        sock = None
        try:
            sock = await connect(self._untried, believes_refusals=False)
            peer = self._note_connected(sock)
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._ssl,
                server_hostname=None if self._ssl is None else self._address.host,
            )
        # Metadata may name hosts and ports that cannot be: a label of 64 characters, port 70000.
        except (OSError, ValueError, OverflowError) as problem:
            if sock is None:
                self._untried.clear()  # None of them takes a connection.
            refusal = None if self._ssl is None else tls_refusal(problem, self._address)
            self._error = refusal or _failed(self._address, problem)
            raise self._error from problem
        await _negotiated(connection, self._timeout_s)
        self._host.note_answered(peer)
        return connection

    def _note_connected(self, sock: socket.socket) -> object:
        self.is_connected = True
        try:
            peer: object = sock.getpeername()
        except OSError:  # It is closed again already, which its reader will see.
            return None
        self._host.note_connected(peer)
        self._untried = [one for one in self._untried if one.address != peer]
        return peer


def _failed(address: Address, problem: Exception) -> ConnectionFailed:
    return ConnectionFailed(f"cannot connect to {address}: {problem}")


async def _negotiated(connection: Connection, timeout_s: float) -> None:
    try:
        await connection.negotiate(timeout_s=timeout_s)
    except BaseException:
        connection.abort()
        raise
