"""The time of the event loop that one request takes."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")

NS_PER_PERCENT = 10_000_000  # of a second


class RequestTimer:
    """Counts while the loop works on its request, not while that waits."""

    __slots__ = ("_resumed_ns", "_spent_ns")

    def __init__(self) -> None:
        self._spent_ns = 0
        self._resumed_ns = 0  # 0: paused

    def resume(self) -> None:
        """Count from now on."""
        self._resumed_ns = time.perf_counter_ns()

    def pause(self) -> None:
        """Count no longer."""
        if self._resumed_ns:
            self._spent_ns += time.perf_counter_ns() - self._resumed_ns
            self._resumed_ns = 0

    def take_percents(self) -> float:
        """Return the time counted since the last call, in percent of a second."""
        if self._resumed_ns:
            self.pause()
            self.resume()
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns / NS_PER_PERCENT

    async def counting(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, and count while it runs."""
        return await self._steps(work)

    @coroutine
    def _steps(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        sent, thrown = None, None
        while True:
            self.resume()
            try:
                waits_for = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.pause()
            sent, thrown = None, None
            try:
                sent = yield waits_for
            except BaseException as problem:
                thrown = problem
