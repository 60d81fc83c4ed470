"""Waiting for conditions that other processes, threads and tasks bring about."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

SECONDS_MAX = 120.0  # for what takes milliseconds on an idle machine
_PAUSE_SECONDS = 0.02
_ASYNC_PAUSE_SECONDS = 0.002


def eventually(
    holds: Callable[[], bool],
    what: str | Callable[[], str] = "it holds",
    seconds: float = SECONDS_MAX,
) -> None:
    """Return once the condition holds. Raises ``AssertionError`` naming ``what`` if it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, _message(what)
        time.sleep(_PAUSE_SECONDS)


async def eventually_async(
    holds: Callable[[], bool] | Callable[[], Awaitable[bool]],
    what: str | Callable[[], str] = "it holds",
    seconds: float = SECONDS_MAX,
) -> None:
    """Return once the condition holds, while other tasks run. Raises as ``eventually`` does."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < deadline, _message(what)
        await asyncio.sleep(_ASYNC_PAUSE_SECONDS)


def _message(what: str | Callable[[], str]) -> str:
    return f"it never came to be that {what if isinstance(what, str) else what()}"
