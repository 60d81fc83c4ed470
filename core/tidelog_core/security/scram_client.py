"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-512.

    client = ScramClient(mechanism, user, password, nonce=secrets.token_urlsafe(24))
    client_first = client.first_message()
    client_final = client.final_message(server_first)
    client.check(server_final)

Source: RFC 5802, Kafka's ``ScramSaslClient``.
"""

from __future__ import annotations

import hashlib
import hmac

from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MIN,
    ScramMechanism,
    combine,
    keyed_hash,
    salt_password,
)
from tidelog_core.security.scram_messages import (
    TOKEN_EXTENSION,
    base64_of,
    escaped_name,
    parse_server_final,
    parse_server_first,
)

# A server could make its clients compute for as long as it likes.
SERVER_ITERATIONS_MAX = 1_000_000

_HEADER = b"n,,"  # no channel binding, no authorization id


class ScramClient:
    """One exchange."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        *,
        nonce: str,
        is_token: bool = False,
    ) -> None:
        """``nonce`` is random. A delegation token has its id as the user.

        Raises ``ValueError`` for a user that SCRAM cannot name.
        """
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce.encode("ascii")
        self._bare = b"n=%b,r=%b" % (escaped_name(user), self._nonce)
        if is_token:
            self._bare += b",%b=true" % TOKEN_EXTENSION.encode("ascii")
        self._expected_signature = b""

    def first_message(self) -> bytes:
        """Return the message that begins the exchange."""
        return _HEADER + self._bare

    def final_message(self, server_first: bytes) -> bytes:
        """Return the answer to the server's challenge. Raises ``AuthenticationFailed``.

        Takes milliseconds of the processor.
        """
        try:
            first = parse_server_first(server_first)
        except ValueError as error:
            raise AuthenticationFailed(f"The server's challenge: {error}") from None
        if not first.nonce.startswith(self._nonce) or first.nonce == self._nonce:
            raise AuthenticationFailed("The server's nonce does not continue the client's.")
        if not ITERATIONS_MIN <= first.iterations <= SERVER_ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"The server asks for {first.iterations} iterations, not between {ITERATIONS_MIN}"
                f" and {SERVER_ITERATIONS_MAX}."
            )
        mechanism = self._mechanism
        salted = salt_password(
            mechanism, self._password, salt=first.salt, iterations=first.iterations
        )
        client_key = keyed_hash(mechanism, salted, b"Client Key")
        stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
        without_proof = b"c=%b,r=%b" % (base64_of(_HEADER), first.nonce)
        signed = b",".join((self._bare, server_first, without_proof))
        proof = combine(client_key, keyed_hash(mechanism, stored_key, signed))
        server_key = keyed_hash(mechanism, salted, b"Server Key")
        self._expected_signature = keyed_hash(mechanism, server_key, signed)
        return b"%b,p=%b" % (without_proof, base64_of(proof))

    def check(self, server_final: bytes) -> None:
        """Raise ``AuthenticationFailed`` unless the server has the user's keys."""
        try:
            signature = parse_server_final(server_final)
        except ValueError as error:
            raise AuthenticationFailed(f"The server's last message: {error}") from None
        expected = self._expected_signature
        if not expected or not hmac.compare_digest(signature, expected):
            raise AuthenticationFailed("The server does not have the user's keys.")
