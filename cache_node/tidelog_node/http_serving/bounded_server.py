"""An HTTP server with limits: the number of connections, and how long each may stay.

aiohttp reads and writes HTTP. Each connection has one timer that ends it. If there are too many
connections, a new one replaces the one that has waited longest without a request, so silent clients
keep nobody out. If all have a request, the new one is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

# The client's mistakes, which are its own concern. Ours are logged by the servers.
_SILENT = logging.Logger("http-protocol")
_SILENT.disabled = True


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one server."""

    connections_max: int
    begin_seconds_max: float  # from the connection's begin until its first request is noted
    keepalive_seconds_max: float  # from its begin, or its last answer, until a request has come
    line_bytes_max: int  # of the request line
    field_bytes_max: int  # of one header
    headers_max: int
    read_buffer_bytes: int


@dataclass(slots=True)
class _Connection:
    transport: asyncio.Transport
    timer: asyncio.TimerHandle
    has_request: bool = False


class BoundedHttpServer(web.Server):
    """Accepts connections within the limits, and ends them. For the tasks of one event loop."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: HttpLimits,
    ) -> None:
        """``handler`` calls ``begin_request``, and ``end_request`` if the connection is kept."""
        super().__init__(
            handler,
            handler_cancellation=True,
            keepalive_timeout=limits.keepalive_seconds_max,
            lingering_time=0,
            max_line_size=limits.line_bytes_max,
            max_field_size=limits.field_bytes_max,
            max_headers=limits.headers_max,
            read_bufsize=limits.read_buffer_bytes,
            auto_decompress=False,
            access_log=None,
            logger=_SILENT,
        )
        self._limits = limits
        self._open: dict[Any, _Connection] = {}  # the one that waits longest comes first

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Accept the connection or refuse it."""
        super().connection_made(handler, transport)
        limits = self._limits
        if len(self._open) >= limits.connections_max and not self._end_longest_waiting():
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(limits.begin_seconds_max, transport.abort)
        self._open[handler] = _Connection(transport, timer)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forget the client."""
        super().connection_lost(handler, exc)
        self._forget(handler)

    def begin_request(self, handler: object, *, seconds_max: float | None = None) -> None:
        """Note that the connection has a request: it is not ended for a new one.

        It is ended after ``seconds_max``; with ``None`` its time since its begin goes on.
        """
        connection = self._open.get(handler)
        if connection is not None:
            connection.has_request = True
            if seconds_max is not None:
                self._restart(handler, connection, seconds_max)

    def end_request(self, handler: object, *, seconds_max: float) -> None:
        """Note that its answer is sent, and the connection waits so long for the next request."""
        connection = self._open.get(handler)
        if connection is not None:
            connection.has_request = False
            self._restart(handler, connection, seconds_max)

    def end_all(self) -> None:
        """End every connection."""
        for handler, connection in tuple(self._open.items()):
            self._forget(handler)
            connection.transport.abort()

    def _restart(self, handler: object, connection: _Connection, seconds: float) -> None:
        connection.timer.cancel()
        loop = asyncio.get_running_loop()
        connection.timer = loop.call_later(seconds, connection.transport.abort)
        self._open[handler] = self._open.pop(handler)

    def _end_longest_waiting(self) -> bool:
        for handler, connection in self._open.items():
            if not connection.has_request:
                self._forget(handler)
                connection.transport.abort()
                return True
        return False

    def _forget(self, handler: object) -> None:
        known = self._open.pop(handler, None)
        if known is not None:
            known.timer.cancel()
