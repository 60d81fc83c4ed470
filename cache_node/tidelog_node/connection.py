"""One client connection: frames in, answers out, in the order of the requests.

A frame is a 32-bit size and that many bytes. Bytes are received into a buffer that
all connections of the loop share, and every whole frame in it is handled on the spot;
only an unfinished frame is kept, in a buffer of the connection's own, and the rest of
it is received straight into place. So an idle connection owns no buffer, and a frame is
never copied once more than its first part. The memory for it is claimed first, and until it
is granted nothing more is read (``request_memory``).

The handler answers at once (the usual case for Produce and Fetch, and no task is made), or later
(long polls, acks that wait; behind a ``HeldReply`` nothing further is handled before it is
released), or by a call that must be made (``ControlReply``: one after the other per connection, as
clients expect of their own requests, and only while the answers before are out). An answer that
is ready waits for those before it. Answers are written by this object alone: bytes gathered into
one send, file slices with ``sendfile``; where the socket is full it waits to be writable, and where
a slice is on the disk alone, for another thread to read it. While too many requests or answers
wait, nothing more is read.

Requests that came in whole are carried out even if the client has left meanwhile: a client
that sends LeaveGroup and hangs up means it. A Produce that is held (``HeldReply``) is the
exception: it is dropped, unless its client wanted no answer.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from tidelog_core.model import FileSlice

from tidelog_node.answers import (
    Answer,
    CloseConnection,
    ControlReply,
    HeldReply,
    OwedReply,
    Reply,
    Segment,
    TaskReply,
)
from tidelog_node.disk import page_cache
from tidelog_node.partition_pace import NotYet
from tidelog_node.request_memory import (
    RECORDS_API_KEY,
    SHORT_FRAME_BYTES_MAX,
    RequestMemory,
)
from tidelog_node.session import Session

logger = logging.getLogger(__name__)

SCRATCH_BYTES = 131_072
KEPT_BYTES_MAX = 4_194_304  # a larger buffer is let go once its frame is handled
KEPT_BYTES_MIN = 4_096
# A request that carries no records is read into objects, which take much more than its bytes.
CONTROL_REQUEST_BYTES_MAX = 8_388_608
QUEUED_CONTROL_BYTES_MAX = 1_048_576  # of requests that wait for those before them
UNSENT_SEGMENTS_MAX = 128  # more than this, and no further request is read
UNSENT_BYTES_MAX = 1_048_576  # as UNSENT_SEGMENTS_MAX; files apart
COUNTED_ANSWER_BYTES_MIN = 65_536  # fewer bytes of a connection's answers are not counted
GATHER_SEGMENTS_MAX = 64
SLICE_BYTES_PER_TURN = 1_048_576  # of a file, before the loop's other connections have theirs
SLICE_BYTES_READ_IN = 2_097_152  # of a file on the disk, at a time
DISK_THREADS = 4  # that read slices from the disk
REQUEST_BYTES_MIN = 8  # api key, version, correlation id
HEAD_BYTES = 4 + REQUEST_BYTES_MIN

_SIZE = struct.Struct(">i")
_SIZE_API_KEY = struct.Struct(">ih")


class ConnectionOwner(Protocol):
    """Who holds the connections and awaits their tasks."""

    def forget(self, connection: Connection) -> None:
        """Note that the connection is closed."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task that the owner awaits."""


class FrameHandler(Protocol):
    """What turns one frame into an answer."""

    def __call__(self, frame: memoryview, session: Session) -> Answer:
        """Return the answer.

        The frame is writable and valid only during the call. Raises
        ``CloseConnection``, and ``NotYet`` where the call is to be made again.
        """


