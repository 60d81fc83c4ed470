"""Cuts long work into turns, so that a request about thousands of partitions blocks no other."""

from __future__ import annotations

import asyncio

TURN_SECONDS = 0.01


class Turn:
    """Divides a series of short steps, so that other tasks run in between."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + TURN_SECONDS

    async def step(self) -> None:
        """Return immediately, or after all other tasks that are ready to run."""
        if self._loop.time() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._loop.time() + TURN_SECONDS
