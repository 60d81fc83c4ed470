"""What a handler returns: the answer itself, or an object that will have it.

    Reply         the answer, whole; empty (``NO_ANSWER``) if the client wants none
    OwedReply     an answer that somebody settles later, once
    TaskReply     an answer that a task works out
    HeldReply     such an answer; until it is released its connection handles nothing further
    ControlReply  an answer that a call works out when it is the request's turn

The last three are kinds of ``OwedReply``, so whoever has an ``Answer`` sends it or awaits it. An
owed reply is cheaper than a future: completing it does not schedule a callback. However many of
one connection's are settled in a turn of the loop, one call sends them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any

from tidelog_core.model import FileSlice

logger = logging.getLogger(__name__)

Segment = bytes | bytearray | memoryview | FileSlice
Reply = Sequence[Segment]

NO_ANSWER: Reply = ()


class CloseConnection(Exception):
    """The connection cannot go on; ``reason`` says why, for the log."""

    def __init__(self, reason: str, *, is_expected: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_expected = is_expected


class OwedReply:
    """Made by a handler, which returns it; the connection sets ``on_settled``."""

    __slots__ = ("on_settled", "problem", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None  # None: not settled yet, or failed
        self.problem: Exception | None = None  # ends the connection
        self.on_settled: Callable[[], None] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether there is an answer, or never will be."""
        return self.reply is not None or self.problem is not None

    def settle(self, reply: Reply) -> None:
        """Hand the answer over; nothing is sent before this returns."""
        assert not self.is_settled
        self.reply = reply
        if self.on_settled is not None:
            self.on_settled()

    def fail(self, problem: Exception) -> None:
        """End the connection instead of answering."""
        assert not self.is_settled
        self.problem = problem
        if self.on_settled is not None:
            self.on_settled()

    def give_up(self) -> None:
        """Take it that nobody waits any more: the connection is closed."""

    def __await__(self) -> Generator[Any, None, Reply]:
        """Wait for the answer where it is not a connection that does. Raises the problem."""
        return self._settled().__await__()

    async def _settled(self) -> Reply:
        if not self.is_settled:
            settled = asyncio.Event()
            self.on_settled = settled.set
            try:
                await settled.wait()
            except asyncio.CancelledError:
                self.give_up()
                raise
        if self.problem is not None:
            raise self.problem
        assert self.reply is not None
        return self.reply


class TaskReply(OwedReply):
    """Settled as the task ends, which is cancelled if the client leaves before.

    A task may hold a copy of its request: the connection has ``on_done`` called when it ends.
    """

    __slots__ = ("_is_given_up", "_outlives_client", "_task", "on_done")

    def __init__(self, task: asyncio.Task[Reply] | None = None) -> None:
        super().__init__()
        self.on_done: Callable[[], None] | None = None
        self._is_given_up = False
        self._outlives_client = False
        self._task: asyncio.Task[Reply] | None = None
        if task is not None:
            self.come_from(task)

    def come_from(self, task: asyncio.Task[Reply], *, outlives_client: bool = False) -> None:
        """Take the answer from this task, which goes on without its client if it is to."""
        self._task = task
        self._outlives_client = outlives_client
        task.add_done_callback(self._on_task_done)

    def give_up(self) -> None:
        """Cancel the task unless it outlives its client."""
        self._is_given_up = True
        if self._task is not None and not self._outlives_client:
            self._task.cancel()

    def _on_task_done(self, task: asyncio.Task[Reply]) -> None:
        if self.on_done is not None:
            self.on_done()
        problem = None if task.cancelled() else task.exception()
        if self._is_given_up:
            if problem is not None:
                reason = repr(problem)
                logger.warning("request of a client that has left failed", extra={"reason": reason})
        elif task.cancelled():
            self.fail(CloseConnection("cancelled"))
        elif isinstance(problem, Exception):
            self.fail(problem)
        elif problem is None:
            self.settle(task.result())


class HeldReply(TaskReply):
    """Made by a handler that has to see to a request before it sees the next of its client.

    The connection sets ``on_released``, and is closed where this fails: a handler that fails does
    not release it before, so that nothing further is handled.
    """

    __slots__ = ("on_released",)

    def __init__(self) -> None:
        super().__init__()
        self.on_released: Callable[[], None] | None = None

    def release(self) -> None:
        """Let the connection go on: what comes next may be handled before this is answered."""
        if self.on_released is not None:
            self.on_released()
            self.on_released = None


class ControlReply(OwedReply):
    """Settled by the connection, which makes the call once the requests before are answered."""

    __slots__ = ("call", "request_bytes")

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Reply]]) -> None:
        super().__init__()
        self.call = call
        self.request_bytes = 0  # of the frame, which the connection counts


Answer = Reply | OwedReply


def bytes_in_memory(segments: Iterable[Segment]) -> int:
    """Return the bytes of an answer that are not in a file."""
    return sum([len(part) for part in segments if not isinstance(part, FileSlice)])
