"""Buffers for large answers, used again once nothing refers to their bytes.

A new buffer of some megabytes costs more than the bytes that are received into it: it is filled
with zeros, and the system has to find its pages. Records of a fetch are views of the buffer, so it
is free when the last of them is: only then a bytearray can be resized.
"""

from __future__ import annotations

import asyncio

KEPT_MAX = 3  # one that is filled, and those whose records are read meanwhile
KEPT_SIZE_BYTES_MAX = 16 * 1024 * 1024  # of one
KEPT_S = 5.0  # without a large answer; then the memory is given back


class FrameBuffers:
    """Belongs to one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._kept: list[bytearray] = []
        self._used_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, size_bytes: int) -> memoryview:
        """Return room for an answer; its content is anything."""
        self._used_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(KEPT_S, self._expire)
        for number, buffer in enumerate(self._kept):
            if _is_free(buffer):
                if len(buffer) >= size_bytes:
                    return memoryview(buffer)[:size_bytes]
                del self._kept[number]  # A larger one takes its place.
                break
        made = bytearray(size_bytes)
        if size_bytes <= KEPT_SIZE_BYTES_MAX and len(self._kept) < KEPT_MAX:
            self._kept.append(made)
        return memoryview(made)

    def close(self) -> None:
        """Let go of the buffers."""
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        left_s = self._used_at + KEPT_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._expire)
        else:
            self._kept.clear()


def _is_free(buffer: bytearray) -> bool:
    """Whether there is no view of the buffer."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
