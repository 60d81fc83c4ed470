"""A small HTTP server for probes and scrapes, bounded in every direction.

Theory of operation. aiohttp reads and writes HTTP; ``BoundedHttpServer`` decides who may stay. A
connection carries one request and is closed. It ends without an answer if its request is not
complete within ``REQUEST_SECONDS_MAX``, and in any case after ``CONNECTION_SECONDS_MAX``, so a
client that reads slowly holds its answer no longer. If there are ``CONNECTIONS_MAX`` connections, a
new one replaces the oldest that has not sent its request. So a thousand silent sockets do not keep
a probe out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from tidelog_node.http_serving.bounded_server import BoundedHttpServer, HttpLimits
from tidelog_node.http_serving.known_hosts import ONLY_LOCALHOST, REFUSED_STATUS, KnownHosts
from tidelog_node.http_serving.listener import HttpListener
from tidelog_node.tracing.tracer import Tracer

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
REQUEST_SECONDS_MAX = 5.0
CONNECTION_SECONDS_MAX = 20.0
LINE_BYTES_MAX = 2_048  # of the request line
FIELD_BYTES_MAX = 4_096  # of one header
HEADERS_MAX = 64
BODY_BUFFER_BYTES = 4_096  # requests have no body; one that comes is not read further
TEXT = "text/plain; charset=utf-8"
TRACE_HEADER = "traceparent"  # of W3C's Trace Context
_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Page:
    """An answer without its HTTP headers."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


MakePage = Callable[[], Awaitable[Page]]


class HttpServer:
    """Serves pages by their path. For the tasks of one event loop."""

    def __init__(
        self,
        pages: Mapping[str, MakePage],
        tracer: Tracer | None = None,
        *,
        hosts: KnownHosts = ONLY_LOCALHOST,
    ) -> None:
        """A request that names a trace is a part of it; others are not traced."""
        self._pages = pages
        self._tracer = tracer
        self._hosts = hosts
        limits = HttpLimits(
            connections_max=CONNECTIONS_MAX,
            begin_seconds_max=CONNECTION_SECONDS_MAX,
            keepalive_seconds_max=REQUEST_SECONDS_MAX,
            line_bytes_max=LINE_BYTES_MAX,
            field_bytes_max=FIELD_BYTES_MAX,
            headers_max=HEADERS_MAX,
            read_buffer_bytes=BODY_BUFFER_BYTES,
        )
        self._http = BoundedHttpServer(self._answer, limits)
        self._listener = HttpListener("HTTP", self._begin)

    async def start(self, host: str, port: int) -> int:
        """Listen at the address and return its port. Raises ``OSError``."""
        return await self._listener.start(host, port)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await self._listener.close()
        self._http.end_all()
        await self._http.shutdown(0)

    async def _begin(self, sock: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self._http, sock)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._http.begin_request(request.protocol)
        method, path = request.method, request.path
        unknown = self._hosts.refusal(request.transport, request.headers.getall("Host", ()))
        if unknown is not None:
            page = Page(f"{unknown}\n".encode(), status=REFUSED_STATUS)
        elif self._tracer is None or TRACE_HEADER not in request.headers:
            page = await self._page(method, path)
        else:
            name = f"{method} {path}" if path in self._pages else method
            carrier = {name.lower(): value for name, value in request.headers.items()}
            with self._tracer.span(name, {"http.request.method": method}, carrier=carrier):
                page = await self._page(method, path)
        response = web.Response(
            body=page.body,
            status=page.status,
            headers={"Content-Type": page.content_type, "Cache-Control": "no-store"},
        )
        response.force_close()
        return response

    async def _page(self, method: str, path: str) -> Page:
        make = self._pages.get(path)
        if make is None:
            known = ", ".join(self._pages)
            return Page(f"not found: there is {known}\n".encode(), status=404)
        if method not in _METHODS:
            return Page(b"only GET and HEAD are allowed\n", status=405)
        try:
            return await make()
        except Exception:
            logger.exception("http request failed", extra={"path": path})
            return Page(b"the request failed; the log of the node has the reason\n", status=500)
