"""An event loop whose clock jumps to the next deadline instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "every task waits, and no deadline is left"
            self.now += max(timeout, 0)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For tests without threads and sockets: timers fire in order, without waiting."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # Deadlines this close count as reached; the clock jumps exactly onto them.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        """Let time pass as if the process had been stopped."""
        self._jumping.now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. Fails if tasks are still running."""
    loop = VirtualTimeLoop()
    try:
        result = loop.run_until_complete(main)
        left = asyncio.all_tasks(loop)
        assert not left, f"tasks were left running: {left}"
        return result
    finally:
        loop.close()
