"""Logs a client in at a listener with SASL.

After ApiVersions the client names its mechanism (SaslHandshake) and sends the mechanism's messages
(SaslAuthenticate). The answer to the last one says how long the connection may be used (KIP-368).

Source: KIP-43, KIP-152, KIP-255, KIP-368; RFC 5802, RFC 4616 and RFC 7628 for the messages.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from tidelog_core.security.oauthbearer import ACKNOWLEDGEMENT, OAUTHBEARER_MECHANISM
from tidelog_core.security.plain import PLAIN_MECHANISM
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism
from tidelog_core.security.scram_messages import escaped_name
from tidelog_core.wire_messages import build

from tidelog.encodable import is_encodable
from tidelog.errors import (
    AuthenticationFailed,
    TidelogError,
    TokenNotFetched,
    UnsupportedSaslMechanism,
    error_for,
)
from tidelog.tokens.bearer_token import is_token
from tidelog.wire.connection import Connection
from tidelog.wire.mechanisms import PASSWORD_MECHANISMS
from tidelog.wire.requests import SASL_AUTHENTICATE, SASL_HANDSHAKE

NONCE_SIZE_BYTES = 24
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
# The part of a session after which its connection is replaced. The rest is for requests in flight.
RETIRE_AFTER_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Sasl:
    """A user's login: a mechanism (SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN), name and password.

    PLAIN sends the password itself, so it needs TLS. With ``is_delegation_token`` the user is a
    delegation token's id and the password its HMAC in base64 (``DelegationToken.sasl``).
    """

    mechanism: str
    user: str
    password: str = field(repr=False)
    is_delegation_token: bool = False

    def problems(self) -> list[str]:
        """Return the problems, one sentence each."""
        found = []
        if self.mechanism not in PASSWORD_MECHANISMS:
            allowed = ", ".join(PASSWORD_MECHANISMS)
            found.append(f"the SASL mechanism must be one of {allowed}, not {self.mechanism!r}")
        if not self.user or not self.password:
            found.append("a SASL login needs a user and a password")
        if "\0" in self.user + self.password:
            found.append("a SASL user and password must not have a NUL character")
        if not is_encodable(self.user + self.password):
            found.append("a SASL user and password must be texts that UTF-8 can encode")
        if self.mechanism == PLAIN_MECHANISM and self.is_delegation_token:
            found.append("a delegation token logs in by SCRAM, not by PLAIN")
        if self.mechanism != PLAIN_MECHANISM:
            try:
                escaped_name(self.user)
            except ValueError as error:
                found.append(f"the SASL user: {error}")
        return found


@dataclass(frozen=True, slots=True)
class SaslToken:
    """A login by a token of an issuer that the nodes trust (OAUTHBEARER).

    ``token`` returns a valid one for each connection. It may be a coroutine function; any other
    function is called in a thread. The token itself is sent, so it needs TLS. ``extensions`` are
    names and values that some clusters ask for (KIP-342); Tidelog's nodes pass over them.
    """

    token: Callable[[], str] | Callable[[], Awaitable[str]] = field(repr=False)
    extensions: tuple[tuple[str, str], ...] = ()

    @property
    def mechanism(self) -> str:
        """OAUTHBEARER."""
        return OAUTHBEARER_MECHANISM

    def problems(self) -> list[str]:
        """Return the problems, one sentence each."""
        found = [] if callable(self.token) else ["the token of a SASL login must be a function"]
        for name, value in self.extensions:
            # "auth" is the token's own name.
            if not _EXTENSION_NAME.fullmatch(name) or name.lower() == "auth":
                found.append(f"the SASL extension {name!r} must have a name of letters, not auth")
            if not _EXTENSION_VALUE.fullmatch(value):
                found.append(f"the SASL extension {name!r} must have a value of printable ASCII")
        return found

    async def first_message(self, *, timeout_s: float) -> bytes:
        """Return the message with a token.

        Raises the SDK's errors as the function does, ``TokenNotFetched`` if it takes longer than
        ``timeout_s`` or raises an ``OSError``, and ``AuthenticationFailed`` if it raises another
        error. The function's error is the cause.
        """
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                token = await self._fetch()
        except TidelogError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise _no_token(f"no token within {timeout_s:g} s") from None
            # The program's function may raise anything, and no task of the client may end with it.
            if isinstance(error, OSError):  # Timeouts are some: the issuer may answer the next try.
                raise _no_token(f"the function for the token failed: {error!r}") from error
            raise AuthenticationFailed(f"the function for the token failed: {error!r}") from error
        if not isinstance(token, str) or not is_token(token):
            raise AuthenticationFailed("the function for the token returned something else")
        pairs = "".join(f"{name}={value}\x01" for name, value in self.extensions)
        return f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()

    async def _fetch(self) -> object:
        for function in (self.token, getattr(self.token, "__call__", None)):  # noqa: B004
            if inspect.iscoroutinefunction(function):
                return await self.token()  # type: ignore[misc]
        return await asyncio.to_thread(self.token)


def _no_token(reason: str) -> TokenNotFetched:
    failed = TokenNotFetched(reason)
    failed.hint = (
        "the function given to SaslToken must return a token within request_timeout_ms: check that"
        " what it calls can be reached"
    )
    return failed


async def log_in(connection: Connection, sasl: Sasl | SaslToken, *, timeout_s: float) -> None:
    """Log in on a connection that has negotiated versions.

    The connection retires before the node ends its session. Raises ``AuthenticationFailed`` and
    ``UnsupportedSaslMechanism``, which no retry mends, and the errors of requests.
    """
    exchange = _Exchange(connection, timeout_s)
    await exchange.choose(sasl.mechanism)
    if isinstance(sasl, SaslToken):
        last = await exchange.send(await sasl.first_message(timeout_s=timeout_s))
        if last.auth_bytes:  # The node refuses the token, and says why in its next answer.
            await exchange.send(ACKNOWLEDGEMENT)
            raise AuthenticationFailed(f"{connection.address} refuses the token")
    elif sasl.mechanism == PLAIN_MECHANISM:
        message = f"\0{sasl.user}\0{sasl.password}".encode()
        last = await exchange.send(message)
    else:
        scram = ScramClient(
            ScramMechanism(sasl.mechanism),
            sasl.user,
            sasl.password,
            nonce=secrets.token_urlsafe(NONCE_SIZE_BYTES),
            is_token=sasl.is_delegation_token,
        )
        challenge = await exchange.send(scram.first_message())
        # Milliseconds of PBKDF2.
        proof = await asyncio.to_thread(scram.final_message, challenge.auth_bytes)
        last = await exchange.send(proof)
        scram.check(last.auth_bytes)
    lifetime_s = last.session_lifetime.total_seconds()
    if lifetime_s > 0:
        connection.retire_after(lifetime_s * RETIRE_AFTER_SHARE)


class _Exchange:
    """The requests of one login."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    async def choose(self, mechanism: str) -> None:
        """Name the mechanism. Raises ``UnsupportedSaslMechanism`` with those of the node."""
        answer = await self._connection.request(
            SASL_HANDSHAKE,
            build(SaslHandshakeRequest, mechanism=mechanism),
            timeout_s=self._timeout_s,
        )
        if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
            offered = ", ".join(answer.mechanisms) or "none"
            raise UnsupportedSaslMechanism(
                f"{self._connection.address} does not offer {mechanism}, it offers {offered}"
            )
        if answer.error_code is not ErrorCode.none:
            raise error_for(answer.error_code, None, about=self._connection.address)

    async def send(self, message: bytes) -> SaslAuthenticateResponse:
        """Send a message of the mechanism. Raises ``AuthenticationFailed``."""
        answer: SaslAuthenticateResponse = await self._connection.request(
            SASL_AUTHENTICATE,
            build(SaslAuthenticateRequest, auth_bytes=message),
            timeout_s=self._timeout_s,
        )
        if answer.error_code is not ErrorCode.none:
            address = self._connection.address
            raise error_for(answer.error_code, answer.error_message, about=address)
        return answer
