"""The HMAC of a delegation token, and the keys that a server derives from it.

    HMAC       = HMAC-SHA512(secret key, token id)
    password   = base64(HMAC)                  clients log in with it, by SCRAM
    digest     = SHA-256(HMAC)                 stored: a token is found by it
    credential = SCRAM keys of the password    stored, as those of users

The HMAC itself is never stored: nodes derive it from the secret key, which all of them have. With
another key no stored token fits, so a new key ends all tokens, as in Kafka.

Source: KIP-48, Kafka's ``DelegationTokenManager``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from tidelog_core.errors import InvalidConfig
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MIN,
    SALT_SIZE_BYTES,
    ScramCredential,
    ScramMechanism,
    credential_from,
    salt_password,
)

# A person who has one token can try keys offline. A good key has 32 random bytes.
KEY_SIZE_BYTES_MIN = 16
DIGEST_SIZE_BYTES = 32
_ID_SIZE_BYTES = 16  # random, as in a UUID


class TokenSecret:
    """The secret key of a cluster's tokens. No ``repr`` shows it."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        """Raises ``InvalidConfig``, which does not repeat the key."""
        self._key = key.encode()
        if len(self._key) < KEY_SIZE_BYTES_MIN:
            raise InvalidConfig(
                [
                    f"delegation.token.secret.key must have at least {KEY_SIZE_BYTES_MIN} bytes:"
                    " the owner of a token could guess a shorter one"
                ]
            )

    def hmac(self, token_id: str) -> bytes:
        """Return the HMAC of a token."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def known_hmac(self, token_id: str, digest: bytes) -> bytes | None:
        """Return the HMAC of a stored token, ``None`` if another key made it."""
        found = self.hmac(token_id)
        return found if hmac.compare_digest(token_digest(found), digest) else None


def new_token_id() -> str:
    """Return a random id, in Kafka's form: base64 that does not begin like an option."""
    while True:
        token_id = secrets.token_urlsafe(_ID_SIZE_BYTES)
        if not token_id.startswith("-"):
            return token_id


def token_digest(token_hmac: bytes) -> bytes:
    """Return the digest by which a token is found. It does not show the HMAC."""
    return hashlib.sha256(token_hmac).digest()


def token_password(token_hmac: bytes) -> str:
    """Return the password that clients log in with."""
    return base64.b64encode(token_hmac).decode()


def token_credentials(token_hmac: bytes) -> Mapping[ScramMechanism, ScramCredential]:
    """Return the stored keys of a token for every mechanism. Takes milliseconds: PBKDF2."""
    password = token_password(token_hmac)
    return {mechanism: _credential(mechanism, password) for mechanism in ScramMechanism}


def _credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salt = secrets.token_bytes(SALT_SIZE_BYTES)
    salted = salt_password(mechanism, password, salt=salt, iterations=ITERATIONS_MIN)
    return credential_from(mechanism, salted, salt=salt, iterations=ITERATIONS_MIN)
