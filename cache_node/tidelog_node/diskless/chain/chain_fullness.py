"""Says when a chain has as many pending bytes as it may: then clients are not read.

A chain is full at ``buffer_bytes_max``, and takes requests again once a part of that is pending.
"""

from __future__ import annotations

from tidelog_core.subscribers import Subscribers

from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.chain.pending_appends import PendingAppends

ROOM_PART = 0.75  # what is full has room again once less than this part of its limit is pending


def stays_full(pending: float, limit: float, *, was_full: bool) -> bool:
    """Return whether something is full now that this is pending, given whether it was before."""
    return pending >= (ROOM_PART * limit if was_full else limit)


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
        self._set_full(stays_full(pending_bytes, self._limit_bytes, was_full=self.is_full))

    def clear(self) -> None:
        """Forget all pending bytes and acks."""
        self.appends.clear()
        self._traffic.buffered_bytes = 0
        self._set_full(False)

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            self.changed.notify(is_full)
