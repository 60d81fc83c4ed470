"""PLAIN: a name and a password, checked against the stored SCRAM keys of the user.

    [authorization id] NUL name NUL password

A check takes PBKDF2 for each mechanism: several milliseconds of a processor, without the
interpreter's lock. So it runs in the executor, and ``KnownPasswords`` keeps digests of passwords
that were right, so that a client that connects often is not checked each time:

    login = parse_plain(message)
    if not known.has(login, credentials):
        await loop.run_in_executor(executor, check_password, login, credentials)
        known.add(login, credentials)

The caller bounds how many checks wait. Source: RFC 4616, Kafka's ``PlainSaslServer``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.scram import OTHER_AUTHORIZATION_ID, ScramCredentials
from tidelog_core.security.scram_credentials import (
    ScramCredential,
    ScramMechanism,
    credential_from,
    salt_password,
)

PLAIN_MECHANISM = "PLAIN"
MESSAGE_SIZE_BYTES_MAX = 8192

KNOWN_PASSWORDS_MAX = 10_000
KNOWN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class PlainLogin:
    """A client's claim."""

    user: str
    password: str = field(repr=False)


def parse_plain(message: bytes) -> PlainLogin:
    """Return the client's claim. Raises ``AuthenticationFailed``."""
    if len(message) > MESSAGE_SIZE_BYTES_MAX:
        raise _refusal("the message is too large")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise _refusal("the message is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationFailed(
            f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}",
            reason="the message does not have three parts",
        )
    authorization_id, user, password = parts
    if not user:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified")
    if authorization_id not in ("", user):
        raise AuthenticationFailed(OTHER_AUTHORIZATION_ID, reason="another authorization id")
    return PlainLogin(user, password)


def check_password(login: PlainLogin, credentials: ScramCredentials) -> None:
    """Raise ``AuthenticationFailed`` unless the password fits one of the user's credentials.

    Takes milliseconds; for any thread. Checks a credential of every mechanism, and decoys in place
    of those that are missing: the time does not show which the user has.
    """
    is_right = False
    for mechanism in ScramMechanism:
        decoy = credentials.decoy(login.user, mechanism)
        found = credentials.find(login.user, mechanism, is_token=False)
        fits = _fits(mechanism, login.password, decoy if found is None else found)
        is_right |= fits and found is not None
    if not is_right:
        raise _refusal("wrong user or password")


class KnownPasswords:
    """Passwords that were right, as digests under a key that only this process has.

    A digest includes the user's stored keys, so a password that was changed or removed is not
    known. For one thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is steady, in seconds."""
        self._clock = clock
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._expiries: OrderedDict[bytes, float] = OrderedDict()

    def has(self, login: PlainLogin, credentials: ScramCredentials) -> bool:
        """Return whether the password was added within ``KNOWN_SECONDS`` and has not changed."""
        expires_at = self._expiries.get(self._digest(login, credentials))
        return expires_at is not None and self._clock() < expires_at

    def add(self, login: PlainLogin, credentials: ScramCredentials) -> None:
        """Keep a password that ``check_password`` has found right with these credentials."""
        now, digest = self._clock(), self._digest(login, credentials)
        self._expiries[digest] = now + KNOWN_SECONDS
        self._expiries.move_to_end(digest)
        while (
            len(self._expiries) > KNOWN_PASSWORDS_MAX or next(iter(self._expiries.values())) <= now
        ):
            self._expiries.popitem(last=False)

    def _digest(self, login: PlainLogin, credentials: ScramCredentials) -> bytes:
        digest = hashlib.blake2b(key=self._key)
        found = (
            credentials.find(login.user, mechanism, is_token=False) for mechanism in ScramMechanism
        )
        for part in (
            *(b"" if one is None else one.stored_key for one in found),
            login.user.encode(),
            login.password.encode(),
        ):
            digest.update(len(part).to_bytes(4))
            digest.update(part)
        return digest.digest()


def _fits(mechanism: ScramMechanism, password: str, credential: ScramCredential) -> bool:
    salted = salt_password(
        mechanism, password, salt=credential.salt, iterations=credential.iterations
    )
    computed = credential_from(
        mechanism, salted, salt=credential.salt, iterations=credential.iterations
    )
    return hmac.compare_digest(computed.stored_key, credential.stored_key)


def _refusal(reason: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        "Authentication failed: Invalid username or password", reason=reason
    )
