"""Waiting for conditions that other processes, threads and tasks bring about."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator

SECONDS_MAX = 120.0  # for what takes milliseconds on an idle machine
# A short wait ends soon after its condition holds. A long one looks less often: each look takes
# processor time from the programs that the test waits for.
_PAUSE_SECONDS = 0.005, 0.05  # the first, and the longest
_ASYNC_PAUSE_SECONDS = 0.002, 0.02
_PAUSE_GROWTH = 1.2


def eventually(
    holds: Callable[[], bool],
    what: str | Callable[[], str] = "it holds",
    seconds: float = SECONDS_MAX,
) -> None:
    """Return once the condition holds. Raises ``AssertionError`` naming ``what`` if it never does."""
    deadline = time.monotonic() + seconds
    pauses = _pauses(*_PAUSE_SECONDS)
    while not holds():
        assert time.monotonic() < deadline, _message(what)
        time.sleep(next(pauses))


async def eventually_async(
    holds: Callable[[], bool] | Callable[[], Awaitable[bool]],
    what: str | Callable[[], str] = "it holds",
    seconds: float = SECONDS_MAX,
) -> None:
    """Return once the condition holds, while other tasks run. Raises as ``eventually`` does."""
    deadline = time.monotonic() + seconds
    pauses = _pauses(*_ASYNC_PAUSE_SECONDS)
    while True:
        found = holds()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < deadline, _message(what)
        await asyncio.sleep(next(pauses))


def _pauses(pause: float, longest: float) -> Iterator[float]:
    while True:
        yield pause
        pause = min(pause * _PAUSE_GROWTH, longest)


def _message(what: str | Callable[[], str]) -> str:
    return f"it never came to be that {what if isinstance(what, str) else what()}"
