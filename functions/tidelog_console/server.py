"""The console's server: routes, and the middleware of every request."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from tidelog_core.errors import AuthenticationFailed, TidelogError

from tidelog_console.errors import PageError, page_error
from tidelog_console.guard import HEADERS, STRICT_TRANSPORT
from tidelog_console.listening_socket import ListeningSocket
from tidelog_console.pages import (
    cluster,
    faults,
    groups,
    jobs,
    login,
    money,
    numbers,
    tail,
    tier,
    topics,
)
from tidelog_console.settings import ConsoleSettings
from tidelog_console.static_files import FILES, PREFIX
from tidelog_console.web_context import (
    CONSOLE,
    SESSION_COOKIE,
    VISITOR,
    Console,
    console_of,
    page,
)

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_BYTES_MAX = 16 * 1024
PAGE_SECONDS_MAX = 30.0
KEEPALIVE_SECONDS = 30.0
STOP_SECONDS_MAX = 2.0
OPEN_PATHS = ("/login", PREFIX)  # without a login
STREAM_PATHS = "/events/"


async def serve(
    settings: ConsoleSettings, stop: asyncio.Event, announce: Callable[[str], None]
) -> None:
    """Serve until ``stop``; ``announce`` gets the URL.

    Raises ``InvalidConfig`` for files that are no certificates, ``OSError`` if the port is in use.
    """
    tls = settings.tls()
    console = Console.of(settings)
    application = make_application(console)
    runner = web.AppRunner(
        application,
        access_log=None,
        handler_cancellation=True,  # a visitor that leaves frees its stream at once
        keepalive_timeout=KEEPALIVE_SECONDS,
        shutdown_timeout=STOP_SECONDS_MAX,
    )
    await runner.setup()
    listening = ListeningSocket(runner)
    application[LISTENING].append(listening)
    try:
        port = _start(listening, settings, tls)
        scheme = "http" if tls is None else "https"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        announce(f"{scheme}://{host}:{port}")
        await stop.wait()
    finally:
        await listening.close()
        await console.close()
        await runner.cleanup()


def _start(
    listening: ListeningSocket, settings: ConsoleSettings, tls: ssl.SSLContext | None
) -> int:
    """Listen, and return the port. Raises ``OSError``."""
    try:
        return listening.start(settings.host, settings.port, tls)
    except OSError as error:
        if not (settings.port_or_free and error.errno == errno.EADDRINUSE):
            raise
        return listening.start(settings.host, 0, tls)


LISTENING = web.AppKey("listening", list[ListeningSocket])


def make_application(console: Console) -> web.Application:
    """Return the application of a console."""
    application = web.Application(
        middlewares=[let_in, answer_errors, find_visitor], client_max_size=BODY_BYTES_MAX
    )
    application[CONSOLE] = console
    application[LISTENING] = []
    for module in (cluster, topics, tail, groups, tier, money, jobs, faults, numbers, login):
        application.add_routes(module.ROUTES)
    for file in FILES.values():
        application.router.add_get(f"{PREFIX}{file.name}", file.answer)
    return application


@web.middleware
async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests that are not for this console, and give every answer its headers."""
    console = console_of(request)
    refusal = _refusal(console, request)
    for listening in request.app[LISTENING]:
        listening.begin_request(request)
    try:
        answer = await handler(request) if refusal is None else refusal
    except web.HTTPException as other:  # no such page, or another method
        other.headers.update(_headers(console))
        raise
    finally:
        for listening in request.app[LISTENING]:
            listening.end_request(request)
    if not answer.prepared:
        answer.headers.update(_headers(console))
    return answer


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into pages."""
    try:
        if request.path.startswith(STREAM_PATHS):
            return await handler(request)
        async with asyncio.timeout(PAGE_SECONDS_MAX):
            return await handler(request)
    except AuthenticationFailed as error:
        return await _end_session(request, error)
    except TidelogError as error:
        return _error_page(request, page_error(error))
    except TimeoutError:
        problem = PageError(503, "The cluster does not answer", "it took too long")
    except web.HTTPException as other:
        if other.status < 400:
            raise
        problem = PageError(other.status, other.reason, "", "look at the menu")
    except Exception:
        logger.exception("page failed unexpectedly")
        problem = PageError(500, "The page failed", "the console's log has the cause")
    return _error_page(request, problem)


@web.middleware
async def find_visitor(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Find the visitor of the request, or answer with the form to log in."""
    console = console_of(request)
    cookie = request.cookies.get(SESSION_COOKIE)
    visitor = console.sessions.find(cookie)
    if visitor is not None:
        request[VISITOR] = visitor
    elif not request.path.startswith(OPEN_PATHS):
        return _to_login(request)
    return await handler(request)


def _refusal(console: Console, request: web.Request) -> web.Response | None:
    if not console.guard.knows_host(request.headers.get("Host")):
        text = "this console has another name: give it with --host-name\n"
        return web.Response(status=421, text=text)
    if console.guard.is_foreign(request.headers):
        return web.Response(status=403, text="another site's page asks\n")
    return None


def _headers(console: Console) -> dict[str, str]:
    return {**HEADERS, **STRICT_TRANSPORT} if console.settings.is_encrypted else dict(HEADERS)


async def _end_session(request: web.Request, error: TidelogError) -> web.StreamResponse:
    console = console_of(request)
    if not console.settings.asks_to_log_in:
        return _error_page(request, page_error(error))
    await console.sessions.log_out(request.cookies.get(SESSION_COOKIE))
    return _to_login(request)


def _to_login(request: web.Request) -> web.StreamResponse:
    if request.headers.get("HX-Request") or request.path.startswith(STREAM_PATHS):
        # A part of a page cannot show the form: the page loads again, and is sent there.
        return web.Response(status=401, headers={"HX-Refresh": "true"})
    return web.HTTPSeeOther("/login")


def _error_page(request: web.Request, error: PageError) -> web.Response:
    if request.path.startswith(STREAM_PATHS):
        return web.json_response(
            {"title": error.title, "detail": error.detail}, status=error.status
        )
    return page(request, "error.html", error.status, error=error, title=error.title)
