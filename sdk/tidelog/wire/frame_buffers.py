"""Buffers for large answers, used again once their records are not.

Records of a fetch are views of the buffer that they were received into, and Arrow's columns may be.
All connections of a client share the buffers, so a client of many nodes keeps no more.
"""

from __future__ import annotations

import asyncio

from tidelog.reused_memory import ReusedMemory, thread_memory

# One that is filled, one that is decoded, those whose records are read meanwhile.
KEPT_BYTES_MAX = 32 * 1024 * 1024
KEPT_S = 5.0  # without a use; then the memory is given back


class FrameBuffers:
    """The buffers of one client. Use it only from its event loop."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._memory = ReusedMemory(kept_bytes_max)
        self._used_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def kept_bytes(self) -> int:
        """Return the bytes that are kept for further answers, with those of answers in use."""
        return self._memory.kept_bytes

    def take(self, size_bytes: int) -> memoryview:
        """Return room for an answer; its content is anything."""
        self.note_use()
        return self._memory.take(size_bytes)[:size_bytes]

    def note_use(self) -> None:
        """Keep memory for a while longer, and that of the thread, which answers are decoded into.

        Small answers have no room of their own, and what they decompress to has.
        """
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(KEPT_S, self._expire, loop)

    def close(self) -> None:
        """Let go of the buffers."""
        self._clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        left_s = self._used_at + KEPT_S - loop.time()
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._expire, loop)
        else:
            self._clear()

    def _clear(self) -> None:
        self._memory.clear()
        thread_memory().clear()  # Answers are decoded in the loop's thread.
