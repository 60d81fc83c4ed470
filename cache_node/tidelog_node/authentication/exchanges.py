"""The SASL mechanisms of clients: each begins exchanges of tokens that end with a user's name."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.oauthbearer import (
    ACKNOWLEDGEMENT,
    INVALID_TOKEN,
    OAUTHBEARER_MECHANISM,
    parse_bearer,
)
from tidelog_core.security.plain import PLAIN_MECHANISM, parse_plain
from tidelog_core.security.scram import ScramServer
from tidelog_core.security.scram_credentials import ScramMechanism

from tidelog_node.authentication.bearer_tokens import BearerTokens, TokenIdentity, refused
from tidelog_node.authentication.login_credentials import LoginCredentials, TokenLogin
from tidelog_node.authentication.password_checks import PasswordChecks

NONCE_BYTES = 24
TOKENS_ARE_DISABLED = (
    "the client has a delegation token, and this node has no delegation.token.secret.key"
)


class Exchange(Protocol):
    """One client's exchange of tokens. A refusal ends it."""

    @property
    def user(self) -> str | None:
        """The proved name of the client; ``None`` before the exchange succeeded."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The proved groups of the client."""

    @property
    def is_by_token(self) -> bool:
        """Whether the client has a delegation token, or says so."""

    @property
    def refusal(self) -> AuthenticationFailed | None:
        """The refusal of a client that must still ask for its error; most are raised at once."""

    def lasts_seconds(self) -> float:
        """Return for how long the proof counts; infinity: without an end."""

    def may_end_sooner(self) -> bool:
        """Return whether ``lasts_seconds`` may have become less since the last call of this."""

    async def answer(self, token: bytes) -> bytes:
        """Return the node's next token, which may be empty.

        Raises ``AuthenticationFailed``, and ``CloseConnection`` if the node cannot decide.
        """


class Mechanisms:
    """Begins exchanges. For the node's event loop."""

    def __init__(
        self,
        credentials: Callable[[], LoginCredentials],
        checks: PasswordChecks,
        *,
        tokens: BearerTokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``credentials`` returns the newest ones, ``clock`` the wall clock's epoch seconds.

        ``tokens`` are needed where a listener has OAUTHBEARER.
        """
        self._credentials = credentials
        self._checks = checks
        self._tokens = tokens
        self._clock = clock

    def begin(self, name: str, client_host: str) -> Exchange:
        """Return a new exchange of a mechanism that a listener has enabled."""
        if name == PLAIN_MECHANISM:
            return PlainExchange(self._checks, client_host)
        if name == OAUTHBEARER_MECHANISM:
            assert self._tokens is not None
            return BearerExchange(self._tokens, self._clock)
        return ScramExchange(ScramMechanism(name), self._credentials, self._clock)


class BearerExchange:
    """OAUTHBEARER: one token, or for a refused one a second, which says that this is known."""

    is_by_token = False  # delegation tokens are others

    def __init__(self, tokens: BearerTokens, clock: Callable[[], float]) -> None:
        """``clock`` is the wall clock, in epoch seconds."""
        self._tokens = tokens
        self._clock = clock
        self.refusal: AuthenticationFailed | None = None
        self._identity: TokenIdentity | None = None

    @property
    def user(self) -> str | None:
        """The user of the token."""
        return None if self._identity is None else self._identity.user

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of the token."""
        return () if self._identity is None else self._identity.groups

    def lasts_seconds(self) -> float:
        """Return how long the token is valid."""
        assert self._identity is not None
        return max(0.0, self._identity.expires_at - self._clock())

    def may_end_sooner(self) -> bool:
        """Return that it cannot: a token says itself when it ends."""
        return False

    async def answer(self, token: bytes) -> bytes:
        """Return the empty token, or the refusal of the client's token."""
        if self.refusal is not None:
            raise self.refusal if token == ACKNOWLEDGEMENT else refused("no acknowledgement")
        login = parse_bearer(token)
        try:
            identity = await self._tokens.validate(login.token)
        except AuthenticationFailed as failed:
            self.refusal = failed.with_traceback(None)
            return INVALID_TOKEN.encode()
        if login.authorization_id not in ("", identity.user):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        self._identity = identity
        return b""


class ScramExchange:
    """SCRAM: two messages of the client, less than a millisecond each.

    A client may have a delegation token instead of a name and a password. Then it is the owner.
    """

    refusal: AuthenticationFailed | None = None

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: Callable[[], LoginCredentials],
        clock: Callable[[], float],
    ) -> None:
        """``credentials`` returns the newest ones; ``clock`` is the wall clock, in seconds."""
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        self._server = ScramServer(mechanism, credentials(), nonce=nonce)
        self._credentials = credentials
        self._clock = clock
        self._has_begun = False
        self._login: TokenLogin | None = None  # by the token, once it is proved
        self._tokens_state: object = None  # when ``may_end_sooner`` was asked last

    @property
    def user(self) -> str | None:
        """The proved name of the client."""
        if self.is_by_token:
            return None if self._login is None else self._login.owner
        return self._server.user

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of a token's owner."""
        return () if self._login is None else self._login.groups

    @property
    def is_by_token(self) -> bool:
        """Whether the client has a delegation token, or says so."""
        return self._has_begun and self._server.is_token

    def lasts_seconds(self) -> float:
        """Return how long the token is valid, 0 once it is removed; infinity for a password."""
        if self._login is None:
            return math.inf
        now = self._token_login()
        return 0.0 if now is None else max(0.0, now.expires_ms / 1000 - self._clock())

    def may_end_sooner(self) -> bool:
        """Return whether a token has changed; not whether it is this one."""
        if self._login is None:
            return False
        before, self._tokens_state = self._tokens_state, self._credentials().tokens_state
        return before is not self._tokens_state

    async def answer(self, token: bytes) -> bytes:
        """Return the node's next token."""
        try:
            answer = self._server.answer(token)
        except AuthenticationFailed as failed:
            if self.is_by_token and not self._credentials().has_tokens:
                # The client gets the error of a token that does not exist.
                raise AuthenticationFailed(str(failed), reason=TOKENS_ARE_DISABLED) from failed
            raise
        self._has_begun = True
        if self._server.user is not None and self._server.is_token:
            self._login = self._token_login()
            if self._login is None:
                raise AuthenticationFailed(
                    "Authentication failed: the delegation token has expired",
                    reason="the delegation token expired during the login",
                )
        return answer

    def _token_login(self) -> TokenLogin | None:
        return self._credentials().token_login(self._server.user or "")


class PlainExchange:
    """PLAIN: one token of the client, with its name and password."""

    is_by_token = False
    groups: tuple[str, ...] = ()
    refusal: AuthenticationFailed | None = None

    def __init__(self, checks: PasswordChecks, client_host: str) -> None:
        self._checks = checks
        self._client_host = client_host
        self.user: str | None = None

    def lasts_seconds(self) -> float:
        """Return infinity: a password does not expire."""
        return math.inf

    def may_end_sooner(self) -> bool:
        """Return that it cannot: as in Kafka, another password ends no session."""
        return False

    async def answer(self, token: bytes) -> bytes:
        """Return the empty token once the password was checked."""
        login = parse_plain(token)
        await self._checks.check(self._client_host, login)
        self.user = login.user
        return b""
