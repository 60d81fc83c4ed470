"""Credentials of users who do not exist, so that clients cannot find out who does.

A decoy must look like the credential of a user: it is always the same for a name, on every node,
and has a salt and a number of iterations as users have them. So the salt is derived from a secret
of the cluster, and the rest is taken from the credentials that there are.

If these differ among themselves, each name gets one of their shapes. The choice is that of
rendezvous hashing: a new shape changes few of the decoys.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog_core.security.scram_credentials import (
    ITERATIONS_MIN,
    SALT_SIZE_BYTES,
    ScramCredential,
    ScramMechanism,
)

SECRET_SIZE_BYTES = 32
SHAPES_MAX = 16  # of one mechanism: the most frequent ones
# Kafka's own tools make salts of a random number's digits (``ScramFormatter``).
_KAFKA_SALT_BITS = 130
_KAFKA_SALT = re.compile(rb"[1-9a-z][0-9a-z]{20,25}")
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"


class _Shape(NamedTuple):
    iterations: int
    salt_size_bytes: int  # 0: as Kafka's tools make it


_DEFAULT_SHAPE = _Shape(ITERATIONS_MIN, SALT_SIZE_BYTES)


class Decoys:
    """The decoys of one cluster, at one state of its credentials."""

    def __init__(
        self, secret: bytes, credentials: Mapping[ScramMechanism, Iterable[ScramCredential]]
    ) -> None:
        """``secret`` is known to the cluster's nodes only."""
        self._secret = secret
        self._shapes = {
            mechanism: _shapes(credentials.get(mechanism, ())) for mechanism in ScramMechanism
        }

    def credential(self, name: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the decoy of a name."""
        seed = hmac.digest(self._secret, f"{mechanism}/{name}".encode(), "sha256")
        shape = max(
            self._shapes[mechanism],
            key=lambda one: hmac.digest(seed, b"%d/%d" % one, "sha256"),
        )
        size_bytes = mechanism.key_size_bytes
        keys = hashlib.shake_256(seed + b"keys").digest(2 * size_bytes)
        return ScramCredential(
            salt=_salt(seed, shape),
            stored_key=keys[:size_bytes],
            server_key=keys[size_bytes:],
            iterations=shape.iterations,
        )


def _shapes(credentials: Iterable[ScramCredential]) -> list[_Shape]:
    counts = Counter(_shape(credential) for credential in credentials)
    return [shape for shape, _ in counts.most_common(SHAPES_MAX)] or [_DEFAULT_SHAPE]


def _shape(credential: ScramCredential) -> _Shape:
    is_kafkas = _KAFKA_SALT.fullmatch(credential.salt) is not None
    return _Shape(credential.iterations, 0 if is_kafkas else len(credential.salt))


def _salt(seed: bytes, shape: _Shape) -> bytes:
    stream = hashlib.shake_256(seed + b"salt")
    if shape.salt_size_bytes:
        return stream.digest(shape.salt_size_bytes)
    number = int.from_bytes(stream.digest(17)) >> (17 * 8 - _KAFKA_SALT_BITS)
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
