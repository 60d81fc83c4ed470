"""Limits the average rate of uploads.

As in Kafka, a whole segment is sent once those before it are paid for: the rate holds over the
time of several segments and may be exceeded within one.
Source: KIP-956, ``remote.log.manager.copy.max.bytes.per.second``.
"""

from __future__ import annotations


class Bandwidth:
    """A rate in bytes per second that all uploads share. The caller passes the time."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._paid_at = 0.0  # when all bytes taken so far are paid for, in the caller's seconds

    def take(self, size_bytes: int, *, now: float) -> float:
        """Return the seconds to wait before sending ``size_bytes``."""
        start = max(now, self._paid_at)
        self._paid_at = start + size_bytes / self._bytes_per_second
        return start - now
