"""The registry's HTTP server, bounded in every direction.

Theory of operation. aiohttp reads and writes HTTP, and connections are kept for further requests.
Each connection has one timer that ends it (``BoundedHttpServer``): until its next request is there,
and then until that is answered. At most ``REQUESTS_MAX`` requests of known callers have a body in
memory or are answered, a few of them of one host: one whose bodies come slowly holds up no other.
The others wait for their turn, and the client's data waits in its socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from aiohttp import web
from tidelog_core.schema_registry.api.audited_changes import Change
from tidelog_core.schema_registry.api.calls import Answer, Call, Permissions
from tidelog_core.schema_registry.api.registry_api import RegistryApi, interrupted
from tidelog_core.schemas.refusals import TIMEOUT_ERROR, RegistryRefusal

from tidelog_node.counters import SchemaTraffic
from tidelog_node.http_serving.bounded_server import BoundedHttpServer, HttpLimits
from tidelog_node.http_serving.known_hosts import ONLY_LOCALHOST, REFUSED_STATUS, KnownHosts
from tidelog_node.http_serving.listener import HttpListener
from tidelog_node.registry.call_records import CallRecords
from tidelog_node.registry.callers import KnownCaller, RequestOfCaller
from tidelog_node.registry.host_slots import HostSlots, TooManyWait

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
REQUESTS_MAX = 16
HOST_REQUESTS_MAX = 4  # of those
HOST_WAITING_MAX = 64  # requests; fewer than connections, which others need too
HANDSHAKE_SECONDS_MAX = 10.0
SILENT_SECONDS_MAX = 10.0  # until the first request
IDLE_SECONDS_MAX = 60.0  # between two requests
BODY_SECONDS_MAX = 10.0
ANSWER_SECONDS_MAX = 25.0
REQUEST_SECONDS_MAX = 60.0  # with the time that it waits for its turn, and is sent
BODY_BYTES_MAX = 2 << 20  # a schema of full length, escaped
LINE_BYTES_MAX = 8_190
HEADERS_MAX = 64
READ_BUFFER_BYTES = 65_536
FOREIGN_SITES = frozenset({"cross-site", "same-site"})


class BodyUnread(Exception):
    """The body is too long, damaged, or does not come: the connection cannot go on."""

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class Desk(Protocol):
    """Finds out who calls; ``CallerDesk``."""

    async def admit(self, request: RequestOfCaller) -> Permissions:
        """Return what the caller may do. Raises ``RegistryRefusal`` if it is not who it says."""


class RegistryServer:
    """Serves the API. For the tasks of one event loop."""

    def __init__(
        self,
        api: RegistryApi,
        desk: Desk,
        tls: Callable[[], ssl.SSLContext | None],
        *,
        hosts: KnownHosts = ONLY_LOCALHOST,
        records: CallRecords | None = None,
    ) -> None:
        """``tls`` returns the context for the next connection; ``None``: without TLS."""
        self._api = api
        self._desk = desk
        self._tls = tls
        self._hosts = hosts
        self._records = records or CallRecords(SchemaTraffic())
        limits = HttpLimits(
            connections_max=CONNECTIONS_MAX,
            begin_seconds_max=SILENT_SECONDS_MAX,
            keepalive_seconds_max=IDLE_SECONDS_MAX,
            line_bytes_max=LINE_BYTES_MAX,
            field_bytes_max=LINE_BYTES_MAX,
            headers_max=HEADERS_MAX,
            read_buffer_bytes=READ_BUFFER_BYTES,
        )
        self._http = BoundedHttpServer(self._answer, limits)
        self._turns = HostSlots(
            REQUESTS_MAX, of_host_max=HOST_REQUESTS_MAX, waiting_max=HOST_WAITING_MAX
        )
        self._listener = HttpListener("schemas", self._accept)
        self._beginning: dict[asyncio.Task[None], None] = {}  # oldest first

    async def start(self, host: str, port: int) -> int:
        """Listen at the address and return its port. Raises ``OSError``."""
        return await self._listener.start(host, port)

    async def bind(self, host: str, port: int) -> int:
        """Take the address and return its port. Until ``listen`` clients are refused at once.

        Raises ``OSError``.
        """
        return await self._listener.bind(host, port)

    def listen(self) -> None:
        """Let clients in. Raises ``OSError`` if another program has begun to listen there."""
        self._listener.listen()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await self._listener.close()
        for task in (beginning := tuple(self._beginning)):
            task.cancel()
        await asyncio.gather(*beginning, return_exceptions=True)
        self._http.end_all()
        await self._http.shutdown(0)

    async def _accept(self, sock: socket.socket) -> None:
        """Begin the connection in a task of its own: a handshake holds up no other client.

        If there are too many, the oldest ends, so that silent clients keep nobody out.
        """
        if len(self._beginning) >= CONNECTIONS_MAX:
            oldest = next(iter(self._beginning))
            del self._beginning[oldest]
            oldest.cancel()
        task = asyncio.create_task(self._begin(sock))
        self._beginning[task] = None
        task.add_done_callback(lambda done: self._beginning.pop(done, None))

    async def _begin(self, sock: socket.socket) -> None:
        """Make the connection one of the HTTP server's, after its handshake if there is TLS."""
        tls = self._tls()
        timeout = None if tls is None else HANDSHAKE_SECONDS_MAX
        with suppress(OSError):  # The client is gone, or speaks no TLS.
            await asyncio.get_running_loop().connect_accepted_socket(
                self._http, sock, ssl=tls, ssl_handshake_timeout=timeout
            )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._http.begin_request(request.protocol, seconds_max=REQUEST_SECONDS_MAX)
        began = time.monotonic()
        try:
            answer, keeps = await self._answer_caller(request)
            seconds = time.monotonic() - began
            self._records.note(request.method, _segments(request), answer, seconds)
        finally:
            self._http.end_request(request.protocol, seconds_max=IDLE_SECONDS_MAX)
        headers = {"Content-Type": answer.content_type, "X-Content-Type-Options": "nosniff"}
        if answer.status == web.HTTPUnauthorized.status_code:
            headers["WWW-Authenticate"] = 'Basic realm="tidelog"'
        response = web.Response(body=answer.body, status=answer.status, headers=headers)
        if not keeps:
            response.force_close()
        return response

    async def _answer_caller(self, request: web.BaseRequest) -> tuple[Answer, bool]:
        """Return the answer, and whether the connection can have another request.

        A caller who is not known gets no turn, and its body, which may come slowly, is not read.
        """
        try:
            caller = _caller(request)
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                permissions = await self._admit(request, caller)
            async with self._turns.slot(caller.host):
                body = await _read_body(request)
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    return await self._call(request, permissions, body), True
        except BodyUnread as error:
            return Answer.refused(error.error_code, str(error)), False
        except TooManyWait:
            text = f"{HOST_WAITING_MAX} requests of this host wait: try again"
            return Answer.refused(429, text), not request.can_read_body
        except RegistryRefusal as refusal:
            return Answer.refused(refusal.error_code, str(refusal)), not request.can_read_body
        except TimeoutError:
            answer = Answer.refused(TIMEOUT_ERROR, "Operation timed out: try again")
            return answer, not request.can_read_body
        except Exception:
            extra = {"method": request.method, "path": request.path}
            logger.exception("registry request failed", extra=extra)
            answer = Answer.refused(500, "Internal Server Error; the node's log has more")
            return answer, not request.can_read_body

    async def _admit(self, request: web.BaseRequest, caller: RequestOfCaller) -> Permissions:
        """Return what the caller may do. Raises ``RegistryRefusal``."""
        unknown = self._hosts.refusal(request.transport, request.headers.getall("Host", ()))
        if unknown is not None:
            raise RegistryRefusal(REFUSED_STATUS, f"HTTP 403 Forbidden: {unknown}")
        if _is_of_foreign_page(request):
            raise RegistryRefusal(403, "HTTP 403 Forbidden: a page of another site asks")
        return await self._desk.admit(caller)

    async def _call(
        self, request: web.BaseRequest, permissions: Permissions, body: bytes
    ) -> Answer:
        headers = request.headers
        path, _, query = request.raw_path.partition("?")
        call = Call(
            method=request.method,
            path=path,
            query=query,
            body=body,
            content_type=headers.get("Content-Type", ""),
            accept=headers.get("Accept", ""),
            permissions=permissions,
        )
        self._records.require_room(call.method, call.segments)
        try:
            answer = await self._api.answer(call)
        except asyncio.CancelledError:  # The client is gone, or it takes too long.
            self._note_change(permissions, interrupted(call))
            raise
        self._note_change(permissions, answer.change)
        return answer

    def _note_change(self, permissions: Permissions, change: Change | None) -> None:
        if isinstance(permissions, KnownCaller):
            self._records.note_change(permissions.session, change)


