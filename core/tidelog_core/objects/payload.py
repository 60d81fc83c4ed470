"""The bytes of an object that is to be stored, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias


class Chunks:
    """Chunks that follow each other. Nothing changes their bytes.

    A large object is read from files. Read chunk by chunk, no buffer of its whole size is filled
    with zeros first, and nothing is copied.
    """

    __slots__ = ("_size_bytes", "parts")

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self.parts = tuple(parts)
        self._size_bytes = sum(map(len, self.parts))

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._size_bytes

    def __bytes__(self) -> bytes:
        """Return the object's bytes as a whole, which is a copy."""
        return b"".join(self.parts)


Payload: TypeAlias = bytes | Chunks
