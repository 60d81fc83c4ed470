"""Says when a chain has as many pending bytes as it may: then clients are not read.

A chain is full at ``buffer_bytes_max``, and takes requests again once a part of that is pending.
"""

from __future__ import annotations

from tidelog_core.subscribers import Subscribers

from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.chain.pending_appends import PendingAppends

ROOM_PART = 0.75  # a full chain is not full any more once this part of its limit is pending


class ChainFullness:
    """The pending bytes of one chain."""

    def __init__(self, limit_bytes: int, traffic: ChainTraffic) -> None:
        self.is_full = False  # requests of clients must wait
        self.changed = Subscribers[[bool]]()
        self.appends = PendingAppends()
        self._limit_bytes = limit_bytes
        self._traffic = traffic

    def note(self, buffered_bytes: int) -> None:
        """Note how many bytes of records are not committed."""
        self._traffic.buffered_bytes = buffered_bytes
        pending_bytes = buffered_bytes + self.appends.size_bytes
        if self.is_full:
            if pending_bytes < ROOM_PART * self._limit_bytes:
                self._set_full(False)
        elif pending_bytes >= self._limit_bytes:
            self._set_full(True)

    def clear(self) -> None:
        """Forget all pending bytes and acks."""
        self.appends.clear()
        self._traffic.buffered_bytes = 0
        self._set_full(False)

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            self.changed.notify(is_full)
