"""Calls groups at their deadlines: one queue, and one timer of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tidelog_core.due_queue import DueQueue

K = TypeVar("K", bound=Hashable)

# A process that was stopped or starved finds deadlines passed before it has read the requests that
# arrived in time. When it is this late, it reads for a while before it acts.
STALL_MS = 1000
GRACE_MS = 1000


class Wakeups(Generic[K]):
    """Calls ``wake(key)`` once after the earliest deadline given for the key.

    A deadline that moves later is not moved in the queue: the key wakes early, finds nothing due
    and schedules the later one. So a heartbeat costs nothing here.
    """

    def __init__(self, now_ms: Callable[[], int], wake: Callable[[K], None]) -> None:
        self._now_ms = now_ms
        self._wake = wake
        self._due: DueQueue[K] = DueQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0.0
        self._is_grace = False

    def schedule(self, key: K, at_ms: int) -> None:
        """Wake the key at the latest shortly after ``at_ms``."""
        self._due.put_earlier(key, at_ms)
        self._arm()

    def cancel(self, key: K) -> None:
        """Forget the key."""
        self._due.discard(key)

    def close(self) -> None:
        """Make no more calls."""
        self._due = DueQueue()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        at_ms = self._due.first_due
        if at_ms is None:
            return
        if self._timer is not None:
            if self._timer_at_ms <= at_ms or self._is_grace:
                return
            self._timer.cancel()
        self._arm_in(max(at_ms - self._now_ms(), 0))

    def _arm_in(self, delay_ms: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)
        self._timer_at_ms = self._now_ms() + delay_ms

    def _fire(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        if now_ms - self._timer_at_ms > STALL_MS and not self._is_grace:
            self._is_grace = True
            self._arm_in(GRACE_MS)
            return
        self._is_grace = False
        # In separate turns of the loop: a failing call must not prevent the others.
        for key in self._due.take(now_ms):
            asyncio.get_running_loop().call_soon(self._wake, key)
        self._arm()
