"""A follower's connection to one leader: one request at a time, answers in one buffer.

Answers are received straight into a reused buffer. The caller gets a view of it, valid until the
next request.

A conversation (``converse``) passes each whole answer to a callable and sends the request that it
returns at once: without waking a task, without a timer. One more request may be sent before the
answer has arrived (``send_another``).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from tidelog_node.low_water_mark import LowWaterMark

RESPONSE_BYTES_MAX = 1 << 30
BUFFER_BYTES_MIN = 65_536
# A follower is woken once for so many bytes of an answer. The send buffers of nodes grow.
BYTES_PER_WAKE_MAX = 1_048_576
BUFFER_BYTES_KEPT = 16_777_216  # a larger buffer is released once its answer is used

_SIZE = struct.Struct(">i")

NextRequest = Callable[[memoryview], "bytes | bytearray | None"]
"""Takes an answer and returns the next request, ``None`` for none yet."""


class LeaderConnection(asyncio.BufferedProtocol):
    """Made by ``Dialer.dial_leader``. For one task at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._low_water: LowWaterMark | None = None
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._end: asyncio.Future[None] | None = None  # of the conversation, while one runs
        self._next_request: NextRequest | None = None
        self._timeout_s: Callable[[], float] | None = None
        self._deadline = 0.0  # the loop's time, for the awaited answer
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.under_way_count = 0  # requests without an answer yet

    async def exchange(self, request: bytes | bytearray, *, timeout_s: float) -> memoryview:
        """Send a request, with its size field, and return its answer, without.

        The view is valid until the next call. Raises as ``converse``.
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
        """Send a request, then the one that ``next_request`` returns for each answer.

        Ends when it returns ``None`` for the last awaited answer. ``next_request`` is called by the
        event loop's reader, between other connections' turns, never after this has returned or was
        cancelled. Requests include their size field, answers do not. The view of an answer is valid
        until ``next_request`` returns, the last one's until the next request. ``timeout_s`` is
        called with every request. Raises ``OSError`` if the connection is lost or closed,
        ``TimeoutError``, and the errors of ``next_request``; after an error the connection can only
        be closed.
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
        """Send one more request of the conversation before the last answer has arrived."""
        assert self._end is not None, "there is a conversation"
        if not self._end.done():
            self._send(request)

    def close(self) -> None:
        """Close now; a request under way fails with ``ConnectionAbortedError``."""
        self._is_closed = True
        self._fail(ConnectionAbortedError("the connection was closed here"))
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.BufferedProtocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("sslcontext") is None:
            self._low_water = LowWaterMark(
                transport.get_extra_info("socket"), bytes_max=BYTES_PER_WAKE_MAX
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests in flight."""
        self._is_closed = True
        self._fail(ConnectionResetError(str(exc or "closed by the leader")))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the free part of the buffer."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Note received bytes and hand out the answers that they complete."""
        self._filled += nbytes
        missing_bytes = 0
        while self._filled >= 4:
            (size_bytes,) = _SIZE.unpack_from(self._buffer)
            end = 4 + size_bytes
            is_waiting = self._end is not None and not self._end.done()
            if not 0 <= size_bytes <= RESPONSE_BYTES_MAX or not is_waiting:
                self._refuse()
            elif self._filled >= end:
                self._take(end)
                continue
            else:
                missing_bytes = end - self._filled
                if end > len(self._buffer):
                    self._resize(end + 1)
            break
        if self._low_water is not None:
            self._low_water.expect(missing_bytes)

    # -- inside --

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
        """Fail if the deadline has passed; every request since has moved it."""
        self._timer = None
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
        else:
            self._fail(TimeoutError("no answer"))

    def _take(self, end: int) -> None:
        """Hand out the answer that ends there; the bytes behind it belong to the next one."""
        assert self._next_request is not None
        self.under_way_count -= 1
        filled, self._filled = self._filled, 0
        if filled > end and not self.under_way_count:
            self._refuse()
            return
        view = self._view
        try:
            request = self._next_request(view[4:end])
        except Exception as error:  # The task that converses handles it.
            self._fail(error)
            return
        # ``next_request`` may have closed this connection.
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
        self._fail(ConnectionAbortedError("the leader sends data that was not asked for"))
        self.close()

    def _resize(self, size_bytes: int) -> None:
        # A new buffer each time: views of the old one may still be in use.
        grown = bytearray(size_bytes)
        kept = min(self._filled, size_bytes)
        grown[:kept] = self._view[:kept]
        self._buffer, self._view = grown, memoryview(grown)

    def _fail(self, error: Exception) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)
