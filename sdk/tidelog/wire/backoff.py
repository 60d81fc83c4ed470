"""Waits between retries."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Waits that double from the first to the longest, each varied by up to a fifth.

    The variation keeps clients that lost the same node from reconnecting at the same time.
    """

    def __init__(
        self,
        first_ms: float,
        max_ms: float,
        *,
        uniform: Callable[[float, float], float] | None = None,
    ) -> None:
        self._first_ms, self._max_ms = first_ms, max_ms
        self._uniform = uniform or random.uniform
        self.failure_count = 0

    def reset(self) -> None:
        """Return to the first wait."""
        self.failure_count = 0

    def next_s(self) -> float:
        """Return the next wait in seconds, and double it."""
        wait_ms = self.doubled_ms(self._first_ms, max_ms=self._max_ms)
        self.failure_count += 1
        return wait_ms * self._uniform(0.8, 1.2) / 1000

    def doubled_ms(self, first_ms: float, *, max_ms: float) -> float:
        """Return another time that doubles with each failure."""
        # Avoids huge numbers: 2**20 times any first time exceeds the longest.
        return min(max_ms, first_ms * (1 << min(self.failure_count, 20)))
