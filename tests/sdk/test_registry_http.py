"""What a host can do to the clients of a schema registry, and addresses that are refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tidelog.arrow.schemas.registry_source import RegistrySource
from tidelog.errors import ConnectionFailed, InvalidConfig
from tidelog.registry_http import NoRegistry, RegistryHttp, _Deadline, _TlsConnection
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.registry.registry_client import RegistryClient, RegistryFailed

from tests.support.certificates import Authority
from tests.support.http_answers import HttpAnswers

WRONG = ("user:secret@node1:8081", "ftp://user:secret@node1:8081")


@contextmanager
def serving(pages: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """A server on 127.0.0.1: its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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

    with serving(Pages) as port:
        yield port, seen


def test_a_redirect_is_an_error_and_takes_no_password_elsewhere() -> None:
    with host() as (other, stolen), host(f"http://localhost:{other}/") as (port, seen):
        url = f"http://ann:secret@127.0.0.1:{port}"
        with pytest.raises(RegistryFailed, match="HTTP status 302"):
            RegistryClient(url).get("/subjects")
        with pytest.raises(ConnectionFailed, match="HTTP status 302"):
            RegistrySource(url).by_id(1)
    assert seen == ["Basic YW5uOnNlY3JldA=="] * 2
    assert stolen == []


@pytest.mark.parametrize("status", [200, 404, 500])
def test_an_answer_that_breaks_off_is_no_answer(status: int) -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"no chunk\r\n")

        def log_message(self, format: str, *_: object) -> None:
            """Say nothing."""

    with serving(Broken) as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(CommandFailed, match="no registry answers at"):
            RegistryClient(url).get("/subjects")
        with pytest.raises(ConnectionFailed, match="no registry answers at"):
            RegistrySource(url).by_id(1)


@pytest.mark.parametrize("url", WRONG)
def test_the_error_of_a_wrong_address_has_no_password(url: str) -> None:
    with pytest.raises(InvalidConfig, match="not 'node1:8081'") as of_source:
        RegistrySource(url)
    with pytest.raises(UsageError, match="not 'node1:8081'") as of_client:
        RegistryClient(url)
    assert "secret" not in f"{of_source.value}{of_client.value}"


@pytest.mark.parametrize("is_head_slow", [True, False])
def test_an_answer_that_trickles_in_is_ended_in_time(is_head_slow: bool) -> None:
    """Each byte would begin the socket's timeout again."""
    may_end = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            if not is_head_slow:
                self.wfile.write(b"Content-Length: 100000\r\n\r\n")
            while not may_end.wait(0.05):
                self.wfile.write(b"X-A: b\r\n" if is_head_slow else b"x")

        def log_message(self, format: str, *_: object) -> None:
            """Say nothing."""

    with serving(Slow) as port:
        http = RegistryHttp(f"http://127.0.0.1:{port}", seconds_max=0.5, answer_bytes_max=10**6)
        try:
            with pytest.raises(NoRegistry, match=r"not complete after 0\.5 s"):
                http.call("GET", "/subjects")
        finally:
            may_end.set()


def test_a_handshake_is_ended_in_time_too(tmp_path: Path) -> None:
    """Its own timeout begins only once the connection is open."""
    context = Authority(tmp_path).client_context()
    with socket.create_server(("127.0.0.1", 0)) as silent, _Deadline(0.2) as deadline:
        connection = _TlsConnection(
            "127.0.0.1", silent.getsockname()[1], timeout=20, deadline=deadline, context=context
        )
        with closing(connection), pytest.raises(OSError, match=r"EOF|closed|reset") as failed:
            connection.connect()
        assert not isinstance(failed.value, TimeoutError)
        assert deadline.is_over


def test_a_registrys_certificate_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "own")
    strange = Authority(tmp_path / "strange")
    with HttpAnswers(lambda _: (200, "[]"), node_pem=authority.node_pem()) as registry:

        def subjects(url: str, trusted: Path) -> bytes:
            http = RegistryHttp(url, ca_file=trusted, seconds_max=20, answer_bytes_max=10)
            return http.call("GET", "/subjects").body

        assert subjects(registry.url, authority.trusted) == b"[]"
        with pytest.raises(NoRegistry, match="certificate verify failed"):
            subjects(registry.url, strange.trusted)
        with pytest.raises(NoRegistry, match=r"certificate is not valid for '127\.1'"):
            subjects(registry.url.replace("127.0.0.1", "127.1"), authority.trusted)


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "127.0.0.1:70000"])
def test_a_host_that_cannot_be_is_no_registry(host: str) -> None:
    with pytest.raises(ConnectionFailed, match="no registry answers at"):
        RegistrySource(f"http://{host}").by_id(1)


def test_json_that_is_nested_too_deeply_is_no_registrys() -> None:
    class Deep(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"[" * 200_000)

        def log_message(self, format: str, *_: object) -> None:
            """Say nothing."""

    with serving(Deep) as port, pytest.raises(ConnectionFailed, match="no JSON comes"):
        RegistrySource(f"http://127.0.0.1:{port}").by_id(1)
