"""The bytes of an object that is to be stored, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

SMALL_BYTES_MAX = 64 * 1024  # chunks up to this size are joined
JOINED_BYTES_MIN = 256 * 1024  # unless a larger one follows


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


class ChunkCollector:
    """Collects the chunks of an object. Runs of small ones are joined: each costs some calls."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._small: list[bytes | memoryview] = []  # behind those
        self._small_bytes = 0

    def extend(self, chunks: Iterable[bytes | memoryview]) -> None:
        """Add chunks, in order."""
        for chunk in chunks:
            if len(chunk) > SMALL_BYTES_MAX:
                self._join()
                self._parts.append(chunk)
                continue
            self._small.append(chunk)
            self._small_bytes += len(chunk)
            if self._small_bytes >= JOINED_BYTES_MIN:
                self._join()

    def collected(self, head: bytes) -> Chunks:
        """Return the object: the head and all added parts. Nothing can be added afterwards."""
        self._join()
        return Chunks([head, *self._parts])

    def _join(self) -> None:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small, self._small_bytes = [], 0
