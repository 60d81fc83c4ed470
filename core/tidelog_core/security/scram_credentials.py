"""The keys that a server stores of a password for SCRAM, and how they are derived.

    SaltedPassword = PBKDF2(password, salt, iterations)
    ClientKey      = HMAC(SaltedPassword, "Client Key")
    StoredKey      = H(ClientKey)                         stored
    ServerKey      = HMAC(SaltedPassword, "Server Key")   stored

The password cannot be read from the stored keys, but it can be guessed offline, and both keys
together are enough to pose as the server. So they are secrets: the ``repr`` hides them.

Source: RFC 5802, RFC 7677; Kafka's ``ScramFormatter``, which does not normalise passwords.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import StrEnum

# Fewer are refused everywhere; more than the maximum cannot be stored. Source: Kafka's
# ``ScramMechanism`` and ``ScramControlManager``.
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
SALT_SIZE_BYTES_MAX = 1024
SALT_SIZE_BYTES = 32  # of salts that Tidelog's own programs make


class ScramMechanism(StrEnum):
    """A mechanism, by the name that clients know it by."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        """Its number in requests. Source: KIP-554; 0 is an unknown mechanism."""
        return 1 if self is ScramMechanism.SCRAM_SHA_256 else 2

    @property
    def hash_name(self) -> str:
        """The name of its hash function in ``hashlib``."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_size_bytes(self) -> int:
        """The size of its keys, proofs and signatures."""
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


MECHANISMS_BY_NUMBER = {mechanism.number: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The stored form of a user's password for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salt_password(
    mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int
) -> bytes:
    """Return the salted password. Takes milliseconds: it is made to be slow."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_from(
    mechanism: ScramMechanism, salted_password: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the stored form of a salted password."""
    client_key = keyed_hash(mechanism, salted_password, b"Client Key")
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=keyed_hash(mechanism, salted_password, b"Server Key"),
        iterations=iterations,
    )


def keyed_hash(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    """Return the HMAC of the message with the mechanism's hash function."""
    return hmac.digest(key, message, mechanism.hash_name)


def combine(first: bytes, second: bytes) -> bytes:
    """Return the exclusive or of two keys of the same size."""
    combined = int.from_bytes(first) ^ int.from_bytes(second)
    return combined.to_bytes(len(first))
