"""Counts the time of the event loop that a coroutine takes, not the time for which it waits."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from tidelog_node.throttling.request_timer import RequestTimer

T = TypeVar("T")


async def counted(work: Coroutine[Any, Any, T], timer: RequestTimer) -> T:
    """Await ``work``; the timer counts while it runs."""
    return await _steps(work, timer)


@coroutine
def _steps(work: Coroutine[Any, Any, T], timer: RequestTimer) -> Generator[Any, Any, T]:
    sent, thrown = None, None
    while True:
        timer.resume()
        try:
            waits_for = work.send(sent) if thrown is None else work.throw(thrown)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            timer.pause()
        sent, thrown = None, None
        try:
            sent = yield waits_for
        except BaseException as problem:
            thrown = problem
