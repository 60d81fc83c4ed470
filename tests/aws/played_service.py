"""A service over HTTP that is not here, played: it gives one answer, and keeps what it was asked."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COMPLETED = (
    "<CompleteLifecycleActionResponse><CompleteLifecycleActionResult/>"
    "</CompleteLifecycleActionResponse>"
)


class Played(http.server.BaseHTTPRequestHandler):
    """Answers every request with the server's text, and notes it."""

    def do_GET(self) -> None:
        self._answer(self.path)

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _answer(self, asked: str) -> None:
        server: Any = self.server
        server.asked.append(asked)
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(server.text)))
        self.end_headers()
        self.wfile.write(server.text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def played(text: str, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Serve this text; give the address, and what is asked."""
    with http.server.HTTPServer(("127.0.0.1", 0), Played) as server:
        asked: list[str] = []
        vars(server).update(text=text, status=status, asked=asked)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()
