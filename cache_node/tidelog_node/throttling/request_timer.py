"""The time of the event loop that one request takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NS_PER_PERCENT: Final = 1e7  # of a second


class RequestTimer:
    """Counts while the loop works on its request, not while that waits."""

    __slots__ = ("_clock_ns", "_is_running", "_spent_ns", "read_ns")

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        """``clock_ns`` is a clock that does not go back."""
        self._clock_ns = clock_ns
        self._is_running = False
        self._spent_ns = 0
        # What the clock showed when it was read last. A small request can pay for few readings, so
        # the rates of quotas use this one.
        self.read_ns = 0

    def resume(self) -> None:
        """Count from now on."""
        self.read_ns = self._clock_ns()
        self._is_running = True

    def pause(self) -> None:
        """Count no longer."""
        if self._is_running:
            self._read()
            self._is_running = False

    def take_percents(self) -> float:
        """Return the time counted since the last call, in percent of a second."""
        self._read()
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns / NS_PER_PERCENT

    def _read(self) -> None:
        now_ns = self._clock_ns()
        if self._is_running:
            self._spent_ns += now_ns - self.read_ns
        self.read_ns = now_ns
