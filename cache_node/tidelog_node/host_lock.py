"""A lock that hosts take in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog_node.host_line import HostLine


class HostLock:
    """Held by one task at a time. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._line: HostLine[asyncio.Future[None]] = HostLine()
        self._is_held = False

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Hold the lock, as soon as it is the host's turn and the task the host's oldest."""
        await self._acquire(host)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, host: str) -> None:
        if not self._is_held:
            self._is_held = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.add(host, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # It was this one's turn, which others wait for.
                self._release()
            raise

    def _release(self) -> None:
        while self._line:
            host, turn = self._line.take()
            if not turn.done():
                turn.set_result(None)
                self._line.end_turn(host)
                return
        self._is_held = False
