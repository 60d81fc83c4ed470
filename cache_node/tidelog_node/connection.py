"""One client connection: frames in, answers out, in the order of the requests.

A frame is a 32-bit size and that many bytes. Bytes are received into a buffer that
all connections of the loop share, and every whole frame in it is handled on the spot;
only an unfinished frame is kept, in a buffer of the connection's own, and the rest of
it is received straight into place. So an idle connection owns no buffer, and a frame is
never copied once more than its first part.

The handler answers at once (the usual case for Produce and Fetch, and no task or future
is made), or later (long polls, acks that wait), or by a call that must be run
(control requests: one after the other per connection, as clients expect of their own
requests, and only while the answers before are out). An answer that is ready waits for
those before it. Answers are written by this object alone: bytes gathered into one send,
file slices with ``sendfile``; where the socket is full it waits to be writable, and where a
slice is on the disk alone, for another thread to read it. While too many requests or answers
wait, nothing more is read.

Requests that came in whole are carried out even if the client has left meanwhile: who
sends LeaveGroup and hangs up means it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog_core.model import FileSlice

from tidelog_node import page_cache
from tidelog_node.owed_reply import OwedReply, Reply, Segment

logger = logging.getLogger(__name__)

DeferredCall = Callable[[], Coroutine[Any, Any, Reply]]

SCRATCH_BYTES = 131_072
KEPT_BYTES_MAX = 4_194_304  # a larger buffer is let go once its frame is handled
KEPT_BYTES_MIN = 4_096
KEPT_GROWTH = 4  # times what has come: a size field alone costs no memory
QUEUED_CONTROL_BYTES_MAX = 1_048_576  # of requests that wait for those before them
UNSENT_SEGMENTS_MAX = 128  # more than this, and no further request is read
GATHER_SEGMENTS_MAX = 64
SLICE_BYTES_PER_TURN = 1_048_576  # of a file, before the loop's other connections have theirs
SLICE_BYTES_READ_IN = 2_097_152  # of a file on the disk, at a time
DISK_THREADS = 4  # that read slices from the disk
REQUEST_BYTES_MIN = 8  # api key, version, correlation id

_SIZE = struct.Struct(">i")


class CloseConnection(Exception):
    """The connection cannot go on; ``reason`` says why, for the log."""

    def __init__(self, reason: str, *, is_expected: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_expected = is_expected


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, and which of our addresses they reached."""

    client_host: str
    client_port: int
    listener_host: str
    _on_close: dict[Callable[[Peer], None], None] = field(default_factory=dict, compare=False)

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Have it called, once, when the connection is closed. It must not raise."""
        self._on_close[callback] = None

    def closed(self) -> None:
        """Call those who want to know that the connection is closed."""
        callbacks = tuple(self._on_close)
        self._on_close.clear()
        for callback in callbacks:
            callback(self)


class ConnectionOwner(Protocol):
    """Who holds the connections and awaits their tasks."""

    def forget(self, connection: Connection) -> None:
        """Note that the connection is closed."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task that the owner awaits."""


class FrameHandler(Protocol):
    """What turns one frame into an answer."""

    def __call__(
        self, frame: memoryview, peer: Peer
    ) -> Reply | OwedReply | asyncio.Future[Reply] | DeferredCall | None:
        """Return the answer, what will be the answer, or ``None`` where none is owed.

        The frame is writable and valid only during the call. Raises
        ``CloseConnection``.
        """


class LoopBuffers:
    """What the connections of one loop share."""

    __slots__ = ("disk", "queued_requests_max", "request_bytes_max", "scratch")

    def __init__(self, *, request_bytes_max: int, queued_requests_max: int) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.disk = ThreadPoolExecutor(DISK_THREADS, "tidelog-disk")
        self.request_bytes_max = request_bytes_max
        self.queued_requests_max = queued_requests_max


