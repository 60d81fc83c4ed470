"""One client connection: frames in, answers out, in the order of the requests.

A frame is a 32-bit size and that many bytes. Bytes are received into a buffer that all connections
of the loop share, and every whole frame in it is handled at once. Only an unfinished frame is kept
(``kept_frames``). So an idle connection owns no buffer, and at most the first part of a frame is
copied. The connection stops reading until the memory for the frame is granted.

The handler answers at once (the usual case for Produce and Fetch; no task is made), later (long
polls and acks; behind a ``HeldReply`` nothing more is handled until it is released), or by a call
(``ControlReply``: the calls of a connection run one after the other, as clients expect of their
own requests, and only while the answers before are out). A ready answer waits for those before it.
Only this object writes answers: bytes are gathered into one send, file slices go through
``sendfile``. If the socket is full it waits until it is writable. If a slice is on the disk only,
another thread reads it first. While too many requests or answers wait, nothing more is read.

Whole requests are carried out even if the client has disconnected: a client that sends LeaveGroup
and hangs up means it. A held Produce (``HeldReply``) is the exception: it is dropped, unless its
client wanted no answer.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import struct
from collections.abc import Coroutine
from typing import Any, Protocol

from tidelog_node.answers import (
    NO_ANSWER,
    Answer,
    CloseConnection,
    ControlReply,
    HeldReply,
    PendingReply,
    Reply,
    TaskReply,
    bytes_in_memory,
)
from tidelog_node.connections.answer_queue import AnswerQueue
from tidelog_node.connections.departed import has_departed
from tidelog_node.connections.kept_frames import HEAD_BYTES, REQUEST_BYTES_MIN, KeptFrames
from tidelog_node.connections.loop_buffers import LoopBuffers
from tidelog_node.connections.segment_sender import ColdBytes, SegmentSender
from tidelog_node.connections.transport import Transport
from tidelog_node.disk import page_cache
from tidelog_node.partition_pace import NotYet
from tidelog_node.session import Again, Session

logger = logging.getLogger(__name__)

EXPECTED_BYTES_MIN = 131_072  # of a larger request the transport gets the number of missing bytes
FAST_SECONDS = 0.05  # between two receives; a slower client's progress is to be seen
UNSENT_SEGMENTS_MAX = 128  # beyond this no further request is read
UNSENT_BYTES_MAX = 1_048_576  # as UNSENT_SEGMENTS_MAX, without file slices
# The first three bytes of a TLS handshake: its record type, and versions SSL 3.0 to TLS 1.3.
TLS_HELLO_MIN, TLS_HELLO_MAX = 0x160300, 0x160304

_SIZE = struct.Struct(">i")


class ConnectionOwner(Protocol):
    """The owner of connections, which awaits their tasks."""

    def forget(self, connection: Connection) -> None:
        """Note that the connection is closed."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task that the owner awaits."""


class FrameHandler(Protocol):
    """Turns one frame into an answer."""

    def __call__(self, frame: memoryview, session: Session) -> Answer:
        """Return the answer.

        The frame is writable and valid only during the call. Raises
        ``CloseConnection``, and ``NotYet`` if the call must be repeated later.
        """


