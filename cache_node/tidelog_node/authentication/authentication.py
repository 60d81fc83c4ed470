"""The states of one client's authentication.

    BEGIN      ApiVersions or SaslHandshake
    HANDSHAKE  SaslHandshake: ApiVersions has been answered
    EXCHANGE   tokens, in SaslAuthenticate or raw (after version 0 of SaslHandshake)
    DONE       the session has its principal

A session may expire (``connections.max.reauth.ms``, KIP-368), at the latest with the token that its
client has. Then EXCHANGE follows DONE repeatedly: the client sends SaslHandshake on the live
connection. Until it has proved again to be the same user by the same mechanism, no other request is
accepted.

This module does not use the wire format: ``handlers/security/sasl.py`` has the two APIs,
``login.py`` the frames before the log-in. Source: Kafka's ``SaslServerAuthenticator`` and
``KafkaChannel``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import AuthenticationFailed, UnsupportedSaslMechanism
from tidelog_core.model import USER_KIND, Principal
from tidelog_core.security.oauthbearer import OAUTHBEARER_MECHANISM

from tidelog_node.answers import CloseConnection
from tidelog_node.authentication.exchanges import Exchange, Mechanisms
from tidelog_node.requests.session import Session

ROUNDS_MAX = 16  # requests and tokens of one authentication; the longest needs 6
REAUTHENTICATION_SECONDS_MIN = 1.0  # between the starts of two
FAILED_HINT = "check the client's user and password: tidelog user list shows who can log in"
DELEGATION_TOKEN_HINT = "create another token for the client: tidelog token create"
TOKEN_HINT = "check the node's sasl.oauthbearer.expected.issuer, .audience and .jwks.endpoint.url"
NO_LOGIN_HINT = "set the client's security.protocol to that of the listener"


class Logins(Protocol):
    """The log of clients that were let in or refused; ``LoginLog``."""

    def accepted(self, client: Session, method: str) -> None:
        """Log that the client has proved who it is."""

    def refused(self, client: Session, reason: str, *, hint: str = "") -> None:
        """Log a refusal, but not for every attempt of a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationRules:
    """A listener's rules for the authentication of its clients."""

    mechanisms: tuple[str, ...]
    token_bytes_max: int = 524_288  # of a frame before the client is known
    failure_delay_seconds: float = 0.1  # before a refusal is sent
    session_ms_max: int = 0  # until a client must authenticate again; 0: never


class _Step(Enum):
    BEGIN = "begin"
    HANDSHAKE = "handshake"
    EXCHANGE = "exchange"
    DONE = "done"


_ACCEPTED = {
    _Step.BEGIN: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    _Step.HANDSHAKE: frozenset({ApiKey.SASL_HANDSHAKE}),
    _Step.EXCHANGE: frozenset({ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE}),
    _Step.DONE: frozenset[int](),
}


