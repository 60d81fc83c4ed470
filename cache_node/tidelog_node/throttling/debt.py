"""The wait of a client while its node's part of a quota changes."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_node.throttling.rate_limit import RateLimit

STEP_SECONDS_MAX = 1.0


class Debt:
    """A client's use above its limit. It is paid off at the limit's rate, as that changes."""

    def __init__(self, limit: RateLimit, wait_ms: int, clock_ms: Callable[[], int]) -> None:
        self._limit = limit
        self._left = wait_ms * limit.rate  # thousandths
        self._rate = limit.rate
        self._clock_ms = clock_ms
        self._paid_ms = clock_ms()

    def step_seconds(self) -> float:
        """Return how long to wait until the next call; 0 if nothing is owed."""
        now_ms = self._clock_ms()
        self._left -= self._rate * (now_ms - self._paid_ms)
        self._paid_ms, self._rate = now_ms, self._limit.rate
        if self._left <= 0:
            return 0.0
        self._limit.note_waiting(now_ms)
        return min(self._left / self._rate / 1000, STEP_SECONDS_MAX)
