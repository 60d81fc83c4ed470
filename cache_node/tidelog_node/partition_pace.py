"""How fast requests about very many partitions follow each other.

Produce, Fetch and ShareFetch are carried out on the spot, about 4 microseconds for each
partition that they name, whatever else is to be done. So after one that names many the others
that do must wait for twice the time it took, whoever sends them: together they have a third of
the node. Who waits is in line, with one request a connection, and its client is not read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

MANY_ELEMENTS = 500  # as quick as many small requests
RESTS_PER_WORK = 2.0


class NotYet(Exception):
    """The request has to wait for its turn; call ``wait`` with what tries it again."""

    def __init__(self, wait: Callable[[Callable[[], None]], None]) -> None:
        super().__init__("it is not this request's turn yet")
        self.wait = wait


class PartitionPace:
    """The line of one loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_resting = False
        self._is_turn = False  # who is first in line tries again

    def begin(self) -> float:
        """Return the time at which a request begins. Raises ``NotYet``."""
        if self._is_resting or (self._waiting and not self._is_turn):
            raise NotYet(self._waiting.append)
        self._is_turn = False
        return time.perf_counter()

    def end(self, began: float) -> None:
        """Let the next one begin, after a rest."""
        self._rest(time.perf_counter() - began)

    def _rest(self, work_seconds: float) -> None:
        self._is_resting = True
        loop = asyncio.get_running_loop()
        loop.call_later(work_seconds * RESTS_PER_WORK, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        while self._waiting and not self._is_resting:
            try_again = self._waiting.popleft()
            self._is_turn = True
            try_again()
            self._is_turn = False  # Whoever has left, or waits for something else, has had it.