class Authentication:
    """One session's authentication. For the node's event loop."""

    def __init__(
        self,
        session: Session,
        rules: AuthenticationRules,
        mechanisms: Mechanisms,
        *,
        logins: Logins,
        now: Callable[[], float],
    ) -> None:
        """``now`` is steady, in seconds."""
        self.rules = rules
        # Until this time requests are accepted without a check of the step. -inf: none is.
        self.expires_at = -math.inf
        self.takes_raw_tokens = False
        self._session = session
        self._mechanisms = mechanisms
        self._logins = logins
        self._now = now
        self._step = _Step.BEGIN
        self._rounds_left = ROUNDS_MAX
        self._exchange: Exchange | None = None
        self._mechanism = ""  # of the newest exchange
        self._proved: tuple[Principal, str] | None = None  # the user, and the mechanism
        self._proof: Exchange | None = None  # the exchange that proved it last
        self._began_again_at = -math.inf
        self._session_ms = 0  # of the session; 0: without an end

    @property
    def is_done(self) -> bool:
        """Whether the client is known, and not about to authenticate again."""
        return self._step is _Step.DONE

    @property
    def is_under_way(self) -> bool:
        """Whether the client must send a token next."""
        return self._step is _Step.EXCHANGE

    def admit(self, api_key: int) -> None:
        """Raise ``CloseConnection`` unless a request of this API may be parsed now."""
        self.count_round()
        if api_key not in _ACCEPTED[self._step]:
            reason = f"a request of API {api_key} while the client has to authenticate"
            self._logins.refused(self._session, reason, hint=NO_LOGIN_HINT)
            raise CloseConnection(reason, is_expected=True)

    def count_round(self) -> None:
        """Count a request or a raw token. Raises ``CloseConnection`` above ``ROUNDS_MAX``."""
        self._rounds_left -= 1
        if self._rounds_left < 0:
            reason = f"more than {ROUNDS_MAX} requests without an end of the authentication"
            self._logins.refused(self._session, reason)
            raise CloseConnection(reason, is_expected=True)

    def note_versions(self) -> None:
        """Note that ApiVersions has been answered with the versions."""
        self._step = _Step.HANDSHAKE

    def may_begin(self, *, has_headers: bool = True) -> bool:
        """Return whether a SaslHandshake may begin an exchange now.

        On a live session its tokens must have headers: raw ones could be parsed as requests.
        """
        if self._proved is None:
            return self._step is not _Step.EXCHANGE
        return (
            self._step is _Step.DONE
            and has_headers
            and self._session_ms > 0
            and self._now() - self._began_again_at >= REAUTHENTICATION_SECONDS_MIN
        )

    def begin(self, mechanism: str, *, has_headers: bool) -> None:
        """Begin an exchange; without headers its tokens are raw.

        Raises ``UnsupportedSaslMechanism``.
        """
        if mechanism not in self.rules.mechanisms:
            error = UnsupportedSaslMechanism("the client asks for a mechanism that is not enabled")
            enabled = ", ".join(self.rules.mechanisms)
            self._logins.refused(
                self._session, str(error), hint=f"sasl.enabled.mechanisms are {enabled}"
            )
            raise error
        if self._proved is not None:
            self._began_again_at = self._now()
            self._rounds_left = ROUNDS_MAX
        self.expires_at = -math.inf
        self.takes_raw_tokens = not has_headers
        self._mechanism = mechanism
        self._exchange = self._mechanisms.begin(mechanism, self._session.client_host)
        self._step = _Step.EXCHANGE

    async def answer(self, token: bytes) -> bytes:
        """Return the answer to a token; ``is_done`` shows whether it was the last one.

        Raises ``AuthenticationFailed``, and ``CloseConnection``.
        """
        exchange = self._exchange
        assert exchange is not None, "an exchange has begun"
        self._check_mechanism()
        try:
            answer = await exchange.answer(token)
            if exchange.refusal is not None:
                # Already now: not every client asks for the error.
                self._note_failed(exchange.refusal)
            if exchange.user is not None:
                self._succeed(Principal(USER_KIND, exchange.user), exchange)
        except AuthenticationFailed as failed:
            self._note_failed(failed)
            raise
        return answer

    @property
    def session_ms(self) -> int:
        """The session's time from its authentication on; 0: as long as the connection."""
        return self._session_ms if self.is_done else 0

    # -- a live session --

    def note_changes(self) -> None:
        """Have the session end sooner if its token was removed, or expires sooner than it did."""
        if self._proof is not None and self._proof.may_end_sooner():
            ends_at = self._now() + self._proof.lasts_seconds()
            self.expires_at = min(self.expires_at, ends_at)

    def admit_expired(self, api_key: int) -> None:
        """Raise ``CloseConnection`` unless the API is one of re-authentication."""
        if self.is_under_way:
            self.admit(api_key)
        elif api_key != ApiKey.SASL_HANDSHAKE or not self.may_begin():
            raise CloseConnection("the session has expired", is_expected=True)

    # -- inside --

    def _note_failed(self, failed: AuthenticationFailed) -> None:
        reason = f"authentication failed, {self._mechanism}: {failed.reason or failed}"
        hint = TOKEN_HINT if self._mechanism == OAUTHBEARER_MECHANISM else FAILED_HINT
        if self._exchange is not None and self._exchange.is_by_token:
            hint = DELEGATION_TOKEN_HINT
        self._logins.refused(self._session, reason, hint=hint)

    def _check_mechanism(self) -> None:
        """Raise ``CloseConnection`` unless a live session keeps its mechanism.

        As in Kafka, the first token shows it, and gets no answer.
        """
        if self._proved is not None and self._proved[1] != self._mechanism:
            reason = f"{self._mechanism} for a session that was authenticated by {self._proved[1]}"
            self._logins.refused(self._session, reason)
            raise CloseConnection(reason, is_expected=True)

    def _succeed(self, principal: Principal, exchange: Exchange) -> None:
        """Let the session act as the principal. Raises ``AuthenticationFailed``."""
        if self._proved is not None and self._proved[0] != principal:
            raise AuthenticationFailed(
                "Cannot change principals during re-authentication from"
                f" {_with_dot(self._proved[0])}: {_with_dot(principal)}",
                reason="another user than before",
            )
        self._proved = principal, self._mechanism
        self._exchange, self._proof = None, exchange
        self._step = _Step.DONE
        self._session.become(principal, exchange.groups, is_by_token=exchange.is_by_token)
        lasts_ms = min(self.rules.session_ms_max or math.inf, exchange.lasts_seconds() * 1000)
        self._session_ms = 0 if lasts_ms == math.inf else int(lasts_ms) or 1
        self.expires_at = self._now() + lasts_ms / 1000
        self._logins.accepted(self._session, self._mechanism)


def _with_dot(principal: Principal) -> str:
    return f"{principal.kind}.{principal.name}"
