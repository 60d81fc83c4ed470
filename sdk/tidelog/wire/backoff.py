"""How long to wait before trying again."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Waits that double from the first to the longest, each spread by a fifth.

    The spread keeps clients that lost the same node from coming back in step.
    """

    def __init__(
        self, first_ms: int, max_ms: int, *, uniform: Callable[[float, float], float] | None = None
    ) -> None:
        self._first_ms, self._max_ms = first_ms, max_ms
        self._uniform = uniform or random.uniform
        self.failure_count = 0

    def reset(self) -> None:
        """Forget past failures: the next wait is the first again."""
        self.failure_count = 0

    def next_s(self) -> float:
        """Count one more failure and return how long to wait, in seconds."""
        # Past 2**20 any first wait is over any longest one.
        wait_ms = min(self._max_ms, self._first_ms << min(self.failure_count, 20))
        self.failure_count += 1
        return wait_ms * self._uniform(0.8, 1.2) / 1000
