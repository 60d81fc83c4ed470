"""The instance metadata service of EC2, played. Source: EC2 user guide, IMDSv2."""

from __future__ import annotations

import http.server
import threading
import uuid
from collections.abc import Mapping


def metadata_service(
    values: Mapping[str, str], *, address: tuple[str, int] = ("127.0.0.1", 0)
) -> http.server.ThreadingHTTPServer:
    """Serve these values, as they are at each request, to those who have the token."""
    token = uuid.uuid4().hex

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer(200, token)

        def do_GET(self) -> None:
            if self.headers["X-aws-ec2-metadata-token"] != token:
                self._answer(401, "")
                return
            value = values.get(self.path.removeprefix("/latest/meta-data/"))
            self._answer(404 if value is None else 200, value or "")

        def _answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(address, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
