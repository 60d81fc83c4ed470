"""A lock that client hosts acquire in rotation, whose slow hosts leave half of the time to others.

For turns that may be long and cannot be interrupted. In mere rotation a host waits for a turn of
each other host: beside hosts with turns of ten seconds it would get one short turn in that time.
So a host is slow for ``SLOW_SECONDS`` after a turn of more than ``LONG_SECONDS``. After a long
turn, slow hosts pause for as long as that turn took, and quick ones get the lock at once. So all
slow hosts together hold it half of the time. If no quick host has asked for it in the last
``QUICK_SECONDS``, slow ones do not pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tidelog_node.fairness.host_lock import HostLock

LONG_SECONDS = 2.0
SLOW_SECONDS = 300.0
QUICK_SECONDS = 60.0

CallLater = Callable[[float, Callable[[], None]], object]


class SlowHostLock(HostLock):
    """Held by one task at a time. For the tasks of one event loop."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, call_later: CallLater | None = None
    ) -> None:
        """``clock`` counts seconds. ``call_later`` is the event loop's if it is ``None``."""
        super().__init__()
        self._clock = clock
        self._call_later = call_later
        self._since = 0.0  # when the holder got the lock
        self._slow = _RecentHosts(clock, SLOW_SECONDS)
        self._quick = _RecentHosts(clock, QUICK_SECONDS)
        self._pause_count = 0  # the pauses of slow hosts that are not over

    async def acquire(self, host: str) -> None:
        """Return once the lock is held; ``release`` must be called afterwards."""
        if not self._slow.has(host):
            self._quick.note(host)
        await super().acquire(host)

    def release(self) -> None:
        """Hand the lock to the next host that may hold it, if one waits."""
        assert self._holder is not None
        host, seconds = self._holder, self._clock() - self._since
        if seconds > LONG_SECONDS:
            self._slow.note(host)
            self._quick.forget(host)
            if self._quick.has_any():
                self._pause_count += 1
                call_later = self._call_later or asyncio.get_running_loop().call_later
                call_later(seconds, self._end_pause)
        super().release()

    def _end_pause(self) -> None:
        self._pause_count -= 1
        self._hand_over()

    def _may_hold(self, host: str) -> bool:
        return not self._pause_count or not self._slow.has(host)

    def _begin(self, host: str) -> None:
        super()._begin(host)
        self._since = self._clock()


class _RecentHosts:
    """The hosts that were noted in the last ``seconds``."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._noted: dict[str, float] = {}  # the earliest first

    def note(self, host: str) -> None:
        """Count the host for the next ``seconds``."""
        self.forget(host)
        self._noted[host] = self._clock()

    def forget(self, host: str) -> None:
        """Stop counting the host."""
        self._noted.pop(host, None)

    def has(self, host: str) -> bool:
        """Return whether the host counts."""
        return self.has_any() and host in self._noted

    def has_any(self) -> bool:
        """Return whether any host counts."""
        since = self._clock() - self._seconds
        while self._noted:
            oldest = next(iter(self._noted))
            if self._noted[oldest] > since:
                return True
            del self._noted[oldest]
        return False
