"""A lock that client hosts acquire in rotation, where turns may be long and cannot be interrupted.

Theory of operation. In mere rotation a host waits for a turn of each other host, so one whose turns
take a moment would get one of them for each of ten seconds. So hosts are slow or quick: one is slow
for ``SLOW_SECONDS`` after a turn of more than ``LONG_SECONDS``. After a long turn slow hosts rest
for as long as that took, and the lock is there for quick ones at once. So all slow hosts together
have it half of the time. If no quick host has used it for ``LATELY_SECONDS``, nobody rests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

LONG_SECONDS = 2.0
SLOW_SECONDS = 300.0
LATELY_SECONDS = 60.0

Later = Callable[[float, Callable[[], None]], object]


class LongTurns:
    """Held by one task at a time. For the tasks of one event loop."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, later: Later | None = None
    ) -> None:
        """``clock`` counts seconds; ``later`` calls after some: the loop's, if it is ``None``."""
        self._clock = clock
        self._later = later
        self._holder: tuple[str, float] | None = None  # the host, and since when
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next hosts first
        self._slow = _HostsLately(clock, SLOW_SECONDS)
        self._quick = _HostsLately(clock, LATELY_SECONDS)
        self._rest_count = 0  # that are not over

    async def acquire(self, host: str) -> None:
        """Return once the lock is held; ``release`` must be called afterwards."""
        if not self._slow.has(host):
            self._quick.note(host)
        if self._holder is None and self._may_have(host):
            self._holder = host, self._clock()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # The lock was handed to this task, and others wait for it.
                self.release()
            raise

    def release(self) -> None:
        """Hand the lock to the next host that may have it, if any waits."""
        assert self._holder is not None
        host, since = self._holder
        self._holder = None
        seconds = self._clock() - since
        if seconds > LONG_SECONDS:
            self._slow.note(host)
            self._quick.forget(host)
            if self._quick.has_any():
                self._rest_count += 1
                later = self._later or asyncio.get_running_loop().call_later
                later(seconds, self._end_rest)
        self._serve()

    def _end_rest(self) -> None:
        self._rest_count -= 1
        self._serve()

    def _may_have(self, host: str) -> bool:
        return not self._rest_count or not self._slow.has(host)

    def _serve(self) -> None:
        while self._holder is None:
            host = next((one for one in self._waiting if self._may_have(one)), None)
            if host is None:
                return
            turns = self._waiting[host]
            turn = turns.popleft()
            if turn.done():  # Its task was cancelled: the next one of the host has the turn.
                if not turns:
                    del self._waiting[host]
                continue
            del self._waiting[host]
            if turns:
                self._waiting[host] = turns  # behind the other hosts
            self._holder = host, self._clock()
            turn.set_result(None)


class _HostsLately:
    """The hosts of the last seconds."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._noted: dict[str, float] = {}  # the longest ago first

    def note(self, host: str) -> None:
        """Count the host from now on."""
        self.forget(host)
        self._noted[host] = self._clock()

    def forget(self, host: str) -> None:
        """Do not count the host any more."""
        self._noted.pop(host, None)

    def has(self, host: str) -> bool:
        """Return whether the host counts."""
        return self.has_any() and host in self._noted

    def has_any(self) -> bool:
        """Return whether any host counts."""
        before = self._clock() - self._seconds
        while self._noted:
            oldest = next(iter(self._noted))
            if self._noted[oldest] > before:
                return True
            del self._noted[oldest]
        return False
