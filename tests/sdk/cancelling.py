"""Cancelling a coroutine wherever it waits, one place after the other.

A coroutine waits at its suspensions, counted from 1. Between one and the next the event loop
turns, and whatever else runs there takes a step a turn: so a place is a suspension and how
many turns of the loop it has lasted, or that what it waits for has just come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TURNS_MAX = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where to cancel."""

    suspension: int
    turns: int | None  # None: when that which is waited for has come

    def __str__(self) -> str:
        when = "as it ends" if self.turns is None else f"after {self.turns} turns"
        return f"suspension {self.suspension} {when}"


class Cancelled:
    """Awaits the coroutine, and cancels the task that does so at each of the places."""

    def __init__(self, work: Coroutine[Any, Any, None], places: Sequence[Place]) -> None:
        self._work = work
        self._places = places
        self.suspension_count = 0

    def __await__(self) -> Generator[Any, None, None]:
        """Return or raise as the coroutine does."""
        steps = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                awaited = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return
            thrown = None
            self.suspension_count += 1
            for place in self._places:
                if place.suspension == self.suspension_count:
                    self._cancel_at(place, awaited)
            try:
                yield awaited
            except BaseException as error:
                thrown = error

    def _cancel_at(self, place: Place, awaited: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def turn(left: int) -> None:
            if self.suspension_count != place.suspension or task.done():
                return
            if left == 0:
                task.cancel()
            else:
                loop.call_soon(turn, left - 1)

        if place.turns is not None:
            turn(place.turns)
        elif awaited is not None:
            awaited.add_done_callback(lambda _: task.cancel())


def places(suspension_count: int) -> Iterator[Place]:
    """Yield every place of as many suspensions."""
    for suspension in range(1, suspension_count + 1):
        for turns in (*range(TURNS_MAX + 1), None):
            yield Place(suspension, turns)
