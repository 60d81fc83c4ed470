"""Ends a run whose event loop turns and that stands still all the same.

Every phase of a run has its time. One that takes longer is cancelled, and told with the place
of every task. A loop that does not turn any more is the affair of ``supervised``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.chaos.watched_process import StandsStill


class Watchdog:
    """``async with``: what is within raises ``StandsStill`` when its phase takes too long."""

    def __init__(self) -> None:
        self.phase = "start"
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._found = ""

    async def __aenter__(self) -> Watchdog:
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._found and kind is asyncio.CancelledError:
            assert self._task is not None
            self._task.uncancel()
            raise StandsStill(self._found) from None

    def enter(self, phase: str, *, seconds_max: float) -> None:
        """Begin a phase, which ends the one before."""
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds_max, self._end, seconds_max)

    def _end(self, seconds: float) -> None:
        assert self._task is not None
        self._found = f"{seconds:g} s of the phase {self.phase!r} are over:\n{where_tasks_are()}"
        self._task.cancel()


def where_tasks_are() -> str:
    """Return the place of every task of this loop."""
    return "\n".join(f"{task.get_name()}: {where_is(task)}" for task in asyncio.all_tasks())


def where_is(task: asyncio.Task[Any]) -> str:
    """Return the task's place, from its beginning to what it waits for."""
    return " > ".join(_places(task.get_coro()))


def _places(waiting: object) -> Iterator[str]:
    """Yield where a coroutine waits, then where that does for which it waits, and so on."""
    while True:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            return
        yield f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
