"""The time of the event loop that one request takes."""

from __future__ import annotations

import time

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
