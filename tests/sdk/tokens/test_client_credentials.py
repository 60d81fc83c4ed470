"""Tokens from an issuer's endpoint, however it answers."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog.errors import AuthenticationFailed, InvalidConfig, TokenNotFetched
from tidelog.tokens import client_credentials
from tidelog.tokens.client_credentials import (
    ANSWER_SIZE_BYTES_MAX,
    ClientCredentials,
    parse_endpoint,
)

from tests.support.certificates import Authority
from tests.support.http_answers import HttpAnswers
from tests.support.issuer import unsigned

SECRET = "canary-secret"
GOOD = json.dumps({"access_token": "a.b.c", "expires_in": 300, "token_type": "Bearer"})


@pytest.fixture
def endpoint() -> Iterator[HttpAnswers]:
    with HttpAnswers(lambda _: (200, GOOD)) as server:
        yield server


def client(server: HttpAnswers) -> ClientCredentials:
    return ClientCredentials(
        endpoint=f"{server.url}/oauth/token?tenant=1", client_id="app", client_secret=SECRET
    )


def test_the_request_is_kafkas(endpoint: HttpAnswers) -> None:
    before = time.time()
    token = replace(client(endpoint), scope="read write").fetch()
    assert token.text == "a.b.c"
    assert token.expires_at is not None
    assert before + 300 <= token.expires_at <= time.time() + 300
    (asked,) = endpoint.asked
    assert asked.path == "/oauth/token?tenant=1"
    assert asked.form == {"grant_type": "client_credentials", "scope": "read write"}
    basic = base64.b64encode(f"app:{SECRET}".encode()).decode()
    assert asked.headers["authorization"] == f"Basic {basic}"
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"


def test_id_and_secret_are_encoded_if_the_issuer_wants_that(endpoint: HttpAnswers) -> None:
    one = replace(client(endpoint), client_id="a:b", client_secret="c d+", is_urlencoded=True)
    one.fetch()
    basic = endpoint.asked[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(basic) == b"a%3Ab:c+d%2B"


def test_a_secret_in_a_file_is_read_for_each_token(endpoint: HttpAnswers, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    one = replace(client(endpoint), client_secret="", secret_file=file)
    for secret in ("first", "second"):
        file.write_text(f"{secret}\n")
        one.fetch()
        basic = endpoint.asked[-1].headers["authorization"].removeprefix("Basic ")
        assert base64.b64decode(basic) == f"app:{secret}".encode()
    file.write_text("two\nlines\n")
    with pytest.raises(InvalidConfig, match="only line"):
        one.fetch()


def test_https_needs_an_authority_that_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with HttpAnswers(lambda _: (200, GOOD), node_pem=authority.node_pem()) as server:
        one = client(server)
        assert replace(one, authority=authority.trusted).fetch().text == "a.b.c"
        with pytest.raises(AuthenticationFailed, match="is not trusted") as refused:
            one.fetch()
        assert "https.ca.location" in refused.value.hint
        with pytest.raises(AuthenticationFailed, match="must be a PEM file"):
            replace(one, authority=tmp_path / "none").fetch()


@pytest.mark.parametrize(
    ("answer", "expiry"),
    [
        ({"access_token": unsigned({}, {"exp": 4_000_000_000})}, 4_000_000_000),
        ({"access_token": "opaque"}, None),
        ({"access_token": "a.b.c", "expires_in": "300"}, None),
        ({"access_token": "a.b.c", "expires_in": -1}, None),
    ],
)
def test_the_expiry_is_the_answers_or_the_tokens_own(
    endpoint: HttpAnswers, answer: dict[str, object], expiry: float | None
) -> None:
    endpoint.answer = lambda _: (200, json.dumps(answer))
    assert client(endpoint).fetch().expires_at == expiry


@pytest.mark.parametrize(
    ("status", "body", "said", "may_retry"),
    [
        (401, '{"error":"invalid_client"}', "refuses the client 'app': 401 invalid_client", False),
        (400, '{"error":"x","error_description":"a\\n\\u001bb"}', "400 x: a b", False),
        (404, "no such page", "404", False),
        (302, "", "302", False),
        (429, "", "429", True),
        (500, "<html>", "500", True),
        (503, '{"error":["x"]}', "503", True),
        (200, "not json", "without an access_token", False),
        (200, "[]", "without an access_token", False),
        (200, "[" * 100_000, "without an access_token", False),
        (200, '{"access_token":"a b"}', "without an access_token", False),
        (200, '{"access_token":7}', "without an access_token", False),
        (200, '{"access_token":"' + "x" * 70_000 + '"}', "without an access_token", False),
        (200, b"\xff\xfe", "without an access_token", False),
        (200, "x" * (ANSWER_SIZE_BYTES_MAX + 1), "more than 262144 bytes", True),
        (0, "", "no token from", True),
    ],
)
def test_every_other_answer_is_one_line_without_the_secret(
    endpoint: HttpAnswers, status: int, body: str | bytes, said: str, may_retry: bool
) -> None:
    endpoint.answer = lambda _: (status, body)
    expected = TokenNotFetched if may_retry else AuthenticationFailed
    with pytest.raises(expected) as failed:
        client(endpoint).fetch()
    text = str(failed.value)
    assert said in text
    assert failed.value.retriable is may_retry
    assert "\n" not in text
    assert len(text) < 500
    assert SECRET not in text + repr(client(endpoint))
    assert len(endpoint.asked) == 1  # A redirection is not followed.


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_issuer_that_drips_is_cut_off(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, but the whole does not end."""
    monkeypatch.setattr(client_credentials, "FETCH_SECONDS_MAX", 0.3)
    stopped = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            if scheme == "http":
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")  # The body ends with all.
            else:
                connection.sendall(b"\x16\x03\x03\x40\x00")  # a handshake's record of 16 KiB
            while not stopped.wait(0.02):
                try:
                    connection.sendall(b"{")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/"
        try:
            with pytest.raises(TokenNotFetched, match=r"no whole answer within|timed out"):
                ClientCredentials(endpoint=url, client_id="a", client_secret="b").fetch()
        finally:
            stopped.set()
            thread.join()


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example.org/token",
        "https://[::1]:8443/t?x=1",
        "http://localhost:8080/token",
        "http://127.8.0.1/token",
        "http://[::1]/token",
    ],
)
def test_an_endpoint_is_https_or_on_this_machine(url: str) -> None:
    assert parse_endpoint(url).geturl() == url


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.org/token",
        "http://127.0.0.1.example.org/",
        "http://localhost.example.org/",
        "https://user:secret@example.org/",
        "https://example.org/#x",
        "https://example.org:x/",
        "https:///token",
        "https://[::1/",
        "https://exämple.org/",
        "file:///etc/passwd",
        "ftp://example.org/",
        "",
    ],
)
def test_a_secret_goes_to_no_other_address(url: str) -> None:
    with pytest.raises(ValueError, match="must be an https address"):
        parse_endpoint(url)
