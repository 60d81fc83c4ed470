"""Cuts long work into turns, so that a request about thousands of partitions blocks no other."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

TURN_SECONDS = 0.01
STEPS_AT_ONCE = 16  # short ones, of a computation

Steps = Generator[None, None, T]
"""A computation that yields after each of its short steps, and returns its result."""


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


def at_once(steps: Steps[T]) -> T:
    """Return the result of a computation that is not interrupted."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


async def in_turns(steps: Steps[T], turn: Turn) -> T:
    """Return the result of a computation; other tasks run between its steps."""
    try:
        while True:
            for _ in range(STEPS_AT_ONCE):
                next(steps)
            await turn.step()
    except StopIteration as end:
        result: T = end.value
        return result
