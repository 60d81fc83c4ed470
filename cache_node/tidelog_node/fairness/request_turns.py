"""Runs large requests in short turns, so that they use at most half of the loop's time.

A request with thousands of elements is handled in short turns. Requests whose turn is over wait
in one queue, and after each turn the loop serves others for as long as the turn took. So large
requests use at most half of the node's time, however many there are, and others wait for one
turn.

Decoding a large request and encoding its answer cannot be cut into turns. A thread does it, for one
request after the other (``LargeRequests``), and pauses in the same way. It serves hosts in
rotation, so more connections do not give a client more of its time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from tidelog_node.fairness.host_lock import HostLock

T = TypeVar("T")
P = ParamSpec("P")

TURN_SECONDS = 0.005
REST_SECONDS = 0.005  # between two turns
ITEMS_PER_CHECK = 8  # handled between two checks of the turn's end
# After this time the next request may begin, also if this one still waits (for the store, say).
HOLD_SECONDS_MAX = 2.0
# Seconds that the lane pauses for a second's work of the thread.
RESTS_PER_WORK = 2.0
REST_SECONDS_MAX = 2.0
# The loop's wait for the interpreter lock while the thread works, after each system call.
SWITCH_SECONDS = 0.000_2


class RequestTurn:
    """The turns of one request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + TURN_SECONDS

    async def step(self) -> None:
        """Return immediately during a turn, else when it is this request's turn again."""
        if self._loop.time() >= self._ends_at:
            await _line_of(self._loop).next_turn()
            self._ends_at = self._loop.time() + TURN_SECONDS

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items, with a ``step`` after every ``ITEMS_PER_CHECK`` of them.

        A request with fewer elements never waits for a turn, however long it has waited for the
        store: otherwise a thousand clients that name one topic each would wait for one another.
        """
        for index, item in enumerate(items, 1):
            if index % ITEMS_PER_CHECK == 0 and self._loop.time() >= self._ends_at:
                await self.step()
            yield item


class _Line:
    """The queue for turns on one loop. It has no reference to the loop: see ``_LINES``."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    async def next_turn(self) -> None:
        """Return when all earlier requests have had a turn, and the loop its pause."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_due:
            self._is_due = True
            loop.call_later(REST_SECONDS, self._begin)
        await turn

    def _begin(self) -> None:
        self._is_due = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            self._is_due = True
            loop = asyncio.get_running_loop()
            loop.call_later(TURN_SECONDS + REST_SECONDS, self._begin)


# A queue is released with its loop: a value with a reference to its key would keep both forever.
_LINES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


def _line_of(loop: asyncio.AbstractEventLoop) -> _Line:
    line = _LINES.get(loop)
    if line is None:
        line = _LINES[loop] = _Line()
    return line


class LargeRequests:
    """The lane of large requests: one after the other, with their hosts in rotation.

    A connection has one control request under way at a time, so it cannot overtake others of
    its host by sending more.
    """

    def __init__(self) -> None:
        self._lane = HostLock()
        self._thread = ThreadPoolExecutor(1, "tidelog-requests")
        self._working_count = 0
        self._usual_switch_seconds = sys.getswitchinterval()

    def close(self) -> None:
        """End the thread after its current work."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[LargeRequest]:
        """Hold the lane for one request; the lane pauses before the next one enters."""
        await self._lane.acquire(host)
        request = LargeRequest(self, asyncio.get_running_loop(), self._lane.release)
        try:
            yield request
        finally:
            request.leave()

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the function, called on the thread."""
        loop = asyncio.get_running_loop()
        self._working_count += 1
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))
        finally:
            self._working_count -= 1
            if not self._working_count:
                sys.setswitchinterval(self._usual_switch_seconds)


class LargeRequest:
    """A request in the lane."""

    def __init__(
        self, lane: LargeRequests, loop: asyncio.AbstractEventLoop, release: Callable[[], None]
    ) -> None:
        self._lane = lane
        self._loop = loop
        self._release = release
        self._worked_seconds = 0.0
        self._has_left = False
        self._leaving = loop.call_later(HOLD_SECONDS_MAX, self.leave)

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the function, called on the lane's thread."""
        return await self._lane.work(self._timed(function), *args, **kwargs)

    def leave(self) -> None:
        """Let the next request in, after a pause. A second call does nothing."""
        self._leaving.cancel()
        if not self._has_left:
            self._has_left = True
            rest_seconds = min(self._worked_seconds * RESTS_PER_WORK, REST_SECONDS_MAX)
            self._loop.call_later(rest_seconds, self._release)

    def _timed(self, function: Callable[P, T]) -> Callable[P, T]:
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._worked_seconds += time.thread_time() - began

        return run
