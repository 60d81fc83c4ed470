"""A clock that never goes back, even if the clock that it reads does."""

from __future__ import annotations


class SteadyTime:
    """Adds up the steps forward of a clock, and takes no notice of steps back."""

    __slots__ = ("_last_ms", "now_ms")

    def __init__(self, now_ms: float) -> None:
        self._last_ms = now_ms
        self.now_ms = 0.0

    def advance(self, now_ms: float) -> float:
        """Return the milliseconds that have passed since the beginning."""
        self.now_ms += max(0.0, now_ms - self._last_ms)
        self._last_ms = now_ms
        return self.now_ms
