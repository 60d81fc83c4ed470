"""Receives the frames of one connection and has each handled, until reading has to pause.

A frame is a 32-bit size and that many bytes. Bytes are received into a buffer that all connections
of the loop share, and every whole frame in it is handled at once. Only an unfinished frame is kept
(``kept_frames``). So an idle connection owns no buffer, and at most the first part of a frame is
copied. The connection stops reading until the memory for the frame is granted.
"""

from __future__ import annotations

import asyncio
import struct
from abc import abstractmethod
from typing import Protocol

from tidelog_node.answers import Answer, CloseConnection
from tidelog_node.connections.kept_frames import HEAD_BYTES, REQUEST_BYTES_MIN, KeptFrames
from tidelog_node.connections.loop_buffers import LoopBuffers
from tidelog_node.connections.transport import Transport
from tidelog_node.fairness.partition_pace import NotYet
from tidelog_node.requests.session import Session

EXPECTED_BYTES_MIN = 131_072  # of a larger request the transport gets the number of missing bytes
FAST_SECONDS = 0.05  # between two receives; a slower client's progress is to be seen
# The first three bytes of a TLS handshake: its record type, and versions SSL 3.0 to TLS 1.3.
TLS_HELLO_MIN, TLS_HELLO_MAX = 0x160300, 0x160304

_SIZE = struct.Struct(">i")


class FrameHandler(Protocol):
    """Turns one frame into an answer."""

    def __call__(self, frame: memoryview, session: Session) -> Answer:
        """Return the answer.

        The frame is writable and valid only during the call. Raises
        ``CloseConnection``, and ``NotYet`` if the call must be repeated later.
        """


