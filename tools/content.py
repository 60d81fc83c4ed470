"""A fingerprint of a set of records that does not depend on their order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_MODULUS = 1 << 128


@dataclass(frozen=True, slots=True)
class Content:
    """The number of records, the bytes of their keys and values, and the sum of their hashes.

    A sum does not depend on the order, which differs between steps. It is taken modulo 2^128,
    so two different sets practically never have the same one.
    """

    record_count: int = 0
    size_bytes: int = 0
    hash_sum: int = 0

    @property
    def digest(self) -> str:
        """The hash as 32 hexadecimal digits."""
        return f"{self.hash_sum:032x}"

    def with_record(self, key: bytes | None, value: bytes | None) -> Content:
        """Return the content with one more record."""
        length = -1 if key is None else len(key)
        data = length.to_bytes(4, "big", signed=True) + (key or b"") + (value or b"")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return Content(
            self.record_count + 1,
            self.size_bytes + len(key or b"") + len(value or b""),
            (self.hash_sum + int.from_bytes(digest, "big")) % _MODULUS,
        )

    def merged(self, other: Content) -> Content:
        """Return the content of both sets combined."""
        return Content(
            self.record_count + other.record_count,
            self.size_bytes + other.size_bytes,
            (self.hash_sum + other.hash_sum) % _MODULUS,
        )
