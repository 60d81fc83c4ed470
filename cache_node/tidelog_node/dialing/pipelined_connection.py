"""A connection to a node for requests that follow each other without waiting for their answers.

A node handles the requests of a connection in their order, and answers them in it.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import cast

ANSWER_BYTES_MAX = 1 << 20

_HEAD = struct.Struct(">ii")  # size, correlation id


class PipelinedConnection(asyncio.Protocol):
    """Made by ``Dialer.dial_pipelined``. For one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._error: OSError | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._error is None and self._transport is not None

    def send(self, request: bytes, correlation_id: int) -> asyncio.Future[bytes]:
        """Send a request, with its size; the future gets its answer, without size and id.

        The future raises ``OSError`` if the connection is lost: the node may have acted on it.
        """
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if self._error is not None or self._transport is None:
            answer.set_exception(self._error or ConnectionResetError("not connected"))
            return answer
        self._waiting.append((correlation_id, answer))
        self._transport.write(request)
        return answer

    def close(self) -> None:
        """Close now; requests without an answer fail with ``ConnectionAbortedError``."""
        self._fail(ConnectionAbortedError("the connection was closed here"))

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests without an answer."""
        self._fail(ConnectionResetError(str(exc or "closed by the other node")))

    def data_received(self, data: bytes) -> None:
        """Give out the answers that are complete."""
        received = self._received
        received += data
        while self._error is None and len(received) >= _HEAD.size:
            size_bytes, correlation_id = _HEAD.unpack_from(received)
            if not 4 <= size_bytes <= ANSWER_BYTES_MAX or not self._waiting:
                self._fail(ConnectionAbortedError("the node sends data that was not asked for"))
                return
            end = 4 + size_bytes
            if len(received) < end:
                return
            wanted_id, answer = self._waiting.popleft()
            if correlation_id != wanted_id:
                answer.set_exception(ConnectionAbortedError("an answer to another request"))
                self._fail(ConnectionAbortedError("the node's answers are not in order"))
                return
            body = bytes(memoryview(received)[_HEAD.size : end])
            del received[:end]
            if not answer.done():
                answer.set_result(body)

    def _fail(self, error: OSError) -> None:
        if self._error is not None:
            return
        self._error = error
        waiting, self._waiting = self._waiting, deque()
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(error)
        if self._transport is not None:
            self._transport.abort()
