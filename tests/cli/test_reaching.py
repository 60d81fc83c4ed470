"""Commands at an address where no node answers."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tidelog_cli import reaching
from tidelog_cli.clients import client_factory
from tidelog_cli.local.secured import make_certificate

from tests.support.command import called, tidelog
from tests.support.node_process import NodeProcess
from tools.ports import free_port

REFUSED_SECONDS_MAX = 5.0
LIMITS = (reaching.REFUSED_SECONDS, reaching.ANSWER_SECONDS_MAX)  # before tests shorten them


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps, sooner."""
    monkeypatch.setattr(reaching, "NOTE_SECONDS", 0.05)
    monkeypatch.setattr(reaching, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(reaching, "ANSWER_SECONDS_MAX", 5.0)
    monkeypatch.setattr(reaching, "REFUSED_SECONDS", 0.5)


@contextmanager
def serving(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Give the address of a server that treats each connection so."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=answer, args=(connection,)))
                threads[-1].start()

        threads.append(threading.Thread(target=accept))
        threads[0].start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(10)


def test_refused_port_is_waited_for_and_named() -> None:
    port = free_port()
    for command in (("topic", "list"), ("consume", "t"), ("produce", "t"), ("group", "list")):
        outcome = called(*command, bootstrap=f"localhost:{port}", status=1)
        waiting, failure = outcome.errors.splitlines()
        assert waiting == f"tidelog: waiting for localhost:{port}"
        assert failure.startswith(f"tidelog: no node answers at localhost:{port}: ")
        assert failure.endswith("`tidelog up` starts one on this machine")
        assert "refused" in failure
        assert "None" not in failure


@pytest.mark.slow
def test_refused_port_ends_the_command_within_five_seconds() -> None:
    started = time.monotonic()
    tidelog("topic", "list", bootstrap=f"127.0.0.1:{free_port()}", status=1)
    assert time.monotonic() - started < REFUSED_SECONDS_MAX + 1  # and the interpreter's start


def test_limit_of_the_wait_is_five_seconds() -> None:
    assert LIMITS == (4.0, 1.0)
    assert sum(LIMITS) <= REFUSED_SECONDS_MAX


def test_host_that_does_not_exist_is_named() -> None:
    outcome = called("topic", "list", bootstrap="no-such-host.invalid:9092", status=1)
    assert "no-such-host.invalid" in outcome.errors.splitlines()[-1]
    assert "None" not in outcome.errors


def test_http_server_is_recognised() -> None:
    """It waits for the rest of a request line, so the command has to ask it in its words."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"127.0.0.1:{server.server_port}"
        outcome = called("topic", "list", bootstrap=address, status=1)
    finally:
        server.shutdown()
        server.server_close()
    assert f"{address} is not a Kafka port: it answered HTTP; check the port\n" in outcome.errors


def test_server_that_answers_http_at_once_is_recognised_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaching, "NOTE_SECONDS", 60.0)
    monkeypatch.setattr(reaching, "ASK_SECONDS", 120.0)

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with serving(answer) as address:
        outcome = called("topic", "list", bootstrap=address, status=1)
    assert outcome.errors == (
        f"tidelog: {address} is not a Kafka port: it answered HTTP; check the port\n"
    )


def test_tls_is_recognised_and_what_to_give_is_said(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.node_pem)

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    with serving(answer) as address:
        outcome = called("topic", "list", bootstrap=address, status=1)
    assert f"{address} wants TLS" in outcome.errors
    assert "--command-config" in outcome.errors


# asyncio does not close the socket of a TLS handshake that is cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_node_without_tls_is_recognised(cli_node: NodeProcess, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SSL\n")
    outcome = called(
        "--command-config", config, "topic", "list", bootstrap=cli_node.address, status=1
    )
    assert f"{cli_node.address} does not speak TLS" in outcome.errors


def test_silent_server_is_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(client_factory.__kwdefaults__, "request_timeout_ms", 1_000)
    with ExitStack() as kept, serving(kept.enter_context) as address:
        outcome = called("topic", "list", bootstrap=address, status=1)
    assert f"no node answers at {address}" in outcome.errors
    assert "within 1 s" in outcome.errors
    assert "None" not in outcome.errors
