"""A clock that a test sets."""

from __future__ import annotations

NOW_MS = 1_700_000_000_000


class Clock:
    """A wall clock that moves only when a test moves it."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms
