"""The admin API on this machine: ``python -m tidelog_functions.admin.local --metadata sqlite:///…``

Requests become the events that API Gateway would make of them, without an identity. It listens on
127.0.0.1 only: without ``--token-file`` any program of this machine may call it. What callers may
do is decided as in nodes, by the ACLs for ``--principal``, if TIDELOG_CONFIG_AUTHORIZER_CLASS_NAME
is set; else they may do everything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tidelog_core.errors import ErrorCode, InvalidConfig
from tidelog_core.model import ANONYMOUS

from tidelog_functions.admin.api import AdminApi
from tidelog_functions.admin.cluster import (
    AUTHORIZATION_VARIABLE,
    NO_AUTHORIZATION,
    AdminCluster,
    AdminSettings,
    parse_admin_settings,
)
from tidelog_functions.admin.contract import load_contract
from tidelog_functions.admin.http import PROBLEM_TYPE
from tidelog_functions.admin.problems import problem
from tidelog_functions.admin_jobs.threads import ThreadStarter

try:
    from aiohttp import web
except ModuleNotFoundError as absent:
    raise SystemExit("this needs an HTTP server: pip install 'tidelog[admin]'") from absent

HOST = "127.0.0.1"
NO_TOKEN = "The request has no or another token: send Authorization: Bearer and the token's text."
# A web page whose name resolves to 127.0.0.1 still names itself in Host.
OTHER_HOST = "Host names another machine: ask for localhost or 127.0.0.1."
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
SECONDS_MAX = 28.0
PAYLOAD_SIZE_BYTES_MAX = 10 << 20  # API Gateway's


async def serve(settings: AdminSettings, port: int, *, token: str | None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ``OSError`` if the port is in use."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster = AdminCluster.open(settings.function, anonymous=settings.anonymous)
    starter = cluster.jobs = ThreadStarter(settings.function)
    cluster.waits_for_news = True
    api = AdminApi(cluster, load_contract(), requires_identity=settings.requires_identity)

    async def answer(request: web.Request) -> web.Response:
        if not all(map(_is_local, request.headers.getall("Host", ()))):
            return web.json_response(
                problem(403, ErrorCode.cluster_authorization_failed, OTHER_HOST),
                status=403,
                content_type=PROBLEM_TYPE,
            )
        if token is not None and not _has_token(request, token):
            return web.json_response(
                problem(401, ErrorCode.cluster_authorization_failed, NO_TOKEN),
                status=401,
                content_type=PROBLEM_TYPE,
            )
        answered = await api.handle(await _event(request), seconds_max=SECONDS_MAX)
        return web.Response(
            status=answered["statusCode"],
            headers=answered["headers"],
            body=answered["body"].encode(),
        )

    application = web.Application(client_max_size=PAYLOAD_SIZE_BYTES_MAX)
    application.router.add_route("*", r"/{path:[\s\S]*}", answer)
    runner = web.AppRunner(application, access_log=None)
    try:
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        async with asyncio.TaskGroup() as group:
            group.create_task(starter.sweep_until(stop))
            print(f"tidelog admin ready on http://{HOST}:{runner.addresses[0][1]}", flush=True)  # noqa: T201
            await stop.wait()
            starter.wake()
    finally:
        await runner.cleanup()
        await starter.close()
        await cluster.close()


def _is_local(host: str) -> bool:
    """Return whether a ``Host`` header names this machine."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower() in LOCAL_NAMES


def _has_token(request: web.Request, token: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode())


async def _event(request: web.Request) -> dict[str, Any]:
    """Return API Gateway's event for the request: path decoded, query encoded."""
    path, _, query = request.raw_path.partition("?")
    return {
        "version": "2.0",
        "rawPath": unquote(path, errors="surrogateescape"),
        "rawQueryString": query,
        "headers": {name.lower(): value for name, value in request.headers.items()},
        "requestContext": {
            "http": {"method": request.method, "sourceIp": request.remote or ""},
            "stage": "$default",
        },
        "body": (await request.read()).decode(errors="surrogateescape"),
        "isBase64Encoded": False,
    }


def check_principal(principal: str) -> None:
    """Raise ``InvalidConfig`` unless it is a kind and a name."""
    kind, _, name = principal.partition(":")
    if not (kind and name):
        raise InvalidConfig([f"--principal {principal!r} must be a principal such as User:admin"])


def read_token(path: Path) -> str:
    """Return the text of the file. Raises ``InvalidConfig`` if it has none, and ``OSError``."""
    token = path.read_text().strip()
    if not token:
        raise InvalidConfig([f"--token-file {path} has no token"])
    return token


def main(arguments: Sequence[str]) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tidelog_functions.admin.local")
    parser.add_argument("--metadata", help="metadata store, e.g. sqlite:///path (TIDELOG_METADATA)")
    parser.add_argument("--objects", help="object store, e.g. file:///path (TIDELOG_OBJECTS)")
    parser.add_argument("--port", type=int, default=8080, help="0 for a free one (8080)")
    parser.add_argument(
        "--principal", default=str(ANONYMOUS), help=f"of all callers, for ACLs ({ANONYMOUS})"
    )
    parser.add_argument(
        "--token-file", type=Path, help="callers need its text: Authorization: Bearer <text>"
    )
    given = parser.parse_args(arguments)
    environment = {**os.environ, AUTHORIZATION_VARIABLE: NO_AUTHORIZATION}
    if given.metadata:
        environment["TIDELOG_METADATA"] = given.metadata
    if given.objects:
        environment["TIDELOG_OBJECTS"] = given.objects
    try:
        check_principal(given.principal)
        settings = replace(parse_admin_settings(environment), anonymous=given.principal)
        token = None if given.token_file is None else read_token(given.token_file)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(settings, given.port, token=token))
    except (InvalidConfig, OSError) as error:
        print(f"tidelog admin: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