def _is_of_foreign_page(request: web.BaseRequest) -> bool:
    """Return whether a browser says that a page of another site asks.

    It says so in ``Sec-Fetch-Site``, but not to an address of another machine without TLS. There
    it names the page's site, of requests that may change something.
    """
    headers = request.headers
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None or origin is None:
        return site in FOREIGN_SITES
    return origin.lower().partition("://")[2] != headers.get("Host", "").lower()


def _segments(request: web.BaseRequest) -> list[str]:
    return Call(request.method, request.raw_path.partition("?")[0]).segments


def _caller(request: web.BaseRequest) -> RequestOfCaller:
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    host, port = (str(peer[0]), int(peer[1])) if peer else ("", 0)
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return RequestOfCaller(host, port, request.headers.get("Authorization", ""), certificate)


async def _read_body(request: web.BaseRequest) -> bytes:
    """Return the body. Raises ``BodyUnread``."""
    too_long = BodyUnread(413, f"the request has more than {BODY_BYTES_MAX} bytes")
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.content.iter_any():
                size += len(part)
                if size > BODY_BYTES_MAX:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise BodyUnread(408, "HTTP 408 Request Timeout") from None
    except (web.PayloadAccessError, web.RequestPayloadError, ValueError) as error:
        raise BodyUnread(400, f"the body cannot be read: {error}") from None
    return b"".join(parts)
