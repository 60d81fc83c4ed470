"""The admin API on this machine: ``python -m tidelog_functions.admin.local --metadata sqlite:///…``

Requests become the events that API Gateway would make of them, without an identity:
whoever reaches the port may do everything, so it is a port of 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from tidelog_core.errors import InvalidConfig

from tidelog_functions.admin.api import AdminApi
from tidelog_functions.admin.cluster import (
    AUTHORIZATION_VARIABLE,
    NO_AUTHORIZATION,
    AdminCluster,
    parse_admin_settings,
)
from tidelog_functions.admin.contract import load_contract
from tidelog_functions.admin.http import BODY_SIZE_BYTES_MAX

HOST = "127.0.0.1"
SECONDS_MAX = 28.0
READ_SECONDS_MAX = 30.0


class LocalServer:
    """Serves until it is closed; requests are answered on an event loop of its own."""

    def __init__(self, cluster: AdminCluster, *, port: int) -> None:
        self._cluster = cluster
        self._api = AdminApi(cluster, load_contract(), requires_identity=False)
        self._loop = asyncio.new_event_loop()
        self._server = ThreadingHTTPServer((HOST, port), self._handler())
        self._threads = [
            threading.Thread(target=self._loop.run_forever),
            threading.Thread(target=self._server.serve_forever),
        ]

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> LocalServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        asyncio.run_coroutine_threadsafe(self._cluster.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join()
        self._loop.close()

    def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return what the function would."""
        answering = self._api.handle(event, seconds_max=SECONDS_MAX)
        return asyncio.run_coroutine_threadsafe(answering, self._loop).result()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = READ_SECONDS_MAX

            def serve(self) -> None:
                body = self._read_body()
                if body is None:
                    return
                answered = answer(_event(self.command, self.path, dict(self.headers), body))
                self._send(answered["statusCode"], answered["headers"], answered["body"].encode())

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve
            do_HEAD = do_OPTIONS = do_TRACE = serve

            def _read_body(self) -> bytes | None:
                length = self.headers.get("content-length", "0")
                if not length.isascii() or not length.isdigit():
                    self.send_error(400)
                    return None
                # One byte more than allowed is enough to have it refused as too large.
                body = self.rfile.read(min(int(length), BODY_SIZE_BYTES_MAX + 1))
                self.close_connection |= len(body) < int(length)
                return body

            def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        return Handler


def _event(method: str, target: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """Return the event that API Gateway would make: the path decoded, the query not."""
    path, _, query = target.partition("?")
    return {
        "version": "2.0",
        "rawPath": unquote(path, errors="surrogateescape"),
        "rawQueryString": query,
        "headers": {name.lower(): value for name, value in headers.items()},
        "requestContext": {"http": {"method": method}, "stage": "$default"},
        "body": body.decode(errors="surrogateescape"),
        "isBase64Encoded": False,
    }


def main(arguments: Sequence[str]) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tidelog_functions.admin.local")
    parser.add_argument(
        "--metadata", help="metadata store, e.g. sqlite:///path ($TIDELOG_METADATA)"
    )
    parser.add_argument("--objects", help="object store, e.g. file:///path ($TIDELOG_OBJECTS)")
    parser.add_argument("--port", type=int, default=8080, help="0 for a free one (8080)")
    given = parser.parse_args(arguments)
    environment = {**os.environ, AUTHORIZATION_VARIABLE: NO_AUTHORIZATION}
    if given.metadata:
        environment["TIDELOG_METADATA"] = given.metadata
    if given.objects:
        environment["TIDELOG_OBJECTS"] = given.objects
    try:
        cluster = AdminCluster.open(parse_admin_settings(environment))
    except InvalidConfig as error:
        print(f"tidelog admin: {error}", file=sys.stderr)  # noqa: T201
        return 2
    with LocalServer(cluster, port=given.port) as server:
        print(f"tidelog admin ready on {server.url}", flush=True)  # noqa: T201
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
