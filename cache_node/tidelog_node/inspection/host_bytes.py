"""Bounds the bytes that wait for inspection, for all hosts together and for each."""

from __future__ import annotations

HOST_SHARE = 2  # one host may take the bound divided by this; the rest is for other hosts


class HostBytes:
    """Counts bytes by host. While nothing waits, a batch of any size is accepted."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._of_host: dict[str, int] = {}  # without hosts that have none

    def take(self, host: str, size_bytes: int) -> bool:
        """Count the bytes until ``give_back``; return whether there was room for them."""
        of_host = self._of_host.get(host, 0)
        if self._held_bytes and self._held_bytes + size_bytes > self._bytes_max:
            return False
        if of_host and of_host + size_bytes > self._bytes_max // HOST_SHARE:
            return False
        self._held_bytes += size_bytes
        self._of_host[host] = of_host + size_bytes
        return True

    def give_back(self, host: str, size_bytes: int) -> None:
        """Give back the bytes that ``take`` counted."""
        self._held_bytes -= size_bytes
        self._of_host[host] -= size_bytes
        if not self._of_host[host]:
            del self._of_host[host]
