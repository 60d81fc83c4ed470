"""The SASL mechanisms of clients: each begins exchanges of tokens that end with a user's name."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.plain import PLAIN_MECHANISM, parse_plain
from tidelog_core.security.scram import ScramCredentials, ScramServer
from tidelog_core.security.scram_credentials import ScramMechanism

from tidelog_node.authentication.password_checks import PasswordChecks

NONCE_BYTES = 24
TOKENS_ARE_UNSUPPORTED = "the client has a delegation token, which this node does not support"


class Exchange(Protocol):
    """One client's exchange of tokens. A refusal ends it."""

    @property
    def user(self) -> str | None:
        """The proved name of the client; ``None`` before the exchange succeeded."""

    async def answer(self, token: bytes) -> bytes:
        """Return the node's next token, which may be empty.

        Raises ``AuthenticationFailed``, and ``CloseConnection`` if the node cannot decide.
        """


class Mechanisms:
    """Begins exchanges. For the node's event loop."""

    def __init__(self, users: Callable[[], ScramCredentials], checks: PasswordChecks) -> None:
        """``users`` returns the newest credentials."""
        self._users = users
        self._checks = checks

    def begin(self, name: str, client_host: str) -> Exchange:
        """Return a new exchange of a mechanism that a listener has enabled."""
        if name == PLAIN_MECHANISM:
            return PlainExchange(self._checks, client_host)
        return ScramExchange(ScramMechanism(name), self._users())


class ScramExchange:
    """SCRAM: two tokens of the client, less than a millisecond each."""

    def __init__(self, mechanism: ScramMechanism, users: ScramCredentials) -> None:
        self._server = ScramServer(mechanism, users, nonce=secrets.token_urlsafe(NONCE_BYTES))
        self._has_begun = False

    @property
    def user(self) -> str | None:
        """The proved name of the client."""
        return self._server.user

    async def answer(self, token: bytes) -> bytes:
        """Return the node's next token."""
        try:
            answer = self._server.answer(token)
        except AuthenticationFailed as failed:
            if self._has_begun and self._server.is_token:
                # The client gets the error of a token that does not exist.
                raise AuthenticationFailed(str(failed), reason=TOKENS_ARE_UNSUPPORTED) from failed
            raise
        self._has_begun = True
        return answer


class PlainExchange:
    """PLAIN: one token of the client, with its name and password."""

    def __init__(self, checks: PasswordChecks, client_host: str) -> None:
        self._checks = checks
        self._client_host = client_host
        self.user: str | None = None

    async def answer(self, token: bytes) -> bytes:
        """Return the empty token once the password was checked."""
        login = parse_plain(token)
        await self._checks.check(self._client_host, login)
        self.user = login.user
        return b""
