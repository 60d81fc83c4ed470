"""Tokens for a client with an id and a secret, from the issuer's token endpoint.

The client posts its id and secret and gets a token as JSON. All of it ends within
``FETCH_SECONDS_MAX``, however slow the issuer is. A redirection is an error: the secret is for the
address that was given.
Source: RFC 6749 section 4.4, KIP-768, Kafka's ``HttpAccessTokenRetriever``.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote_plus, urlencode, urlsplit

from tidelog.blocking_dial import dial
from tidelog.errors import AuthenticationFailed, InvalidConfig, TokenNotFetched
from tidelog.tokens.bearer_token import (
    BearerToken,
    claimed_expiry,
    is_token,
    one_line,
)

FETCH_SECONDS_MAX = 10.0
ANSWER_SIZE_BYTES_MAX = 262_144
SECRET_SIZE_BYTES_MAX = 4_096
_PART_BYTES = 65_536
_OK = 200
# Of the client's errors only these may go away by themselves.
_RETRIED = frozenset({408, 429})
_REFUSED = range(300, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """A client of an issuer. ``endpoint`` is an address that ``parse_endpoint`` takes."""

    endpoint: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    secret_file: Path | None = None  # has the secret instead; it is read for each token
    scope: str = ""
    authority: Path | None = None  # PEM file that the endpoint is verified by; None: the system's
    is_urlencoded: bool = False  # id and secret in the header, as RFC 6749 asks and few issuers do

    def fetch(self) -> BearerToken:
        """Return a new token. Raises ``AuthenticationFailed``, ``TokenNotFetched``."""
        asked_at = time.time()
        try:
            status, body = _post(
                parse_endpoint(self.endpoint), self._headers(), self._form(), self._context()
            )
        except ssl.SSLCertVerificationError as error:
            raise _not_trusted(self.endpoint, error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = one_line(error) or type(error).__name__
            raise self._not_fetched(reason) from None
        if status != _OK:
            reason = f"{status} {_reason(body)}".rstrip()
            if status in _REFUSED and status not in _RETRIED:
                raise AuthenticationFailed(
                    f"{self.endpoint} refuses the client {self.client_id!r}: {reason}"
                )
            raise self._not_fetched(reason)
        return self._token(body, asked_at)

    def _not_fetched(self, reason: str) -> TokenNotFetched:
        failed = TokenNotFetched(f"no token from {self.endpoint}: {reason}")
        failed.hint = (
            "check sasl.oauthbearer.token.endpoint.url, and that the issuer of tokens answers there"
        )
        return failed

    def _headers(self) -> dict[str, str]:
        pair = (self.client_id, self._secret())
        if self.is_urlencoded:
            pair = (quote_plus(pair[0]), quote_plus(pair[1]))
        basic = base64.b64encode(":".join(pair).encode()).decode()
        return {
            "Accept": "application/json",
            "Authorization": f"Basic {basic}",
            "Content-Type": "application/x-www-form-urlencoded",
        }

    def _secret(self) -> str:
        if self.secret_file is None:
            return self.client_secret
        return read_secret(self.secret_file, "the client's secret")

    def _form(self) -> bytes:
        scope = {"scope": self.scope} if self.scope else {}
        return urlencode({"grant_type": "client_credentials", **scope}).encode()

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.authority)
        except (OSError, ssl.SSLError) as error:
            raise AuthenticationFailed(
                f"https.ca.location must be a PEM file: {self.authority}: {error}"
            ) from None

    def _token(self, body: bytes, asked_at: float) -> BearerToken:
        answer = _document(body)
        token = answer.get("access_token")
        if not isinstance(token, str) or not is_token(token):
            raise AuthenticationFailed(f"{self.endpoint} answers without an access_token")
        life_s = answer.get("expires_in")
        if isinstance(life_s, int | float) and not isinstance(life_s, bool) and life_s > 0:
            return BearerToken(token, asked_at + life_s)
        return BearerToken(token, claimed_expiry(token))


def parse_endpoint(url: str) -> SplitResult:
    """Return the parts of an address that a secret may be sent to: https, or http on loopback.

    Raises ``ValueError`` with the sentence's end, «must be …».
    """
    wanted = "must be an https address, or http of this machine"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(wanted) from None
    if not host or parts.username is not None or parts.fragment or not url.isascii():
        raise ValueError(wanted)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise ValueError(wanted)
    return parts


def read_secret(path: Path, what: str) -> str:
    """Return the only line of a file. Raises ``InvalidConfig``."""
    try:
        with path.open("rb") as file:
            text = file.read(SECRET_SIZE_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig([f"cannot read {what} in {path}: {error}"]) from None
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret or len(text) > SECRET_SIZE_BYTES_MAX or any(c in secret for c in "\0\r\n"):
        raise InvalidConfig([f"{path} must have {what} as its only line"])
    return secret


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _post(
    url: SplitResult, headers: dict[str, str], form: bytes, context: ssl.SSLContext
) -> tuple[int, bytes]:
    """Return the status and the body. Raises ``OSError``, ``HTTPException``."""
    host = str(url.hostname)
    port = url.port or (443 if url.scheme == "https" else 80)
    deadline = time.monotonic() + FETCH_SECONDS_MAX
    with (
        dial(host, port, timeout_s=FETCH_SECONDS_MAX / 2) as plain,
        # Duplicated, because TLS takes the socket over.
        plain.dup() as handle,
        _cut_at(handle, deadline),
    ):
        stream = (
            context.wrap_socket(plain, server_hostname=host) if url.scheme == "https" else plain
        )
        connection = http.client.HTTPConnection(host, port)
        connection.sock = stream
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("POST", path, body=form, headers=headers)
            with connection.getresponse() as response:
                return response.status, _bounded(response)
        finally:
            connection.close()


@contextmanager
def _cut_at(stream: socket.socket, deadline: float) -> Iterator[None]:
    """Shut the connection down at the deadline: its own timeout is for each part that arrives."""
    is_late = threading.Event()

    def cut() -> None:
        is_late.set()
        with suppress(OSError):  # It may be closed already.
            stream.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, ValueError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():  # Even without an error: an answer that was cut off may look whole.
        raise TimeoutError(f"no whole answer within {FETCH_SECONDS_MAX:.0f} s")


def _bounded(response: http.client.HTTPResponse) -> bytes:
    data = bytearray()
    while part := response.read1(_PART_BYTES):
        data += part
        if len(data) > ANSWER_SIZE_BYTES_MAX:
            raise OSError(f"the answer has more than {ANSWER_SIZE_BYTES_MAX} bytes")
    return bytes(data)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _reason(body: bytes) -> str:
    """Return what an issuer says of its refusal (RFC 6749 section 5.2)."""
    answer = _document(body)
    said = [answer.get(name) for name in ("error", "error_description")]
    return one_line(": ".join(text for text in said if isinstance(text, str)))


def _not_trusted(endpoint: str, error: ssl.SSLCertVerificationError) -> AuthenticationFailed:
    failed = AuthenticationFailed(
        f"the certificate of {endpoint} is not trusted: {error.verify_message}"
    )
    failed.hint = "https.ca.location names the file of its authority"
    return failed
