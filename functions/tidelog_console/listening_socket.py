"""The console's socket: limits of the number of connections, and of their silence.

At the limit a new connection replaces the one that has waited longest for its client: for a
handshake, for a request or for the rest of one. A connection whose request is being answered stays.
So clients that open connections and send little keep nobody out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web

CONNECTIONS_MAX = 256
HANDSHAKE_SECONDS_MAX = 10.0
SILENT_SECONDS_MAX = 10.0  # until the first request
SWEEP_SECONDS = 2.0
RETRY_SECONDS = 1.0  # after the process has run out of descriptors
BACKLOG = 128
CLOSING_TURNS_MAX = 10  # of the loop, until one connection is gone and others are made


@dataclass(slots=True)
class _Connection:
    """A connection that is made."""

    since: float  # the loop's time when it began to wait for its client
    has_spoken: bool = False  # one request at least
    request: web.BaseRequest | None = None  # that is being answered

    @property
    def waits(self) -> bool:
        """Whether its client is to send something before anything happens."""
        return self.request is None or not self.request.content.is_eof()


class ListeningSocket:
    """Listens for one runner, which has been set up."""

    def __init__(self, runner: web.AppRunner) -> None:
        assert runner.server is not None
        self._server = runner.server
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # One for each connection that is not made yet, and when it began. The oldest first.
        self._beginning: dict[asyncio.Task[None], float] = {}
        self._connections: dict[int, _Connection] = {}  # by id of the protocol

    def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen, and return the port. Raises ``OSError`` if it is in use."""
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._accept(self._socket, tls)),
            loop.create_task(self._sweep()),
        ]
        return int(self._socket.getsockname()[1])

    def begin_request(self, request: web.BaseRequest) -> None:
        """Note that a connection has a request."""
        connection = self._connection(request.protocol)
        connection.has_spoken, connection.request = True, request

    def end_request(self, request: web.BaseRequest) -> None:
        """Note that its answer is made, and the connection waits for the next."""
        connection = self._connection(request.protocol)
        connection.request, connection.since = None, _now()

    async def close(self) -> None:
        """Listen no more."""
        for task in (*self._tasks, *self._beginning):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._beginning, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections forever; close those that find no room."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not await self._has_room():
                connection.close()
                continue
            task = loop.create_task(self._begin(connection, tls))
            self._beginning[task] = _now()
            task.add_done_callback(self._beginning.pop)

    def _open(self) -> dict[web.RequestHandler, asyncio.Transport]:
        """Return the connections; the server knows them for a while after their end."""
        return {
            one: one.transport
            for one in self._server.connections
            if isinstance(one.transport, asyncio.Transport) and not one.transport.is_closing()
        }

    def _is_full(self) -> bool:
        return len(self._open()) + len(self._beginning) >= CONNECTIONS_MAX

    async def _has_room(self) -> bool:
        """Return whether there is room for one more; make some if need be."""
        if not self._is_full():
            return True
        self._end_longest_waiting()
        for _ in range(CLOSING_TURNS_MAX):
            await asyncio.sleep(0)
            if not self._is_full():
                return True
        return False

    def _end_longest_waiting(self) -> None:
        oldest = next(iter(self._beginning.items()), None)
        waiting = [
            (connection.since, transport)
            for protocol, transport in self._open().items()
            if (connection := self._connection(protocol)).waits
        ]
        since, transport = min(waiting, key=lambda one: one[0], default=(_now(), None))
        if oldest is not None and oldest[1] <= since:
            oldest[0].cancel()
        elif transport is not None:
            transport.abort()

    async def _begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Make the connection one of the server's, after its handshake if there is one."""
        timeout = None if tls is None else HANDSHAKE_SECONDS_MAX
        with suppress(OSError):  # The client is gone, or speaks no TLS.
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._server, connection, ssl=tls, ssl_handshake_timeout=timeout
            )
            self._connections[id(protocol)] = _Connection(_now())

    def _connection(self, protocol: object) -> _Connection:
        return self._connections.setdefault(id(protocol), _Connection(_now()))

    async def _sweep(self) -> None:
        """Close connections that have sent no request for too long, forever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            open_now = {id(one): one for one in self._server.connections}
            self._connections = {
                number: one for number, one in self._connections.items() if number in open_now
            }
            latest = _now() - SILENT_SECONDS_MAX
            for protocol in open_now.values():
                connection = self._connection(protocol)
                if not connection.has_spoken and connection.since <= latest:
                    protocol.force_close()


def _now() -> float:
    return asyncio.get_running_loop().time()