class Connection:
    """A socket, its unfinished frame, its waiting and its unsent answers."""

    __slots__ = (
        "_buffers",
        "_checked_of_slice",
        "_control",
        "_control_bytes",
        "_fd",
        "_handle",
        "_is_closed",
        "_is_drain_due",
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
        "_sent_of_slice",
        "_socket",
        "_unsent",
        "_waiting",
        "active_at",
        "peer",
    )

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        *,
        handle: FrameHandler,
        buffers: LoopBuffers,
        loop: asyncio.AbstractEventLoop,
        owner: ConnectionOwner,
    ) -> None:
        self.peer = peer
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
        self._waiting: deque[Reply | OwedReply | asyncio.Future[Reply]] = deque()
        self._is_drain_due = False  # the loop will call for owed replies that are settled
        self._control: deque[tuple[DeferredCall, asyncio.Future[Reply], int]] = deque()
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
        if self._kept_end == 0:
            self._kept = None

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
                extra={"client": f"{self.peer.client_host}:{self.peer.client_port}"}
                | {"reason": reason},
            )
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        for entry in self._waiting:
            if isinstance(entry, asyncio.Future):
                entry.cancel()
            elif isinstance(entry, OwedReply):
                entry.give_up()
        self._waiting.clear()
        self._unsent.clear()
        self._is_writing = False
        self._kept = None
        self._socket.close()
        self._start_control()
        self.peer.closed()
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
            self._kept_end += count
            if self._kept_end - self._kept_start >= self._needed:
                self._handle_kept()
            elif self._kept_end == len(kept):
                self._grow_kept()
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
            if len(kept) > KEPT_BYTES_MAX or len(kept) < SCRATCH_BYTES:
                self._kept = None
        elif self._is_reading:
            left = bytes(kept[position : self._kept_end])
            kept[: len(left)] = left
            self._kept_start, self._kept_end = 0, len(left)
            self._grow_kept()

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
                self._needed = 4 + size
                break
            try:
                answer = handle_frame(buffer[position + 4 : frame_end], self.peer)
            except CloseConnection as closing:
                self._close_broken(closing.reason, is_expected=closing.is_expected)
                break
            position = frame_end
            if answer is not None and not self._is_closed:
                self._accept_answer(answer, size)
                if self._must_pause():
                    self._pause()
                    self._needed = 4
                    break
            if self._is_closed:
                break
        return position

    def _keep(self, rest: memoryview) -> None:
        kept = self._kept
        size_bytes = max(self._needed, len(rest), KEPT_BYTES_MIN)
        if kept is None or len(kept) < size_bytes:
            room_bytes = max(KEPT_GROWTH * len(rest), KEPT_BYTES_MIN)
            size_bytes = max(min(size_bytes, room_bytes), len(rest) + KEPT_BYTES_MIN)
            kept = self._kept = memoryview(bytearray(size_bytes))
        kept[: len(rest)] = rest
        self._kept_start, self._kept_end = 0, len(rest)

    def _grow_kept(self) -> None:
        """Make room for the unfinished frame, more the more of it has come."""
        kept = self._kept
        assert kept is not None
        if len(kept) >= self._needed and self._kept_end < len(kept):
            return
        growth = KEPT_GROWTH if self._kept_end <= KEPT_BYTES_MAX else 2
        size_bytes = min(self._needed, growth * self._kept_end)
        grown = memoryview(bytearray(max(size_bytes, self._kept_end + KEPT_BYTES_MIN)))
        grown[: self._kept_end] = kept[: self._kept_end]
        self._kept = grown

    def _close_broken(self, reason: str, *, is_expected: bool = False) -> None:
        if self._unsent and not self._is_writing:
            self._send()
        self.close(reason, is_expected=is_expected)

    def _must_pause(self) -> bool:
        if len(self._unsent) > UNSENT_SEGMENTS_MAX and not self._is_writing:
            self._send()
        return (
            len(self._unsent) > UNSENT_SEGMENTS_MAX
            or len(self._waiting) >= self._buffers.queued_requests_max
            or self._control_bytes > QUEUED_CONTROL_BYTES_MAX
        )

    def _pause(self) -> None:
        if self._is_reading and not self._is_closed:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _resume(self) -> None:
        """Go on with the frames that are here, then with the socket."""
        if self._is_reading or self._is_closed or self._is_leaving or self._must_pause():
            return
        self._is_reading = True
        if self._kept_end > self._kept_start:
            self._handle_kept()
        if self._is_reading and not self._is_closed:
            self._loop.add_reader(self._fd, self._on_readable)
        if self._unsent and not self._is_writing and not self._is_closed:
            self._send()

    # -- answers

    def _accept_answer(
        self,
        answer: Reply | OwedReply | asyncio.Future[Reply] | DeferredCall,
        request_bytes: int,
    ) -> None:
        if type(answer) is list and not self._waiting:
            self._unsent.extend(answer)
            return
        if isinstance(answer, OwedReply):
            self._waiting.append(answer)
            answer.on_settled = self._on_settled
            if answer.is_settled:
                self._on_settled()
        elif isinstance(answer, asyncio.Future):
            self._waiting.append(answer)
            answer.add_done_callback(self._on_answered)
        elif callable(answer):
            future: asyncio.Future[Reply] = self._loop.create_future()
            self._waiting.append(future)
            self._control.append((answer, future, request_bytes))
            self._control_bytes += request_bytes
            self._start_control()
        elif self._waiting:
            self._waiting.append(answer)
        else:
            self._unsent.extend(answer)

    def _start_control(self) -> None:
        if self._control and not self._is_running_control and not self._is_writing:
            self._is_running_control = True
            self._owner.spawn(self._run_control())

    async def _run_control(self) -> None:
        """Run the control requests one after the other until none is left.

        Waits, by ending, while the client does not take its answers: they may be large.
        """
        while self._control and not self._is_writing:
            call, future, request_bytes = self._control.popleft()
            try:
                reply = await call()
            except CloseConnection as closing:
                self._control.clear()
                self._is_running_control = False
                self.close(closing.reason, is_expected=closing.is_expected)
                return
            self._control_bytes -= request_bytes
            if not future.done():
                future.set_result(reply)
                self._drain_waiting()
        self._is_running_control = False

    def _on_settled(self) -> None:
        # Not at once: whoever settles this one may be about to settle the next ones, too.
        if not self._is_drain_due:
            self._is_drain_due = True
            self._loop.call_soon(self._drain_settled)

    def _drain_settled(self) -> None:
        self._is_drain_due = False
        if not self._is_closed:
            self._drain_waiting()

    def _on_answered(self, _: asyncio.Future[Reply]) -> None:
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
            elif isinstance(entry, asyncio.Future):
                if not entry.done():
                    break
                problem = None if entry.cancelled() else entry.exception()
                if entry.cancelled() or problem is not None:
                    self._close_failed(problem)
                    return
                entry = entry.result()
            waiting.popleft()
            self._unsent.extend(entry)
        if self._unsent and not self._is_writing:
            self._send()
        if not self._is_reading:
            self._resume()

    def _close_failed(self, problem: BaseException | None) -> None:
        if problem is not None and not isinstance(problem, CloseConnection):
            logger.error("request failed", exc_info=problem)
        self.close(str(problem or "cancelled"), is_expected=False)

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
        if self._is_writing and not self._is_closed:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _await_writable(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._fd, self._on_writable)

    def _ready_bytes(self, head: FileSlice) -> int:
        """Return how much of what is next of the slice may be sent now.

        0 if it is on the disk alone: another thread reads it then. That one only reads from the
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
