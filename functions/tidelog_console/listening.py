"""The console's socket: how many connections there may be, and how long one may say nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from aiohttp import web

CONNECTIONS_MAX = 256
HANDSHAKE_SECONDS_MAX = 10.0
SILENT_SECONDS_MAX = 10.0  # until the first request
SWEEP_SECONDS = 2.0
RETRY_SECONDS = 1.0  # after the process has run out of descriptors
BACKLOG = 128


class Listening:
    """Listens for one runner, which has been set up."""

    def __init__(self, runner: web.AppRunner) -> None:
        assert runner.server is not None
        self._server = runner.server
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._beginning: set[asyncio.Task[None]] = set()  # one a connection that is not made yet
        # Connections without a request so far, by id: the time they were first seen.
        self._silent: dict[int, float] = {}
        self._spoken: set[int] = set()

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

    def note_request(self, request: web.BaseRequest) -> None:
        """Note that the connection of the request is not silent."""
        self._spoken.add(id(request.protocol))

    async def close(self) -> None:
        """Listen no more."""
        for task in (*self._tasks, *self._beginning):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._beginning, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections forever; close those that are too many."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if len(self._server.connections) + len(self._beginning) >= CONNECTIONS_MAX:
                connection.close()
                continue
            task = loop.create_task(self._begin(connection, tls))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Make the connection one of the server's, after its handshake if there is one."""
        timeout = None if tls is None else HANDSHAKE_SECONDS_MAX
        with suppress(OSError):  # The client is gone, or speaks no TLS.
            await asyncio.get_running_loop().connect_accepted_socket(
                self._server, connection, ssl=tls, ssl_handshake_timeout=timeout
            )

    async def _sweep(self) -> None:
        """Close connections that have sent no request for too long, forever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            open_now = {id(one): one for one in self._server.connections}
            self._spoken &= open_now.keys()
            now = loop.time()
            self._silent = {
                number: self._silent.get(number, now) for number in open_now.keys() - self._spoken
            }
            for number, since in self._silent.items():
                if now - since >= SILENT_SECONDS_MAX:
                    open_now[number].force_close()
