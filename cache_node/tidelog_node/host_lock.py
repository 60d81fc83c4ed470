"""A lock that client hosts acquire in rotation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog_node.host_queue import HostQueue


class HostLock:
    """Held by one task at a time. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._queue: HostQueue[asyncio.Future[None]] = HostQueue()
        self._is_held = False

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
        if not self._is_held:
            self._is_held = True
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
        while self._queue:
            host, turn = self._queue.take()
            if not turn.done():
                turn.set_result(None)
                self._queue.end_turn(host)
                return
        self._is_held = False