class FrameReceiver:
    """The receiving side of a connection. A subclass takes the answers, and has reading paused."""

    __slots__ = (
        "_awaits_turn",
        "_buffers",
        "_expects",
        "_fd",
        "_handle",
        "_is_closed",
        "_is_leaving",
        "_is_reading",
        "_kept",
        "_loop",
        "_transport",
        "active_at",
        "session",
    )

    def __init__(
        self,
        transport: Transport,
        session: Session,
        *,
        handle: FrameHandler,
        buffers: LoopBuffers,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.session = session
        self.active_at = loop.time()
        self._transport = transport
        self._fd = transport.fileno()
        self._handle = handle
        self._buffers = buffers
        self._loop = loop
        self._kept = KeptFrames(buffers.memory)
        self._is_closed = False
        self._is_reading = True
        self._is_leaving = False  # never reads again
        self._expects = False  # the transport knows how much of an unfinished request is to come
        # Its first frame waits for memory to be received into, or for its turn to be handled.
        self._awaits_turn = False
        loop.add_reader(self._fd, self._on_readable)
        if transport.has_received:  # by a login before, and no event announces it
            loop.call_soon(self._on_readable)

    # -- for the subclass --

    @abstractmethod
    def _accept_answer(self, answer: Answer, request_bytes: int) -> None:
        """Take the answer to a request of so many bytes."""

    @abstractmethod
    def _must_pause(self) -> bool:
        """Return whether no further request may be handled now."""

    @abstractmethod
    def _is_muted(self) -> bool:
        """Return whether a request has muted the connection."""

    @abstractmethod
    def _send_unsent(self) -> None:
        """Send the answers that were taken."""

    @property
    @abstractmethod
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken, without file slices."""

    @property
    @abstractmethod
    def is_held_up(self) -> bool:
        """Whether the node reads nothing, and not because the client takes no answers."""

    @abstractmethod
    def close(self, reason: str = "", *, is_expected: bool = True) -> None:
        """Close now; answers not yet sent are dropped. A second call does nothing."""

    # -- for the memory of requests --

    def release_idle_buffer(self) -> None:
        """Release the receive buffer if no frame is unfinished."""
        if self._kept.buffer is not None and self._kept.end == 0:
            self._kept.let_go(self)

    @property
    def client_host(self) -> str:
        """The client's host."""
        return self.session.client_host

    @property
    def arrived_bytes(self) -> int:
        """Received bytes that are not handled yet, usually of an unfinished frame."""
        return self._kept.end - self._kept.start

    def on_memory(self) -> None:
        """Receive the rest of the unfinished frame."""
        self._on_turn()

    # -- receiving --

    def _on_readable(self) -> None:
        transport = self._transport
        self._receive()
        # No event announces these. They are the rest of one receive, so other clients wait little.
        while transport.has_received and self._is_reading and not self._is_closed:
            self._receive()
        self._send_unsent()

    def _receive(self) -> None:
        kept = self._kept
        buffer = self._buffers.scratch if kept.buffer is None else kept.buffer[kept.end :]
        try:
            count = self._transport.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error))
            return
        if count == 0:
            self.close("closed by the client")
            return
        now = self._loop.time()
        is_fast = now - self.active_at < FAST_SECONDS
        self.active_at = self.session.received_at = now
        self.session.traffic.received_bytes += count
        if kept.buffer is None:
            position = self._handle_frames(buffer, 0, count)
            if position < count and not self._is_closed:
                self._keep(buffer[position:count])
        else:
            was_idle = kept.end == 0
            kept.end += count
            # Bytes received into an idle buffer begin a frame in it.
            if was_idle or kept.end - kept.start >= kept.needed_bytes:
                self._handle_kept()
        if is_fast and kept.needed_bytes > EXPECTED_BYTES_MIN:
            self._expects = True
            self._transport.expect(kept.needed_bytes - (kept.end - kept.start))
        elif self._expects:
            self._expects = False
            self._transport.expect(0)

    def _handle_kept(self) -> None:
        """Handle the whole frames in the kept buffer and move the rest to its front."""
        kept = self._kept
        buffer = kept.buffer
        assert buffer is not None
        position = self._handle_frames(buffer, kept.start, kept.end)
        if self._is_closed:
            return
        kept.start = position
        if position == kept.end:
            kept.empty(self)
        elif self._is_reading:
            self._keep(buffer[position : kept.end])

    def _handle_frames(self, buffer: memoryview, position: int, end: int) -> int:
        """Handle the whole frames in ``buffer[position:end]``; return the first unhandled position.

        Stops early when the connection was closed or must not go on reading.
        """
        handle_frame, bytes_max = self._handle, self._buffers.request_bytes_max
        kept = self._kept
        kept.needed_bytes = 4
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(buffer, position)
            if not REQUEST_BYTES_MIN <= size <= bytes_max:
                self._close_broken(_wrong_size(size, bytes_max))
                break
            frame_end = position + 4 + size
            if frame_end > end:
                kept.needed_bytes = 4 + size if end - position >= HEAD_BYTES else HEAD_BYTES
                break
            try:
                answer = handle_frame(buffer[position + 4 : frame_end], self.session)
            except CloseConnection as closing:
                self._close_broken(closing.reason, is_expected=closing.is_expected)
                break
            except NotYet as held:
                self._awaits_turn = True
                self._pause()
                kept.needed_bytes = 4
                held.wait(self._on_turn)
                break
            position = frame_end
            if answer and not self._is_closed:
                self._accept_answer(answer, size)
                if self._must_pause():
                    self._pause()
                    kept.needed_bytes = 4
                    break
            elif self._is_muted():
                kept.needed_bytes = 4
                break
            if self._is_closed:
                break
        return position

    def _keep(self, rest: memoryview) -> None:
        """Keep the unhandled bytes, and wait for the memory for the rest of their frame."""
        if not self._is_reading:  # It is requests that have to wait.
            self._kept.hold(rest, self)
            return
        try:
            is_granted = self._kept.claim(rest, self)
        except CloseConnection as closing:
            self._close_broken(closing.reason)
            return
        if not is_granted:
            self._awaits_turn = True
            self._pause()

    def _close_broken(self, reason: str, *, is_expected: bool = False) -> None:
        self._send_unsent()
        self.close(reason, is_expected=is_expected)

    def _on_turn(self) -> None:
        self._awaits_turn = False
        self._resume()

    # -- pausing --

    def _pause(self) -> None:
        if self._is_reading and not self._is_closed:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _resume(self) -> None:
        """Continue with the received frames, then with the socket, unless that must wait."""
        if self._is_reading or self._is_closed or self._is_leaving or self._awaits_turn:
            return
        if self._must_pause():
            return
        self._is_reading = True
        if self._kept.end > self._kept.start:
            self._handle_kept()
        if self._is_reading and not self._is_closed:
            self._loop.add_reader(self._fd, self._on_readable)
            if self._transport.has_received:
                self._on_readable()
                return
        self._send_unsent()


def _wrong_size(size: int, bytes_max: int) -> str:
    if TLS_HELLO_MIN <= size >> 8 <= TLS_HELLO_MAX:
        return "the client begins with TLS, which this listener does not have"
    return f"a request of {size} bytes, allowed are {REQUEST_BYTES_MIN} to {bytes_max}"
