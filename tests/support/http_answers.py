"""A real HTTP server on this machine whose answers a test decides."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]  # names in lower case
    data: bytes

    @property
    def body(self) -> str:
        """The text that came."""
        return self.data.decode()

    @property
    def form(self) -> dict[str, str]:
        """The form's values, of which each name has one."""
        return {name: value for name, (value,) in parse_qs(self.body).items()}


Answer = Callable[[Asked], tuple[int, bytes | str]]
"""Returns the status and the body; a status of 0 closes the connection."""


class HttpAnswers:
    """Answers every request with ``answer``; ``asked`` has them all."""

    def __init__(self, answer: Answer, *, node_pem: Path | None = None) -> None:
        """``node_pem`` is a key and certificate, for https."""
        self.answer = answer
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", "0"))
                names = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.path, names, self.rfile.read(size))
                outer.asked.append(asked)
                status, body = outer.answer(asked)
                if not status:
                    return
                data = body.encode() if isinstance(body, str) else body
                self.send_response(status)
                if status in range(300, 400):
                    self.send_header("Location", "http://127.0.0.1:1/")
                kind = "text/xml" if data.startswith(b"<") else "application/json"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # A client that gives up is not this server's problem.

        self._server = Server(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if node_pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(node_pem)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
