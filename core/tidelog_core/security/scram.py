"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512: messages in, messages or a refusal out.

    server = ScramServer(mechanism, credentials, nonce=secrets.token_urlsafe(24))
    challenge = server.answer(client_first)
    last_message = server.answer(client_final)
    server.user

A name without a credential takes the same steps with a decoy, and fails where a wrong password
does. So neither the messages nor the time show whether a user exists.

Kafka's rules: no channel binding; an authorization id is empty or the name; ``tokenauth=true``
says that the name is the id of a delegation token, and all other extensions are ignored. Kafka
does not compare the header that the client's second message repeats; here it must be that of the
first. Source: RFC 5802, Kafka's ``ScramSaslServer``.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import Enum
from typing import Protocol

from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    combine,
    keyed_hash,
)
from tidelog_core.security.scram_messages import (
    TOKEN_EXTENSION,
    ClientFirst,
    ServerFirst,
    parse_client_final,
    parse_client_first,
    server_final_message,
    server_first_message,
)

OTHER_AUTHORIZATION_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class ScramCredentials(Protocol):
    """A source of the credentials of users and of delegation tokens."""

    def find(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool
    ) -> ScramCredential | None:
        """Return the credential of the user or the token; ``None`` if there is none."""

    def decoy(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool = False
    ) -> ScramCredential:
        """Return a credential that no password fits, always the same for a name."""


class _Step(Enum):
    FIRST = "first message"
    FINAL = "second message"
    ENDED = "end"


class ScramServer:
    """One exchange. A refusal ends it."""

    def __init__(
        self, mechanism: ScramMechanism, credentials: ScramCredentials, *, nonce: str
    ) -> None:
        """``nonce`` is random, and different in every exchange: ASCII without spaces or commas."""
        self._mechanism = mechanism
        self._credentials = credentials
        self._nonce = nonce.encode("ascii")
        self._step = _Step.FIRST
        self._is_known = False
        self._user: str | None = None

    @property
    def user(self) -> str | None:
        """The name that the client has proved to have, of a user or the id of a token.

        ``None`` before the exchange succeeded.
        """
        return self._user

    @property
    def is_token(self) -> bool:
        """Whether the name is the id of a delegation token. Known after the first message."""
        return self._first.extensions.get(TOKEN_EXTENSION, "").lower() == "true"

    def answer(self, message: bytes) -> bytes:
        """Return the server's next message. Raises ``AuthenticationFailed``."""
        step, self._step = self._step, _Step.ENDED
        match step:
            case _Step.FIRST:
                answer = self._challenge(message)
                self._step = _Step.FINAL
                return answer
            case _Step.FINAL:
                return self._verify(message)
        raise self._refusal("the exchange has ended")

    def _challenge(self, message: bytes) -> bytes:
        try:
            self._first: ClientFirst = parse_client_first(message)
        except ValueError as error:
            raise self._refusal(str(error)) from None
        name = self._first.name
        if self._first.authorization_id not in ("", name):
            raise AuthenticationFailed(OTHER_AUTHORIZATION_ID, reason="another authorization id")
        decoy = self._credentials.decoy(name, self._mechanism, is_token=self.is_token)
        found = self._credentials.find(name, self._mechanism, is_token=self.is_token)
        self._is_known = found is not None and found.iterations >= ITERATIONS_MIN
        self._credential = found if found is not None and self._is_known else decoy
        self._both_nonces = self._first.nonce + self._nonce
        self._server_first = server_first_message(
            ServerFirst(self._both_nonces, self._credential.salt, self._credential.iterations)
        )
        return self._server_first

    def _verify(self, message: bytes) -> bytes:
        try:
            final = parse_client_final(message)
        except ValueError as error:
            raise self._refusal(str(error)) from None
        if not hmac.compare_digest(final.nonce, self._both_nonces):
            raise self._refusal("the nonce is not that of the exchange")
        if final.header != self._first.header:
            raise self._refusal("the header is not that of the first message")
        if len(final.proof) != self._mechanism.key_size_bytes:
            raise self._refusal("the proof has the wrong size")
        mechanism, credential = self._mechanism, self._credential
        signed = b",".join((self._first.bare, self._server_first, final.without_proof))
        client_signature = keyed_hash(mechanism, credential.stored_key, signed)
        client_key = combine(final.proof, client_signature)
        stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
        is_right = hmac.compare_digest(stored_key, credential.stored_key)
        if not (is_right and self._is_known):
            raise self._refusal(self._problem())
        self._user = self._first.name
        return server_final_message(keyed_hash(mechanism, credential.server_key, signed))

    def _problem(self) -> str:
        if self.is_token:
            return "wrong HMAC" if self._is_known else "no such delegation token, or it has expired"
        return "wrong password" if self._is_known else "no such credential"

    def _refusal(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {self._mechanism}",
            reason=reason,
        )
