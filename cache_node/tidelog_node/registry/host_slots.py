"""Slots that client hosts take in rotation, of which one host has a few at most."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TooManyWait(Exception):
    """The host has as many waiting as it may."""


class HostSlots:
    """Limits the calls that run at once. For the tasks of one event loop."""

    def __init__(self, count: int, *, of_host_max: int, waiting_max: int) -> None:
        """``waiting_max`` is of each host."""
        self._free_count = count
        self._of_host_max = of_host_max
        self._waiting_max = waiting_max
        self._held: dict[str, int] = {}  # by host, without those that hold none
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # those to be next first

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Hold a slot. Raises ``TooManyWait``."""
        await self._acquire(host)
        try:
            yield
        finally:
            self._release(host)

    async def _acquire(self, host: str) -> None:
        if self._may_take(host) and host not in self._waiting:
            self._take(host)
            return
        waiting = self._waiting.get(host)
        if waiting is not None and len(waiting) >= self._waiting_max:
            raise TooManyWait(host)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # The slot was handed to this task.
                self._release(host)
            else:
                self._leave(host, turn)
            raise

    def _may_take(self, host: str) -> bool:
        return self._free_count > 0 and self._held.get(host, 0) < self._of_host_max

    def _take(self, host: str) -> None:
        self._free_count -= 1
        self._held[host] = self._held.get(host, 0) + 1

    def _release(self, host: str) -> None:
        self._free_count += 1
        self._held[host] -= 1
        if not self._held[host]:
            del self._held[host]
        while (following := self._following()) is not None:
            waiting = self._waiting.pop(following)
            turn = waiting.popleft()
            if waiting:
                self._waiting[following] = waiting  # after the other hosts
            if not turn.done():  # Else its task was cancelled, and has not run since.
                self._take(following)
                turn.set_result(None)
                return

    def _following(self) -> str | None:
        # Few hosts can hold as many as they may, so the search is short.
        return next((one for one in self._waiting if self._may_take(one)), None)

    def _leave(self, host: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(host)
        if waiting is None or turn not in waiting:
            return  # ``_release`` has passed over it.
        waiting.remove(turn)
        if not waiting:
            del self._waiting[host]
