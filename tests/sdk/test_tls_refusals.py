"""A TLS connection that is refused fails at once, and its error says what to do."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tidelog import Admin
from tidelog.errors import AuthenticationFailed, ConnectionFailed
from tidelog.wire.tls_refusals import tls_refusal

from tests.support.certificates import Authority

SECONDS_MAX = 60.0
Serve = Callable[[socket.socket], None]


@contextmanager
def served(serve: Serve) -> Iterator[str]:
    """Have a thread serve each connection; yield the address.

    asyncio's servers send no alert when a handshake fails.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, suppress(OSError):
                    serve(client)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def wanting_certificates(authority: Authority, version: ssl.TLSVersion) -> Serve:
    """Return what a TLS listener does that wants clients' certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.node_pem())
    context.load_verify_locations(authority.trusted)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version

    def serve(client: socket.socket) -> None:
        context.wrap_socket(client, server_side=True).close()

    return serve


async def start(address: str, context: ssl.SSLContext) -> AuthenticationFailed:
    """Connect; return the error, which must come before the time for retries is up."""
    async with asyncio.timeout(SECONDS_MAX):
        with pytest.raises(AuthenticationFailed) as failed:
            await Admin(address, ssl=context, request_timeout_ms=60_000).start()
    return failed.value


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("has_certificate", [False, True])
async def test_a_certificate_that_the_node_refuses(
    tmp_path: Path, version: ssl.TLSVersion, has_certificate: bool
) -> None:
    """Also in TLS 1.3, where the client has finished its handshake when it hears of it."""
    authority = Authority(tmp_path / "authority")
    pem = Authority(tmp_path / "stranger").client_pem("eve") if has_certificate else None
    with served(wanting_certificates(authority, version)) as address:
        error = await start(address, authority.client_context(pem))
    assert f"TLS with {address} was refused" in str(error)
    assert "ssl.keystore.location" in error.hint
    assert not error.retriable


async def test_an_authority_that_the_client_does_not_trust(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    other = Authority(tmp_path / "other")
    with served(wanting_certificates(authority, ssl.TLSVersion.TLSv1_3)) as address:
        error = await start(address, other.client_context())
    assert "ssl.truststore.location" in error.hint


async def test_a_listener_that_answers_in_plain_text(tmp_path: Path) -> None:
    def http(client: socket.socket) -> None:
        client.recv(10)
        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with served(http) as address:
        error = await start(address, Authority(tmp_path).client_context())
    assert "security protocol" in error.hint


async def test_a_node_that_ends_during_the_handshake_is_tried_again(tmp_path: Path) -> None:
    seen: list[bytes] = []
    context = Authority(tmp_path).client_context()
    with (
        served(lambda client: seen.append(client.recv(1_000))) as address,
        pytest.raises(ConnectionFailed),
    ):
        await Admin(address, ssl=context, request_timeout_ms=600).start()
    assert len(seen) > 1


@pytest.mark.parametrize("problem", [None, OSError("x"), ssl.SSLEOFError(8, "EOF"), ssl.SSLError()])
def test_other_problems_are_no_refusals(problem: BaseException | None) -> None:
    assert tls_refusal(problem, "a:1") is None
