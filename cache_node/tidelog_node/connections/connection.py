"""One client connection: frames in, answers out, in the order of the requests.

``FrameReceiver`` receives the frames. The handler answers at once (the usual case for Produce and
Fetch; no task is made), later (long polls and acks; behind a ``HeldReply`` nothing more is handled
until it is released), or by a call (``ControlReply``: the calls of a connection run one after the
other, and only while the answers before are out). A ready answer waits for those before it. Only
this object writes answers, by its ``AnswerWriter``: bytes are gathered into one send, file slices
go through ``sendfile``. While too many requests or answers wait, nothing more is read.

Whole requests are carried out even if the client has disconnected: a client that sends LeaveGroup
and hangs up means it. A held Produce (``HeldReply``) is the exception: it is dropped, unless its
client wanted no answer.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from tidelog_node.answers import (
    Answer,
    CloseConnection,
    ControlReply,
    HeldReply,
    PendingReply,
    TaskReply,
    bytes_in_memory,
)
from tidelog_node.connections.answer_queue import AnswerQueue
from tidelog_node.connections.answer_writer import AnswerWriter
from tidelog_node.connections.control_requests import run_control_requests
from tidelog_node.connections.departed import has_departed
from tidelog_node.connections.frame_receiver import FrameHandler, FrameReceiver
from tidelog_node.connections.loop_buffers import LoopBuffers
from tidelog_node.connections.mute import Mute
from tidelog_node.connections.segment_sender import SegmentSender
from tidelog_node.connections.transport import Transport
from tidelog_node.requests.session import Again, Session

logger = logging.getLogger(__name__)

UNSENT_SEGMENTS_MAX = 128  # beyond this no further request is read
UNSENT_BYTES_MAX = 1_048_576  # as UNSENT_SEGMENTS_MAX, without file slices


class ConnectionOwner(Protocol):
    """The owner of connections, which awaits their tasks."""

    def forget(self, connection: Connection) -> None:
        """Note that the connection is closed."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task that the owner awaits."""


class Connection(FrameReceiver):
    """One client's requests, its waiting and its unsent answers."""

    __slots__ = (
        "_answers",
        "_ends",
        "_is_drain_due",
        "_is_held",
        "_is_running_control",
        "_mute",
        "_owner",
        "_sender",
        "_writer",
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
        super().__init__(transport, session, handle=handle, buffers=buffers, loop=loop)
        self._owner = owner
        self._answers = AnswerQueue(buffers.memory)
        self._sender = SegmentSender(transport, session.traffic)
        self._writer = AnswerWriter(
            self._sender, self._answers, fd=self._fd, disk=buffers.disk, loop=loop
        )
        self._is_drain_due = False  # the loop will call for pending replies that are settled
        self._is_held = False  # by an answer before which nothing further is handled
        self._is_running_control = False
        self._ends = False  # as soon as all is answered
        self._mute: Mute | None = None  # made when it is first needed
        session.mute_connection = self.mute
        session.end_connection = self.end

    @property
    def is_answered(self) -> bool:
        """Whether every request so far has had its answer sent."""
        is_sent = not self._sender.unsent and not self._writer.is_writing
        return is_sent and not self._answers.waiting

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing happens here until the client sends a request or takes an answer."""
        if self._is_muted():
            return False
        return bool(self._sender.unsent) or not self._answers.waiting

    def mute(self, seconds: float, again: Again | None = None) -> None:
        """Read nothing for so long, or for the longest time of several calls.

        Control requests that were read before, and have not begun, wait too. ``again`` returns,
        at the end of that time, for how many seconds more.
        """
        if self._is_closed:
            return
        if self._mute is None:
            self._mute = Mute(self._loop, self._unmute)
        if self._mute.extend(seconds, again):
            self._pause()

    def _unmute(self) -> None:
        self.active_at = self._loop.time()
        self._start_control()
        self._resume()

    def _is_muted(self) -> bool:
        return self._mute is not None and self._mute.is_on

    @property
    def is_abandoned(self) -> bool:
        """Whether the client of a muted connection has closed it and left no request.

        Nothing else tells: while nothing is read, no event does.
        """
        return (
            self._is_muted()
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

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken, without file slices."""
        return bytes_in_memory(self._sender.unsent) + self._answers.ready_bytes()

    @property
    def is_held_up(self) -> bool:
        """Whether the node reads nothing, and not because the client takes no answers."""
        return not self._is_reading and not self._writer.is_writing

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
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
        self.session.mute_connection = None
        self.session.end_connection = None
        self._answers.give_up(self)
        self._writer.close()
        self._kept.let_go(self)
        self._transport.close()
        self._start_control()
        self.session.closed()
        self._owner.forget(self)

    # -- pausing --

    def _must_pause(self) -> bool:
        answers, unsent = self._answers, self._sender.unsent
        if len(unsent) > UNSENT_SEGMENTS_MAX and not self._writer.is_writing:
            self._send()
        return (
            self._is_held
            or self._is_muted()
            or len(unsent) > UNSENT_SEGMENTS_MAX
            or answers.sending_bytes + answers.blocked_bytes > UNSENT_BYTES_MAX
            or len(answers.waiting) >= self._buffers.queued_requests_max
            or answers.control_bytes > self._buffers.queued_control_bytes_max
        )

    def _resume(self) -> None:
        """Continue to receive, unless that must wait; close if the connection is to end."""
        if self._ends and self._is_leaving and self.is_answered:
            self.close("ended by the node")
        else:
            super()._resume()

    # -- answers --

    def _accept_answer(self, answer: Answer, request_bytes: int) -> None:
        if isinstance(answer, PendingReply):
            self._accept_pending(answer, request_bytes)
        elif self._answers.waiting:
            self._answers.add_blocked(answer)
            self._answers.count(self)
        else:
            self._sender.unsent.extend(answer)
            if self._writer.is_writing:  # Else it is about to be sent, and nearly always all of it.
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
        if not self._is_running_control and self.is_control_next():
            self._is_running_control = True
            work = run_control_requests(self, self._answers, self._buffers.memory)
            self._owner.spawn(work)

    def is_control_next(self) -> bool:
        """Return whether a control request waits, and for nothing before its own answer."""
        if self._is_closed:
            return bool(self._answers.control)
        is_held_up = self._writer.is_writing or self._is_muted()
        return not is_held_up and self._answers.is_control_next

    def on_control_answered(self) -> None:
        """Send the answers whose turn has come, unless the client has left."""
        if not self._is_closed:
            self._drain_waiting()

    def on_control_ended(self, failure: CloseConnection | None) -> None:
        """Note that no control request runs any more; close for ``failure``, if there is one."""
        self._is_running_control = False
        if failure is not None:
            self._sender.unsent.extend(failure.last_answer)
            self._send_unsent()
            self.close(failure.reason, is_expected=failure.is_expected)

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

    def on_writable(self) -> None:
        """Continue to send, then continue the work that waited for it."""
        self.active_at = self._loop.time()
        self._send()
        self._start_control()
        if not self._is_reading:
            self._resume()

    def _send_unsent(self) -> None:
        """Send, unless sending continues without a call or nothing is unsent."""
        if self._writer.is_writing or self._is_closed:
            return
        if self._sender.unsent or self._transport.wants_write:
            self._send()

    def _send(self) -> None:
        try:
            self._writer.send(self)
        except OSError as error:
            self.close(str(error))
