"""Credentials as a container gets them: from an endpoint, with a token, for a while."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LIFETIME_S = 3_600.0
STATIC = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class CredentialsEndpoint:
    """Gives out credentials with the token of the moment, all said to last for an hour."""

    def __init__(self, url: str, token_file: Path) -> None:
        self.token = "first"
        self._url = url
        self._token_file = token_file

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes clients of AWS ask here. None of ``STATIC`` may be set besides."""
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": self._url,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(self._token_file),
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def answer(self) -> bytes:
        """Return the credentials of now."""
        expiration = time.gmtime(time.time() + LIFETIME_S)
        return json.dumps(
            {
                "AccessKeyId": "test",
                "SecretAccessKey": "test",
                "Token": self.token,
                "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", expiration),
            }
        ).encode()


@contextmanager
def credentials_endpoint(folder: Path) -> Iterator[CredentialsEndpoint]:
    """Serve credentials on a free port of 127.0.0.1."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = endpoint.answer()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Stay silent."""

    token_file = folder / "token"
    token_file.write_text("who asks")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = CredentialsEndpoint(f"http://127.0.0.1:{server.server_port}/", token_file)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
