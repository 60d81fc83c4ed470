"""A follower's connection to one leader: one request at a time, answers in one buffer.

Answers are received straight into a buffer that is kept from one to the next; what is
handed out is a view of it, good until the next request.
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

RESPONSE_BYTES_MAX = 1 << 30
BUFFER_BYTES_MIN = 65_536
BUFFER_BYTES_KEPT = 16_777_216  # a larger buffer is let go once its answer is used

_SIZE = struct.Struct(">i")


class LeaderConnection(asyncio.BufferedProtocol):
    """Made by ``connect``. For one task at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._answer: asyncio.Future[memoryview] | None = None
        self._is_closed = False

    @classmethod
    async def connect(cls, host: str, port: int) -> LeaderConnection:
        """Return an open connection. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        return connection

    async def exchange(self, request: bytes | bytearray, *, timeout_s: float) -> memoryview:
        """Send a request, size included, and return its answer, size left out.

        The view is good until the next call. Raises ``OSError`` where the connection is
        lost or closed, ``TimeoutError``; it can only be closed then.
        """
        assert self._answer is None, "one request at a time"
        if self._is_closed or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        if len(self._buffer) > BUFFER_BYTES_KEPT:
            self._resize(BUFFER_BYTES_MIN)
        self._filled = 0
        self._answer = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._fail, TimeoutError("no answer"))
        try:
            self._transport.write(request)
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None

    def close(self) -> None:
        """Close now; a request under way fails with ``ConnectionAbortedError``."""
        self._is_closed = True
        self._fail(ConnectionAbortedError("the connection was closed here"))
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is under way."""
        self._is_closed = True
        self._fail(ConnectionResetError(str(exc or "closed by the leader")))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of bytes that have come."""
        self._filled += nbytes
        if self._filled < 4:
            return
        (size_bytes,) = _SIZE.unpack_from(self._buffer)
        end = 4 + size_bytes
        answer = self._answer
        if not 0 <= size_bytes <= RESPONSE_BYTES_MAX or self._filled > end or answer is None:
            self._fail(ConnectionAbortedError("the leader sends what was not asked for"))
            self.close()
        elif self._filled == end:
            if not answer.done():
                answer.set_result(self._view[4:end])
            if self._filled == len(self._buffer):
                self._resize(2 * len(self._buffer))  # There is always room to read into.
        elif end > len(self._buffer):
            self._resize(end + 1)

    # -- inside

    def _resize(self, size_bytes: int) -> None:
        # A new one each time: views of the old one may still be in use.
        grown = bytearray(size_bytes)
        kept = min(self._filled, size_bytes)
        grown[:kept] = self._view[:kept]
        self._buffer, self._view = grown, memoryview(grown)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
