"""The keys of an issuer: read from files and https servers that may be anything."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from joserfc.jwk import ECKey, OctKey, RSAKey
from tidelog_core.setting_values.urls import parse_jwks_url
from tidelog_node.authentication import issuer_keys
from tidelog_node.authentication.issuer_keys import IssuerKeys, parse_jwks

from tests.support.issuer import Issuer

Respond = Callable[[BaseHTTPRequestHandler], None]
EC = ECKey.generate_key("P-256", {"kid": "second"})


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def keys_at(url: str, clock: Clock | None = None) -> IssuerKeys:
    source = parse_jwks_url(url)
    assert source is not None
    return IssuerKeys(source, refresh_seconds=3_600, now=clock or Clock())


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "keys.json")


async def test_a_key_that_the_issuer_begins_to_use_is_found(issuer: Issuer) -> None:
    """Not more often than every ten seconds, whatever ids clients make up."""
    clock = Clock()
    keys = keys_at(issuer.url, clock)
    assert await keys.find("first") is not None
    assert await keys.find(None) is not None
    issuer.publish(issuer.key, EC)
    assert await keys.find("second") is None
    clock.seconds += 10
    assert await keys.find("second") is not None
    assert await keys.find(None) is None  # there are two
    issuer.publish(EC)
    clock.seconds += 10
    assert await keys.find("made up") is None
    assert await keys.find("first") is None


async def test_the_last_keys_stay_while_new_ones_cannot_be_read(issuer: Issuer) -> None:
    clock = Clock()
    keys = keys_at(issuer.url, clock)
    assert await keys.find("first") is not None
    for damage in (b"", b"{}", b'{"keys": []}', b"x" * 2_000_000, None):
        if damage is None:
            issuer.path.unlink()
        else:
            issuer.path.write_bytes(damage)
        clock.seconds += 10
        assert await keys.find("unknown") is None
        assert await keys.find("first") is not None


async def test_many_clients_with_unknown_keys_fetch_once(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    read = issuer_keys._read

    def counted(source: object) -> bytes:
        reads.append(source)
        return read(source)  # type: ignore[arg-type]

    monkeypatch.setattr(issuer_keys, "_read", counted)
    keys = keys_at(issuer.url)
    found = await asyncio.gather(*(keys.find(f"{number}") for number in range(100)))
    assert set(found) == {None}
    assert len(reads) == 1


def test_only_public_keys_for_signatures_are_taken() -> None:
    secret = OctKey.generate_key(256, {"kid": "secret"}).as_dict(private=True)
    encrypting = RSAKey.generate_key(2048, {"kid": "enc", "use": "enc"}).as_dict(private=False)
    document = {"keys": [secret, encrypting, {"kty": "new"}, 5, EC.as_dict(private=False)]}
    assert parse_jwks(json.dumps(document).encode()).keys() == {"second", None}
    with pytest.raises(ValueError, match="no public key for signatures"):
        parse_jwks(json.dumps({"keys": [secret]}).encode())
    with pytest.raises(ValueError, match="no list of at most 200 keys"):
        parse_jwks(json.dumps({"keys": [secret] * 201}).encode())


# -- over https --


class JwksServer:
    """Answers as it is told."""

    def __init__(self, certificate: trustme.LeafCert) -> None:
        self.respond: Respond = lambda handler: handler.send_error(500)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.respond(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}/keys?tenant=1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JwksServer]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    server = JwksServer(authority.issue_cert("127.0.0.1"))
    yield server
    server.close()


def serving(data: bytes) -> Respond:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        assert handler.path == "/keys?tenant=1"
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return respond


def redirecting(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/")
    handler.end_headers()


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * 65_536)
    except OSError:
        pass


def dripping(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    stopped = threading.Event()
    try:
        while not stopped.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    except OSError:
        pass


async def test_keys_are_fetched_over_https(server: JwksServer, issuer: Issuer) -> None:
    server.respond = serving(issuer.path.read_bytes())
    assert await keys_at(server.url).find("first") is not None


async def test_a_server_that_nobody_vouches_for_is_not_believed(
    server: JwksServer, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.respond = serving(issuer.path.read_bytes())
    monkeypatch.delenv("SSL_CERT_FILE")
    assert await keys_at(server.url).find("first") is None


@pytest.mark.parametrize("respond", [redirecting, endless, dripping])
async def test_servers_that_do_something_else_are_given_up(
    respond: Respond,
    server: JwksServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(issuer_keys, "FETCH_SECONDS_MAX", 0.5)
    server.respond = respond
    async with asyncio.timeout(60):
        assert await keys_at(server.url).find("first") is None
    assert "keys for OAUTHBEARER not fetched" in caplog.text


@pytest.mark.parametrize(
    "url",
    ["http://a/b", "ftp://a/b", "https:///b", "https://u:p@a/b", "file:", "file://host/b", "a"],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be https://host/path"):
        parse_jwks_url(url)
