"""A token bucket: unused tokens are saved up, to a limit. Source: KIP-599, ``TokenBucket``."""

from __future__ import annotations


class TokenBucket:
    """Tokens that are refilled at a rate. Full at first. It may be overdrawn once."""

    __slots__ = ("_burst_seconds", "_filled_ms", "_tokens")

    def __init__(self, *, window_count: int, size_ms: int) -> None:
        """It holds the tokens of so many windows."""
        self._burst_seconds = window_count * size_ms / 1000
        self._tokens: float | None = None  # ``None``: full
        self._filled_ms = 0

    def take(self, amount: float, rate: float, now_ms: int) -> None:
        """Take tokens from a bucket that gets ``rate`` of them a second."""
        self._tokens = min(self._burst_seconds * rate, self._refilled(rate, now_ms) - amount)

    def is_overdrawn(self, rate: float, now_ms: int) -> bool:
        """Return whether more was taken than there was."""
        return self._refilled(rate, now_ms) < 0

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """Return how long the bucket stays overdrawn, rounded; 0 if it is not."""
        tokens = self._refilled(rate, now_ms)
        return 0 if tokens >= 0 else int(-tokens / rate * 1000 + 0.5)

    def is_full(self, rate: float, now_ms: int) -> bool:
        """Return whether nothing is missing."""
        return self._refilled(rate, now_ms) >= self._burst_seconds * rate

    def _refilled(self, rate: float, now_ms: int) -> float:
        burst = self._burst_seconds * rate
        if self._tokens is None:
            self._tokens = burst
        else:
            elapsed_seconds = (now_ms - self._filled_ms) / 1000
            self._tokens = min(burst, self._tokens + rate * elapsed_seconds)
        self._filled_ms = now_ms
        return self._tokens
