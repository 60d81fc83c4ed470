"""The memory of objects that are built from files: chunks that are used again and again.

Memory that is new costs more than to copy into it: the kernel clears each of its pages, and maps
it, when it is first written. So the chunks of an object that was dropped are kept for the next
ones, if nothing refers to them any more: a PUT that was given up may still send from them.
"""

from __future__ import annotations

import os
from collections import deque

from tidelog_core.objects.payload import Chunks

CHUNK_BYTES = 1 << 20
SPACE_BYTES_MIN = 64 * 1024  # less than that at the end of a chunk may stay unused
FREE_COUNT_MAX = 16


class FreeChunks:
    """The chunks that are in no object. Threads may use it at once."""

    def __init__(self) -> None:
        self._free: deque[bytearray] = deque(maxlen=FREE_COUNT_MAX)

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self._free)

    def take(self, size_bytes: int) -> bytearray:
        """Return memory for the rest of an object; it may be smaller, or a little larger."""
        if size_bytes < CHUNK_BYTES // 2:
            return bytearray(size_bytes)
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(CHUNK_BYTES)

    def give_back(self, data: Chunks) -> None:
        """Take the chunks of an object that nobody will read or send from now on.

        Whoever does it nevertheless gets an error, and no other bytes.
        """
        for part in data.parts:
            if not isinstance(part, memoryview) or not isinstance(part.obj, bytearray):
                continue
            chunk = part.obj
            try:
                part.release()
                chunk.append(chunk.pop())  # It has a fixed size while something refers to it.
            except BufferError:
                continue
            if len(chunk) == CHUNK_BYTES:
                self._free.append(chunk)


class ObjectMemory:
    """The body of one object, while it is read from files. Used by one thread."""

    def __init__(self, free: FreeChunks, size_bytes: int) -> None:
        """The body will have this size."""
        self._free = free
        self._left_bytes = size_bytes
        self._chunk = memoryview(b"")
        self._used_bytes = 0  # of that chunk
        self._full: list[memoryview] = []

    def read(self, descriptor: int, size_bytes: int, position: int) -> memoryview:
        """Return what is read from the position of a file on. The next read overwrites it."""
        space_bytes = len(self._chunk) - self._used_bytes
        if space_bytes < min(size_bytes, SPACE_BYTES_MIN):
            self._end_chunk()
            self._chunk = memoryview(self._free.take(max(self._left_bytes, size_bytes)))
        space = self._chunk[self._used_bytes :][:size_bytes]
        return space[: os.preadv(descriptor, [space], position)]

    def keep(self, size_bytes: int) -> None:
        """Have the next read come behind the first bytes of the last one."""
        self._used_bytes += size_bytes
        self._left_bytes -= size_bytes

    def parts(self) -> list[memoryview]:
        """Return the body. Nothing is read after that."""
        self._end_chunk()
        return self._full

    def _end_chunk(self) -> None:
        if self._used_bytes:
            self._full.append(self._chunk[: self._used_bytes])
        self._chunk.release()
        self._used_bytes = 0
