"""What a host can do to the clients of a schema registry, and addresses that are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tidelog.arrow.registry_source import RegistrySource
from tidelog.errors import ConnectionFailed, InvalidConfig
from tidelog_cli.failures import UsageError
from tidelog_cli.registry_client import RegistryClient, RegistryFailed

WRONG = ("user:secret@node1:8081", "ftp://user:secret@node1:8081")


@contextmanager
def host(redirects_to: str | None = None) -> Iterator[tuple[int, list[str | None]]]:
    """A host on 127.0.0.1 that answers or redirects: its port, and the passwords that it saw."""
    seen: list[str | None] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200 if redirects_to is None else 302)
            if redirects_to is not None:
                self.send_header("Location", redirects_to)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, format: str, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_redirect_is_an_error_and_takes_no_password_elsewhere() -> None:
    with host() as (other, stolen), host(f"http://localhost:{other}/") as (port, seen):
        url = f"http://ann:secret@127.0.0.1:{port}"
        with pytest.raises(RegistryFailed, match="HTTP status 302"):
            RegistryClient(url).get("/subjects")
        with pytest.raises(ConnectionFailed, match="HTTP status 302"):
            RegistrySource(url).by_id(1)
    assert seen == ["Basic YW5uOnNlY3JldA=="] * 2
    assert stolen == []


@pytest.mark.parametrize("url", WRONG)
def test_the_error_of_a_wrong_address_has_no_password(url: str) -> None:
    with pytest.raises(InvalidConfig, match="not 'node1:8081'") as of_source:
        RegistrySource(url)
    with pytest.raises(UsageError, match="not 'node1:8081'") as of_client:
        RegistryClient(url)
    assert "secret" not in f"{of_source.value}{of_client.value}"
