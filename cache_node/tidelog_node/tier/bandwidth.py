"""Limits the average rate of uploads.

As in Kafka, a segment goes up whole once those before it are paid for: the rate holds over
the time that a few segments take, and within one it may be exceeded.
Source: KIP-956, ``remote.log.manager.copy.max.bytes.per.second``.
"""

from __future__ import annotations


class Bandwidth:
    """A rate in bytes a second that uploads keep to together. Has no clock of its own."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._paid_at = 0.0  # when all that has been taken is paid for, the caller's seconds

    def take(self, size_bytes: int, *, now: float) -> float:
        """Return how many seconds to wait before so many bytes may be sent."""
        start = max(now, self._paid_at)
        self._paid_at = start + size_bytes / self._bytes_per_second
        return start - now
