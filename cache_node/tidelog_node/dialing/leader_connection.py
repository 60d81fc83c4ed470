"""A follower's connection to one leader: one request at a time, answers in one buffer.

Answers are received straight into a buffer that is kept from one to the next; what is
handed out is a view of it, good until the next request.

Who goes on and on (``converse``) is called with each answer as soon as it is whole, and what
it returns is sent then and there: no task is woken for it, and no timer made. One more request
may be sent before the answer has come (``send_another``).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

RESPONSE_BYTES_MAX = 1 << 30
BUFFER_BYTES_MIN = 65_536
BUFFER_BYTES_KEPT = 16_777_216  # a larger buffer is let go once its answer is used

_SIZE = struct.Struct(">i")

NextRequest = Callable[[memoryview], "bytes | bytearray | None"]
"""Takes an answer and returns the next request, ``None`` where there is none for now."""


class LeaderConnection(asyncio.BufferedProtocol):
    """Made by ``connect``. For one task at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._end: asyncio.Future[None] | None = None  # of the conversation, while there is one
        self._next_request: NextRequest | None = None
        self._timeout_s: Callable[[], float] | None = None
        self._deadline = 0.0  # the loop's time, of the answer that is waited for
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.under_way_count = 0  # requests whose answers have not come

    @classmethod
    async def connect(cls, host: str, port: int) -> LeaderConnection:
        """Return an open connection. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        return connection

    async def exchange(self, request: bytes | bytearray, *, timeout_s: float) -> memoryview:
        """Send a request, size included, and return its answer, size left out.

        The view is good until the next call. Raises as ``converse``.
        """
        answers: list[memoryview] = []
        await self.converse(request, answers.append, timeout_s=lambda: timeout_s)
        return answers[0]

    async def converse(
        self,
        request: bytes | bytearray,
        next_request: NextRequest,
        *,
        timeout_s: Callable[[], float],
    ) -> None:
        """Send a request, and what ``next_request`` makes of each answer.

        Until it makes ``None`` of the last answer that is to come. ``next_request`` is called by
        the event loop's reader, between other connections' turns, never after this has returned
        or was cancelled. Requests have their size included, answers left out; an answer's view
        is good until its call returns, the last one's until the next request. ``timeout_s`` is
        asked with every request. Raises ``OSError`` where the connection is lost or closed,
        ``TimeoutError``, and what ``next_request`` raises; the connection can only be closed
        then.
        """
        assert self._end is None, "one request at a time"
        if self._is_closed or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._end = self._loop.create_future()
        self._next_request, self._timeout_s = next_request, timeout_s
        self.under_way_count = 0
        try:
            self._send(request)
            await self._end
        finally:
            self._end = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def send_another(self, request: bytes | bytearray) -> None:
        """Send one more request of the conversation before the last one's answer has come."""
        assert self._end is not None, "there is a conversation"
        if not self._end.done():
            self._send(request)

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
        while self._filled >= 4:
            (size_bytes,) = _SIZE.unpack_from(self._buffer)
            end = 4 + size_bytes
            is_waiting = self._end is not None and not self._end.done()
            if not 0 <= size_bytes <= RESPONSE_BYTES_MAX or not is_waiting:
                self._refuse()
            elif self._filled >= end:
                self._take(end)
                continue
            elif end > len(self._buffer):
                self._resize(end + 1)
            break

    # -- inside

    def _send(self, request: bytes | bytearray) -> None:
        assert self._transport is not None
        assert self._timeout_s is not None
        self.under_way_count += 1
        if not self._filled and len(self._buffer) > BUFFER_BYTES_KEPT:
            self._resize(BUFFER_BYTES_MIN)
        self._deadline = self._loop.time() + self._timeout_s()
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
        self._transport.write(request)

    def _on_timer(self) -> None:
        """Fail if it is time; the deadline has moved on with every request since."""
        self._timer = None
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
        else:
            self._fail(TimeoutError("no answer"))

    def _take(self, end: int) -> None:
        """Hand out the answer that ends there; what follows is of the next one."""
        assert self._next_request is not None
        self.under_way_count -= 1
        filled, self._filled = self._filled, 0
        if filled > end and not self.under_way_count:
            self._refuse()
            return
        view = self._view
        try:
            request = self._next_request(view[4:end])
        except Exception as error:  # It is the business of the task that converses.
            self._fail(error)
            return
        # What was made of the answer may have closed this connection.
        if self._end is None or self._end.done():
            return
        if filled > end:
            self._filled = filled - end
            self._view[: self._filled] = view[end:filled]
        if request is not None:
            self._send(request)
        elif not self.under_way_count:
            self._end.set_result(None)

    def _refuse(self) -> None:
        self._fail(ConnectionAbortedError("the leader sends what was not asked for"))
        self.close()

    def _resize(self, size_bytes: int) -> None:
        # A new one each time: views of the old one may still be in use.
        grown = bytearray(size_bytes)
        kept = min(self._filled, size_bytes)
        grown[:kept] = self._view[:kept]
        self._buffer, self._view = grown, memoryview(grown)

    def _fail(self, error: Exception) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)