class LoopBuffers:
    """What the connections of one loop share."""

    __slots__ = (
        "_scratch",
        "disk",
        "memory",
        "queued_control_bytes_max",
        "queued_requests_max",
        "request_bytes_max",
        "scratch",
    )

    def __init__(
        self,
        *,
        request_bytes_max: int,
        queued_requests_max: int,
        queued_request_bytes_max: int,
        frame_seconds_max: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.scratch = self._scratch  # to receive into; shorter while memory is short
        self.disk = ThreadPoolExecutor(DISK_THREADS, "tidelog-disk")
        self.request_bytes_max = request_bytes_max
        self.queued_requests_max = queued_requests_max
        self.queued_control_bytes_max = QUEUED_CONTROL_BYTES_MAX
        self.memory = RequestMemory(
            queued_request_bytes_max,
            frame_seconds_max=frame_seconds_max,
            loop=loop,
            on_short=self._on_short,
        )

    def _on_short(self, is_short: bool) -> None:
        self.scratch = self._scratch[:SHORT_FRAME_BYTES_MAX] if is_short else self._scratch
        self.queued_control_bytes_max = 0 if is_short else QUEUED_CONTROL_BYTES_MAX


class Connection:
    """A socket, its unfinished frame, its waiting and its unsent answers."""

    __slots__ = (
        "_awaits_turn",
        "_blocked_bytes",
        "_buffers",
        "_checked_of_slice",
        "_control",
        "_control_bytes",
        "_counted_answer_bytes",
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
        "_kept_end",
        "_kept_start",
        "_loop",
        "_needed",
        "_owner",
        "_sending_bytes",
        "_sent_of_slice",
        "_socket",
        "_unsent",
        "_waiting",
        "active_at",
        "session",
    )

    def __init__(
        self,
        sock: socket.socket,
        session: Session,
        *,
        handle: FrameHandler,
        buffers: LoopBuffers,
        loop: asyncio.AbstractEventLoop,
        owner: ConnectionOwner,
    ) -> None:
        self.session = session
        self.active_at = loop.time()
        self._socket = sock
        self._fd = sock.fileno()
        self._handle = handle
        self._buffers = buffers
        self._loop = loop
        self._owner = owner
        self._kept: memoryview | None = None  # holds unhandled bytes [_kept_start, _kept_end)
        self._kept_start = 0
        self._kept_end = 0
        self._needed = 0  # bytes of the unfinished frame, its size field included
        self._waiting: deque[Reply | OwedReply] = deque()
        self._is_drain_due = False  # the loop will call for owed replies that are settled
        self._is_held = False  # by an answer before which nothing further is handled
        self._control: deque[ControlReply] = deque()
        self._control_bytes = 0  # of the requests in the queue and of the one under way
        self._is_running_control = False
        self._unsent: deque[Segment] = deque()
        self._sent_of_slice = 0  # bytes of the first unsent slice that are out already
        self._checked_of_slice = 0  # bytes of it that are in memory, or were a moment ago
        # Whether sending goes on by itself: the loop watches for writability, or a thread reads.
        self._is_writing = False
        self._is_closed = False
        self._is_reading = True
        self._is_leaving = False  # never reads again
        # Its first frame waits for memory to be received into, or for its turn to be handled.
        self._awaits_turn = False
        # Of answers that the client has not taken, files apart.
        self._sending_bytes = 0  # of those whose turn has come, until all of them are sent
        self._blocked_bytes = 0  # of those that are ready behind one that is not
        self._counted_answer_bytes = 0  # of both, as the memory of requests knows them
        loop.add_reader(self._fd, self._on_readable)

    @property
    def is_answered(self) -> bool:
        """Whether every request so far has had its answer sent."""
        return not self._waiting and not self._unsent

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing happens here until the client sends a request or takes an answer."""
        return bool(self._unsent) or not self._waiting

    def stop_reading(self) -> None:
        """Take no further request; answer those that came."""
        self._is_leaving = True
        self._pause()

    def release_idle_buffer(self) -> None:
        """Let go of the receive buffer where no frame is unfinished."""
        if self._kept is not None and self._kept_end == 0:
            self._let_go()

    @property
    def client_host(self) -> str:
        """Where the client is."""
        return self.session.client_host

    @property
    def arrived_bytes(self) -> int:
        """How much has come that is not handled yet: of an unfinished frame, as a rule."""
        return self._kept_end - self._kept_start

    @property
    def unsent_bytes(self) -> int:
        """How much of its answers the client has not taken, files apart."""
        return _bytes_in_memory(self._unsent) + self._ready_bytes_waiting()

    @property
    def is_held_up(self) -> bool:
        """Whether the node reads nothing, and not because the client takes no answers."""
        return not self._is_reading and not self._is_writing

    def on_memory(self) -> None:
        """Receive the rest of the unfinished frame."""
        self._on_turn()

    def close(self, reason: str = "", *, is_expected: bool = True) -> None:
        """Close now; answers not yet sent are dropped. A second call does nothing.

        Control requests that came before go on in a task of the owner's.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not is_expected:
            logger.warning(
                "connection closed",
                extra={"client": f"{self.session.client_host}:{self.session.client_port}"}
                | {"reason": reason},
            )
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        for entry in self._waiting:
            if isinstance(entry, OwedReply):
                entry.give_up()
        self._waiting.clear()
        self._unsent.clear()
        self._is_writing = False
        self._let_go()
        self._sending_bytes = self._blocked_bytes = 0
        self._count_answers()
        self._socket.close()
        self._start_control()
        self.session.closed()
        self._owner.forget(self)

    # -- receiving

    def _on_readable(self) -> None:
        kept = self._kept
        try:
            if kept is None:
                count = self._socket.recv_into(self._buffers.scratch)
            else:
                count = self._socket.recv_into(kept[self._kept_end :])
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error))
            return
        if count == 0:
            self.close("closed by the client")
            return
        self.active_at = self._loop.time()
        if kept is None:
            scratch = self._buffers.scratch
            position = self._handle_frames(scratch, 0, count)
            if position < count and not self._is_closed:
                self._keep(scratch[position:count])
        else:
            was_idle = self._kept_end == 0
            self._kept_end += count
            # What comes into an idle buffer makes it one of an unfinished frame.
            if was_idle or self._kept_end - self._kept_start >= self._needed:
                self._handle_kept()
        if self._unsent and not self._is_writing and not self._is_closed:
            self._send()

    def _handle_kept(self) -> None:
        """Handle the whole frames in the kept buffer and move what is left to its front."""
        kept = self._kept
        assert kept is not None
        position = self._handle_frames(kept, self._kept_start, self._kept_end)
        if self._is_closed:
            return
        self._kept_start = position
        if position == self._kept_end:
            self._kept_start = self._kept_end = 0
            size_bytes = len(kept)
            is_worth_keeping = SCRATCH_BYTES <= size_bytes <= KEPT_BYTES_MAX
            if not is_worth_keeping or not self._buffers.memory.keep_idle(self, size_bytes):
                self._let_go()
        elif self._is_reading:
            self._keep(kept[position : self._kept_end])

    def _handle_frames(self, buffer: memoryview, position: int, end: int) -> int:
        """Handle the whole frames in ``buffer[position:end]``; return where the rest starts.

        Stops early when the connection was closed or must not go on reading.
        """
        handle_frame, bytes_max = self._handle, self._buffers.request_bytes_max
        self._needed = 4
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(buffer, position)
            if not REQUEST_BYTES_MIN <= size <= bytes_max:
                self._close_broken(f"a request of {size} bytes, allowed are 8 to {bytes_max}")
                break
            frame_end = position + 4 + size
            if frame_end > end:
                self._needed = 4 + size if end - position >= HEAD_BYTES else HEAD_BYTES
                break
            try:
                answer = handle_frame(buffer[position + 4 : frame_end], self.session)
            except CloseConnection as closing:
                self._close_broken(closing.reason, is_expected=closing.is_expected)
                break
            except NotYet as held:
                self._awaits_turn = True
                self._pause()
                self._needed = 4
                held.wait(self._on_turn)
                break
            position = frame_end
            if answer and not self._is_closed:
                self._accept_answer(answer, size)
                if self._must_pause():
                    self._pause()
                    self._needed = 4
                    break
            if self._is_closed:
                break
        return position

    def _keep(self, rest: memoryview) -> None:
        """Keep what is not handled, and claim the memory for the rest of its frame."""
        arrived_bytes = len(rest)
        if not self._is_reading:  # It is requests that have to wait.
            self._store(rest, arrived_bytes)
            self._buffers.memory.hold(self, arrived_bytes)
            return
        size_bytes = max(self._needed, KEPT_BYTES_MIN)
        api_key = RECORDS_API_KEY  # not known, nor does it matter, while so little has come
        if arrived_bytes >= HEAD_BYTES:
            size, api_key = _SIZE_API_KEY.unpack_from(rest)
            if size > CONTROL_REQUEST_BYTES_MAX and api_key != RECORDS_API_KEY:
                self._close_broken(
                    f"a request of API {api_key} of {size} bytes, "
                    f"allowed are {CONTROL_REQUEST_BYTES_MAX}"
                )
                return
        kept = self._kept
        if kept is not None and size_bytes <= len(kept) <= KEPT_BYTES_MAX:
            size_bytes = len(kept)
        memory = self._buffers.memory
        if memory.claim(self, size_bytes, arrived_bytes=arrived_bytes, api_key=api_key):
            self._store(rest, size_bytes)
        else:
            self._awaits_turn = True
            self._pause()
            self._store(rest, arrived_bytes)

    def _store(self, rest: memoryview, size_bytes: int) -> None:
        """Put ``rest`` at the front of a kept buffer of this size."""
        kept = self._kept
        if kept is None or len(kept) != size_bytes:
            kept = _new_buffer(size_bytes)
        kept[: len(rest)] = rest
        self._kept = kept
        self._kept_start, self._kept_end = 0, len(rest)

    def _let_go(self) -> None:
        self._kept = None
        self._buffers.memory.release(self)

    def _close_broken(self, reason: str, *, is_expected: bool = False) -> None:
        if self._unsent and not self._is_writing:
            self._send()
        self.close(reason, is_expected=is_expected)

    def _on_turn(self) -> None:
        self._awaits_turn = False
        self._resume()

    def _must_pause(self) -> bool:
        if len(self._unsent) > UNSENT_SEGMENTS_MAX and not self._is_writing:
            self._send()
        return (
            self._is_held
            or len(self._unsent) > UNSENT_SEGMENTS_MAX
            or self._sending_bytes + self._blocked_bytes > UNSENT_BYTES_MAX
            or len(self._waiting) >= self._buffers.queued_requests_max
            or self._control_bytes > self._buffers.queued_control_bytes_max
        )

    def _pause(self) -> None:
        if self._is_reading and not self._is_closed:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _resume(self) -> None:
        """Go on with the frames that are here, then with the socket."""
        if self._is_reading or self._is_closed or self._is_leaving or self._awaits_turn:
            return
        if self._must_pause():
            return
        self._is_reading = True
        if self._kept_end > self._kept_start:
            self._handle_kept()
        if self._is_reading and not self._is_closed:
            self._loop.add_reader(self._fd, self._on_readable)
        if self._unsent and not self._is_writing and not self._is_closed:
            self._send()

    # -- answers

    def _accept_answer(self, answer: Answer, request_bytes: int) -> None:
        if isinstance(answer, OwedReply):
            self._accept_owed(answer, request_bytes)
        elif self._waiting:
            self._waiting.append(answer)
            self._blocked_bytes += _bytes_in_memory(answer)
            self._count_answers()
        else:
            self._add_unsent(answer)

    def _accept_owed(self, answer: OwedReply, request_bytes: int) -> None:
        self._waiting.append(answer)
        answer.on_settled = self._on_settled
        memory = self._buffers.memory
        if isinstance(answer, ControlReply):
            memory.add_control(request_bytes)
            answer.request_bytes = request_bytes
            self._control.append(answer)
            self._control_bytes += request_bytes
            self._start_control()
        elif isinstance(answer, HeldReply):
            # Who makes these bounds what they hold together.
            self._is_held = True
            answer.on_released = self._on_released
        elif isinstance(answer, TaskReply):
            memory.add_control(request_bytes)
            answer.on_done = functools.partial(memory.give_back_control, request_bytes)
        if answer.is_settled:
            self._on_settled()

    def _add_unsent(self, answer: Reply) -> None:
        self._unsent.extend(answer)
        if self._is_writing:  # Otherwise it is about to be sent, and nearly always all of it.
            self._sending_bytes += _bytes_in_memory(answer)
            self._count_answers()

    def _start_control(self) -> None:
        if not self._is_running_control and self._is_control_next():
            self._is_running_control = True
            self._owner.spawn(self._run_control())

    def _is_control_next(self) -> bool:
        """Return whether a control request waits, and for no answer before its own."""
        if not self._control:
            return False
        if self._is_closed:
            return True
        return not self._is_writing and self._waiting[0] is self._control[0]

    async def _run_control(self) -> None:
        """Run the control requests one after the other while it is their turn.

        Ends where answers before them are owed, and where the client does not take its
        answers, which may be large: ``_start_control`` goes on when they are out.
        """
        reason, is_expected, is_finished = "cancelled", True, False
        try:
            while self._is_control_next():
                request = self._control.popleft()
                request.reply = await request.call()
                self._control_bytes -= request.request_bytes
                self._buffers.memory.give_back_control(request.request_bytes)
                if not self._is_closed:
                    self._drain_waiting()
            is_finished = True
        except CloseConnection as closing:
            reason, is_expected = closing.reason, closing.is_expected
        except Exception as problem:
            logger.exception("request failed")
            reason, is_expected = f"request failed: {problem!r}", False
        finally:
            self._is_running_control = False
            if not is_finished:
                self._drop_control()
                self.close(reason, is_expected=is_expected)

    def _drop_control(self) -> None:
        """Carry out none of the control requests that are left."""
        self._control.clear()
        self._buffers.memory.give_back_control(self._control_bytes)
        self._control_bytes = 0

    def _count_answers(self) -> None:
        """Have the memory of requests know of the answers; small differences are left out."""
        answer_bytes = self._sending_bytes + self._blocked_bytes
        if answer_bytes < COUNTED_ANSWER_BYTES_MIN:
            answer_bytes = 0
        uncounted_bytes = answer_bytes - self._counted_answer_bytes
        if not answer_bytes and uncounted_bytes:
            self._buffers.memory.release_answer(self)
        elif abs(uncounted_bytes) >= COUNTED_ANSWER_BYTES_MIN:
            self._buffers.memory.hold_answer(self, answer_bytes)
        else:
            return
        self._counted_answer_bytes = answer_bytes

    def _ready_bytes_waiting(self) -> int:
        """Return the bytes of the answers that are ready behind one that is not."""
        size_bytes = 0
        for entry in self._waiting:
            reply = entry.reply if isinstance(entry, OwedReply) else entry
            if reply is not None:
                size_bytes += _bytes_in_memory(reply)
        return size_bytes

    def _on_released(self) -> None:
        self._is_held = False
        self._resume()

    def _on_settled(self) -> None:
        # Not at once: whoever settles this one may be about to settle the next ones, too.
        if not self._is_drain_due:
            self._is_drain_due = True
            self._loop.call_soon(self._drain_settled)

    def _drain_settled(self) -> None:
        self._is_drain_due = False
        if not self._is_closed:
            self._drain_waiting()

    def _drain_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            entry = waiting[0]
            if isinstance(entry, OwedReply):
                if not entry.is_settled:
                    break
                if entry.reply is None:
                    self._close_failed(entry.problem)
                    return
                entry = entry.reply
            waiting.popleft()
            self._unsent.extend(entry)
            self._sending_bytes += _bytes_in_memory(entry)
        if waiting or self._blocked_bytes:
            self._blocked_bytes = self._ready_bytes_waiting()
        if self._unsent and not self._is_writing:
            self._send()
        self._count_answers()
        self._start_control()
        if not self._is_reading:
            self._resume()

    def _close_failed(self, problem: Exception | None) -> None:
        if not isinstance(problem, CloseConnection):
            logger.error("request failed", exc_info=problem)
        is_expected = isinstance(problem, CloseConnection) and problem.is_expected
        self.close(str(problem), is_expected=is_expected)

    # -- sending

    def _on_writable(self) -> None:
        self.active_at = self._loop.time()
        self._send()
        self._start_control()
        if not self._is_reading:
            self._resume()

    def _send(self) -> None:
        """Send what is unsent until it is out, the socket is full or others have waited enough.

        A client that takes what is sent as fast as it comes never fills its socket.
        """
        unsent = self._unsent
        slice_bytes = 0
        try:
            while unsent:
                head = unsent[0]
                if type(head) is FileSlice:
                    if slice_bytes >= SLICE_BYTES_PER_TURN:
                        self._await_writable()
                        return
                    ready_bytes = self._ready_bytes(head)
                    if not ready_bytes:
                        return
                    sent = self._send_slice(head, ready_bytes)
                    if sent < ready_bytes:
                        # It is full: there is no need to be told so by another call.
                        self._await_writable()
                        return
                    slice_bytes += sent
                elif len(unsent) == 1:
                    assert not isinstance(head, FileSlice)
                    sent = self._socket.send(head)
                    if sent == len(head):
                        unsent.clear()
                    else:
                        unsent[0] = memoryview(head)[sent:]
                else:
                    self._send_gathered()
        except BlockingIOError:
            self._await_writable()
            return
        except OSError as error:
            self.close(str(error))
            return
        self._on_sent()

    def _on_sent(self) -> None:
        """Note that nothing is unsent."""
        if self._sending_bytes:
            self._sending_bytes = 0
            self._count_answers()
        if self._is_writing and not self._is_closed:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _await_writable(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._sending_bytes = max(self._sending_bytes, _bytes_in_memory(self._unsent))
            self._count_answers()
            self._loop.add_writer(self._fd, self._on_writable)

    def _ready_bytes(self, head: FileSlice) -> int:
        """Return the number of bytes of the current slice to send in this turn.

        0 if they are on the disk alone: another thread reads it then. That one only reads from the
        file, which it holds, so the connection may be closed meanwhile. A small slice is not
        looked at: it is nearly always what was appended last.
        """
        done = self._sent_of_slice
        left_bytes = head.size_bytes - done
        if head.size_bytes < SCRATCH_BYTES:
            return left_bytes
        if done == self._checked_of_slice:
            size_bytes = min(left_bytes, SLICE_BYTES_READ_IN)
            self._checked_of_slice = done + size_bytes
            position = head.position + done
            if not page_cache.is_in_memory(head.file, position, size_bytes):
                if self._is_writing:
                    self._loop.remove_writer(self._fd)
                self._is_writing = True
                reading = self._loop.run_in_executor(
                    self._buffers.disk, page_cache.read_in, head.file, position, size_bytes
                )
                reading.add_done_callback(self._on_read_in)
                return 0
        return min(self._checked_of_slice - done, SLICE_BYTES_PER_TURN)

    def _on_read_in(self, reading: asyncio.Future[None]) -> None:
        if not reading.cancelled():
            reading.exception()  # What is wrong with the disk shows in sending.
        if not self._is_closed:
            self._is_writing = False
            self._on_writable()

    def _send_slice(self, head: FileSlice, size_bytes: int) -> int:
        done = self._sent_of_slice
        sent = os.sendfile(self._fd, head.file.fileno(), head.position + done, size_bytes)
        if sent == 0:
            raise OSError(f"{head.file.path} ends before byte {head.position + done}")
        if done + sent == head.size_bytes:
            self._unsent.popleft()
            self._sent_of_slice = self._checked_of_slice = 0
        else:
            self._sent_of_slice = done + sent
        return sent

    def _send_gathered(self) -> None:
        unsent = self._unsent
        gathered: list[bytes | bytearray | memoryview] = []
        flags = 0
        for segment in unsent:
            if isinstance(segment, FileSlice):
                flags = socket.MSG_MORE  # the slice follows at once: fill the packet with it
                break
            gathered.append(segment)
            if len(gathered) == GATHER_SEGMENTS_MAX:
                break
        sent = self._socket.sendmsg(gathered, (), flags)
        for segment in gathered:
            size_bytes = len(segment)
            if sent < size_bytes:
                if sent:
                    unsent[0] = memoryview(segment)[sent:]
                break
            sent -= size_bytes
            unsent.popleft()


def _new_buffer(size_bytes: int) -> memoryview:
    """Return a buffer to receive into. A large one takes memory only as it fills.

    And gives it back to the system at once, where an allocator would keep it.
    """
    if size_bytes <= SCRATCH_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _bytes_in_memory(segments: Iterable[Segment]) -> int:
    """Return the bytes of an answer that are not in a file."""
    return sum([len(part) for part in segments if not isinstance(part, FileSlice)])
