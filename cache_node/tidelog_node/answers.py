"""The results of handlers: an answer, or an object that will have it.

    Reply         the whole answer; empty (``NO_ANSWER``) if the client wants none
    PendingReply  an answer that is settled later, once
    TaskReply     a pending reply that a task settles
    HeldReply     a task's reply; until it is released its connection handles no further request
    ControlReply  a pending reply that a call settles when it is the request's turn

The last three are kinds of ``PendingReply``, so an ``Answer`` is either sent or awaited. A pending
reply is cheaper than a future: completing it does not schedule a callback. One call sends all
replies of a connection that are settled in one turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any

from tidelog_core.model import FileSlice

from tidelog_node.counters import Durations

logger = logging.getLogger(__name__)

Segment = bytes | bytearray | memoryview | FileSlice
Reply = Sequence[Segment]

NO_ANSWER: Reply = ()


class CloseConnection(Exception):
    """The connection must be closed; ``reason`` is for the log.

    A control route may give a ``last_response``. The dispatch table makes ``last_answer`` of it,
    which is sent first, as far as the client takes it at once.
    """

    def __init__(
        self, reason: str, *, is_expected: bool = False, last_response: object = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_expected = is_expected
        self.last_response = last_response
        self.last_answer: Reply = NO_ANSWER


class PendingReply:
    """An answer that is settled later. The connection sets ``on_settled``."""

    __slots__ = ("_durations", "_received_at", "on_settled", "problem", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None  # None: not settled yet, or failed
        self.problem: Exception | None = None  # ends the connection
        self.on_settled: Callable[[], None] | None = None
        self._durations: Durations | None = None
        self._received_at = 0.0

    def count_in(self, durations: Durations, received_at: float) -> None:
        """Count the time from ``received_at``, by ``time.monotonic``, until it is settled."""
        self._durations = durations
        self._received_at = received_at
        if self.is_settled:
            self._count()

    def _count(self) -> None:
        if self._durations is not None:
            self._durations.observe(time.monotonic() - self._received_at)

    @property
    def is_settled(self) -> bool:
        """Whether it has an answer, or has failed."""
        return self.reply is not None or self.problem is not None

    def settle(self, reply: Reply) -> None:
        """Set the answer; nothing is sent before this returns."""
        assert not self.is_settled
        self.reply = reply
        self._count()
        if self.on_settled is not None:
            self.on_settled()

    def fail(self, problem: Exception) -> None:
        """End the connection instead of answering."""
        assert not self.is_settled
        self.problem = problem
        self._count()
        if self.on_settled is not None:
            self.on_settled()

    def give_up(self) -> None:
        """Note that the connection is closed and the answer is not needed."""

    def __await__(self) -> Generator[Any, None, Reply]:
        """Wait for the answer; for callers other than a connection. Raises ``problem``."""
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


class TaskReply(PendingReply):
    """Settled when its task ends. The task is cancelled if the client disconnects before.

    A task may hold a copy of its request: ``on_done``, set by the connection, is called at its end.
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
        """Take the answer from this task, which is not cancelled if it ``outlives_client``."""
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
            self.fail(CloseConnection("cancelled", is_expected=True))  # The node stops.
        elif isinstance(problem, Exception):
            self.fail(problem)
        elif problem is None:
            self.settle(task.result())


class HeldReply(TaskReply):
    """Holds back the client's next requests until the handler releases it.

    The connection sets ``on_released``, and is closed if this fails: a handler fails without a
    release, so that no further request is handled.
    """

    __slots__ = ("on_released",)

    def __init__(self) -> None:
        super().__init__()
        self.on_released: Callable[[], None] | None = None

    def release(self) -> None:
        """Let the connection handle the next requests, also before this is answered."""
        if self.on_released is not None:
            self.on_released()
            self.on_released = None


class ControlReply(PendingReply):
    """Settled by the connection, which runs the call once all earlier requests are answered."""

    __slots__ = ("call", "request_bytes")

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Reply]]) -> None:
        super().__init__()
        self.call = call
        self.request_bytes = 0  # of the frame, which the connection counts


Answer = Reply | PendingReply


def bytes_in_memory(segments: Iterable[Segment]) -> int:
    """Return the bytes of an answer that are not in a file."""
    return sum([len(part) for part in segments if not isinstance(part, FileSlice)])
