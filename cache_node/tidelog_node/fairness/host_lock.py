"""A lock that client hosts acquire in rotation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog_node.fairness.host_queue import HostQueue


class HostLock:
    """Held by one task at a time. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._queue: HostQueue[asyncio.Future[None]] = HostQueue()
        self._holder: str | None = None  # the host of the task that holds the lock

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Hold the lock once it is the host's turn and the task is the host's oldest."""
        await self.acquire(host)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, host: str) -> None:
        """Return once the lock is held; ``release`` must be called afterwards."""
        if self._holder is None and self._may_hold(host):
            self._begin(host)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(host, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # The lock was handed to this task, and others wait for it.
                self.release()
            raise

    def release(self) -> None:
        """Hand the lock to the oldest task of the host whose turn it is, if any task waits."""
        self._holder = None
        self._hand_over()

    def _hand_over(self) -> None:
        while self._holder is None:
            host = next(filter(self._may_hold, self._queue), None)
            if host is None:
                return
            turn = self._queue.take_of(host)
            if not turn.done():
                self._queue.end_turn(host)
                self._begin(host)
                turn.set_result(None)

    def _begin(self, host: str) -> None:
        self._holder = host

    def _may_hold(self, host: str) -> bool:  # noqa: ARG002
        return True