class Connection:
    """One client's transport, its unfinished frame, its waiting and its unsent answers."""

    __slots__ = (
        "_answers",
        "_awaits_turn",
        "_buffers",
        "_ends",
        "_expects",
        "_fd",
        "_handle",
        "_is_closed",
        "_is_drain_due",
        "_is_held",
        "_is_leaving",
        "_is_reading",
        "_is_running_control",
        "_is_writing",
        "_kept",
        "_loop",
        "_mute_again",
        "_mute_timer",
        "_muted_until",
        "_owner",
        "_sender",
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
        owner: ConnectionOwner,
    ) -> None:
        self.session = session
        self.active_at = loop.time()
        self._transport = transport
        self._fd = transport.fileno()
        self._handle = handle
        self._buffers = buffers
        self._loop = loop
        self._owner = owner
        self._kept = KeptFrames(buffers.memory)
        self._answers = AnswerQueue(buffers.memory)
        self._sender = SegmentSender(transport, session.traffic)
        self._is_drain_due = False  # the loop will call for pending replies that are settled
        self._is_held = False  # by an answer before which nothing further is handled
        self._is_running_control = False
        # Whether sending continues without a call: the loop watches the socket, or a thread reads.
        self._is_writing = False
        self._is_closed = False
        self._is_reading = True
        self._is_leaving = False  # never reads again
        self._ends = False  # as soon as all is answered
        self._expects = False  # the transport knows how much of an unfinished request is to come
        # Its first frame waits for memory to be received into, or for its turn to be handled.
        self._awaits_turn = False
        self._mute_timer: asyncio.TimerHandle | None = None  # while nothing is read for a time
        self._muted_until = 0.0  # the loop's time
        self._mute_again: Again | None = None
        session.mute_connection = self.mute
        session.end_connection = self.end
        loop.add_reader(self._fd, self._on_readable)
        if transport.has_received:  # by a login before, and no event announces it
            loop.call_soon(self._on_readable)

    @property
    def is_answered(self) -> bool:
        """Whether every request so far has had its answer sent."""
        return not self._answers.waiting and not self._sender.unsent and not self._is_writing

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing happens here until the client sends a request or takes an answer."""
        if self._mute_timer is not None:
            return False
        return bool(self._sender.unsent) or not self._answers.waiting

    def mute(self, seconds: float, again: Again | None = None) -> None:
        """Read nothing for so long, or for the longest time of several calls.

        Control requests that were read before, and have not begun, wait too. ``again`` returns,
        at the end of that time, for how many seconds more.
        """
        until = self._loop.time() + seconds
        if self._is_closed or until <= self._muted_until:
            return
        self._muted_until = until
        self._mute_again = again
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._mute_timer = self._loop.call_at(until, self._unmute)
        self._pause()

    def _unmute(self) -> None:
        self._mute_timer = None
        again = self._mute_again
        if again is not None:
            seconds = again()
            if seconds > 0:
                self.mute(seconds, again)
                return
        self.active_at = self._loop.time()
        self._start_control()
        self._resume()

    @property
    def is_abandoned(self) -> bool:
        """Whether the client of a muted connection has closed it and left no request.

        Nothing else tells: while nothing is read, no event does.
        """
        return (
            self._mute_timer is not None
            and not self.arrived_bytes
            and not self._transport.has_received
            and has_departed(self._fd)
        )

    def stop_reading(self) -> None:
        """Take no further request; answer those received."""
        self._is_leaving = True
        self._pause()

    def end(self) -> None:
        """Take no further request, and close once those received are answered.

        A transport may call it while it receives: it has no effect before the loop's next turn.
        """
        if not self._ends:
            self._ends = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self.stop_reading()
        self._resume()

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

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken, without file slices."""
        return bytes_in_memory(self._sender.unsent) + self._answers.ready_bytes()

    @property
    def is_held_up(self) -> bool:
        """Whether the node reads nothing, and not because the client takes no answers."""
        return not self._is_reading and not self._is_writing

    def on_memory(self) -> None:
        """Receive the rest of the unfinished frame."""
        self._on_turn()

    def close(self, reason: str = "", *, is_expected: bool = True) -> None:
        """Close now; answers not yet sent are dropped. A second call does nothing.

        Control requests that came before run on in a task of the owner.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not is_expected:
            self.session.traffic.broken_count += 1
            logger.warning(
                "connection closed",
                extra={"client": f"{self.session.client_host}:{self.session.client_port}"}
                | {"reason": reason},
            )
        self._loop.remove_reader(self._fd)
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self.session.mute_connection = None
        self.session.end_connection = None
        self._answers.give_up(self)
        self._sender.unsent.clear()
        self._is_writing = False
        self._kept.let_go(self)
        self._transport.close()
        self._start_control()
        self.session.closed()
        self._owner.forget(self)

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
            elif self._mute_timer is not None:
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

    def _must_pause(self) -> bool:
        answers, unsent = self._answers, self._sender.unsent
        if len(unsent) > UNSENT_SEGMENTS_MAX and not self._is_writing:
            self._send()
        return (
            self._is_held
            or self._mute_timer is not None
            or len(unsent) > UNSENT_SEGMENTS_MAX
            or answers.sending_bytes + answers.blocked_bytes > UNSENT_BYTES_MAX
            or len(answers.waiting) >= self._buffers.queued_requests_max
            or answers.control_bytes > self._buffers.queued_control_bytes_max
        )

    def _pause(self) -> None:
        if self._is_reading and not self._is_closed:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _resume(self) -> None:
        """Continue with the received frames, then with the socket."""
        if self._is_reading or self._is_closed or self._is_leaving or self._awaits_turn:
            if self._ends and self._is_leaving and self.is_answered:
                self.close("ended by the node")
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

    # -- answers --

    def _accept_answer(self, answer: Answer, request_bytes: int) -> None:
        if isinstance(answer, PendingReply):
            self._accept_pending(answer, request_bytes)
        elif self._answers.waiting:
            self._answers.add_blocked(answer)
            self._answers.count(self)
        else:
            self._sender.unsent.extend(answer)
            if self._is_writing:  # Otherwise it is about to be sent, and nearly always all of it.
                self._answers.sending_bytes += bytes_in_memory(answer)
                self._answers.count(self)

    def _accept_pending(self, answer: PendingReply, request_bytes: int) -> None:
        self._answers.waiting.append(answer)
        answer.on_settled = self._on_settled
        memory = self._buffers.memory
        if isinstance(answer, ControlReply):
            memory.add_control(request_bytes)
            self._answers.add_control(answer, request_bytes)
            self._start_control()
        elif isinstance(answer, HeldReply):
            # The code that makes held replies bounds their bytes.
            self._is_held = True
            answer.on_released = self._on_released
        elif isinstance(answer, TaskReply):
            memory.add_control(request_bytes)
            answer.on_done = functools.partial(memory.give_back_control, request_bytes)
            answer.on_settled = self._drain_settled  # A task settles no other answer.
        if answer.is_settled:
            self._on_settled()

    def _start_control(self) -> None:
        if not self._is_running_control and self._is_control_next():
            self._is_running_control = True
            self._owner.spawn(self._run_control())

    def _is_control_next(self) -> bool:
        """Return whether a control request waits, and for nothing before its own answer."""
        if self._is_closed:
            return bool(self._answers.control)
        return not self._is_writing and self._mute_timer is None and self._answers.is_control_next

    async def _run_control(self) -> None:
        """Run the control requests one after the other while it is their turn.

        Ends where answers before them are pending, and where the client does not take its
        answers, which may be large: ``_start_control`` goes on when they are out.
        """
        reason, is_expected, is_finished = "cancelled", True, False
        last_answer: Reply = NO_ANSWER
        try:
            while self._is_control_next():
                request = self._answers.control.popleft()
                request.reply = await request.call()
                self._answers.control_bytes -= request.request_bytes
                self._buffers.memory.give_back_control(request.request_bytes)
                if not self._is_closed:
                    self._drain_waiting()
            is_finished = True
        except CloseConnection as closing:
            reason, is_expected = closing.reason, closing.is_expected
            last_answer = closing.last_answer
        except Exception as problem:
            logger.exception("request failed")
            reason, is_expected = f"request failed: {problem!r}", False
        finally:
            self._is_running_control = False
            if not is_finished:
                self._buffers.memory.give_back_control(self._answers.drop_control())
                self._sender.unsent.extend(last_answer)
                self._send_unsent()
                self.close(reason, is_expected=is_expected)

    def _on_released(self) -> None:
        self._is_held = False
        self._resume()

    def _on_settled(self) -> None:
        # Not at once: its settler may be about to settle the next ones, too.
        if not self._is_drain_due:
            self._is_drain_due = True
            self._loop.call_soon(self._drain_settled)

    def _drain_settled(self) -> None:
        self._is_drain_due = False
        if not self._is_closed:
            self._drain_waiting()

    def _drain_waiting(self) -> None:
        """Send the answers whose turn has come, then handle the requests that they held back."""
        self._answers.move_ready(self._sender.unsent)
        problem = self._answers.problem
        if problem is not None:
            self._close_failed(problem)
            return
        self._send_unsent()
        self._answers.count(self)
        self._start_control()
        if not self._is_reading:
            self._resume()

    def _close_failed(self, problem: Exception) -> None:
        if not isinstance(problem, CloseConnection):
            logger.error("request failed", exc_info=problem)
        is_expected = isinstance(problem, CloseConnection) and problem.is_expected
        self.close(str(problem), is_expected=is_expected)

    # -- sending --

    def _on_writable(self) -> None:
        self.active_at = self._loop.time()
        self._send()
        self._start_control()
        if not self._is_reading:
            self._resume()

    def _send_unsent(self) -> None:
        """Send, unless sending continues without a call or nothing is unsent."""
        if self._is_writing or self._is_closed:
            return
        if self._sender.unsent or self._transport.wants_write:
            self._send()

    def _send(self) -> None:
        try:
            is_out = self._sender.send()
        except OSError as error:
            self.close(str(error))
            return
        if is_out:
            self._on_sent()
        elif self._sender.cold is not None:
            self._read_in(self._sender.cold)
        else:
            self._await_writable()

    def _on_sent(self) -> None:
        """Note that nothing is unsent."""
        if self._answers.sending_bytes:
            self._answers.sending_bytes = 0
            self._answers.count(self)
        if self._is_writing and not self._is_closed:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _await_writable(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._answers.sending_bytes = max(
                self._answers.sending_bytes, bytes_in_memory(self._sender.unsent)
            )
            self._answers.count(self)
            self._loop.add_writer(self._fd, self._on_writable)

    def _read_in(self, cold: ColdBytes) -> None:
        """Have a thread read the next bytes of the slice, then send on.

        It only reads from its file, so the connection may be closed at any time.
        """
        self._sender.cold = None
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        self._is_writing = True
        reading = self._loop.run_in_executor(self._buffers.disk, page_cache.read_in, *cold)
        reading.add_done_callback(self._on_read_in)

    def _on_read_in(self, reading: asyncio.Future[None]) -> None:
        if not reading.cancelled():
            reading.exception()  # A broken disk shows when sending.
        if not self._is_closed:
            self._is_writing = False
            self._on_writable()


def _wrong_size(size: int, bytes_max: int) -> str:
    if TLS_HELLO_MIN <= size >> 8 <= TLS_HELLO_MAX:
        return "the client begins with TLS, which this listener does not have"
    return f"a request of {size} bytes, allowed are {REQUEST_BYTES_MIN} to {bytes_max}"
