"""Virtual time and the simulated network: one queue of events, nothing else happens.

Two events at the same time happen in the order in which they were put in, so a run is
the same every time for the same seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

Handler = Callable[..., None]

DELAY_MS_MIN, DELAY_MS_MAX = 0.5, 6.0
CLIENT = -1  # every client is at this address


class World:
    """The clock that nobody in the simulation can see, and what is going to happen."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.event_count = 0
        self._queue: list[tuple[float, int, Handler, tuple[Any, ...]]] = []

    def at(self, time_ms: float, handler: Handler, *args: Any) -> None:
        """Call the handler at that time, or now if it is past."""
        self.event_count += 1
        heapq.heappush(self._queue, (max(time_ms, self.now_ms), self.event_count, handler, args))

    def after(self, delay_ms: float, handler: Handler, *args: Any) -> None:
        """Call the handler that much later."""
        self.at(self.now_ms + delay_ms, handler, *args)

    def run(self, until_ms: float, is_done: Callable[[], bool] | None = None) -> None:
        """Let everything happen until then, or until it is done."""
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            if is_done is not None and is_done():
                return
            self.now_ms, _, handler, args = heapq.heappop(queue)
            handler(*args)
        if is_done is None:
            self.now_ms = until_ms


class Endpoint(Protocol):
    """Someone whom messages reach."""

    broker_id: int

    def deliver(self, handler: Handler, args: tuple[Any, ...]) -> None:
        """Take a message, unless there is nobody to take it."""


class Network:
    """Delays, loses and doubles messages, and cuts directed links."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self.cut: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.duplication = 0.0
        self.delay_factor = 1.0

    def heal(self) -> None:
        """Be a good network from now on."""
        self.cut.clear()
        self.loss = self.duplication = 0.0
        self.delay_factor = 1.0

    def send(self, sender_id: int, target: Endpoint, handler: Handler, *args: Any) -> None:
        """Send a message; whether it arrives is not known."""
        random = self._random
        if (sender_id, target.broker_id) in self.cut:
            return
        if self.loss and random.random() < self.loss:
            return
        self._post(sender_id, target, handler, args)
        if self.duplication and random.random() < self.duplication:
            self._post(sender_id, target, handler, args)

    def _post(
        self, sender_id: int, target: Endpoint, handler: Handler, args: tuple[Any, ...]
    ) -> None:
        delay_ms = DELAY_MS_MIN + self._random.random() * (DELAY_MS_MAX - DELAY_MS_MIN)
        if self.delay_factor > 1:
            delay_ms *= 1 + self._random.random() * self.delay_factor
        self._world.after(delay_ms, self._arrive, sender_id, target, handler, args)

    def _arrive(
        self, sender_id: int, target: Endpoint, handler: Handler, args: tuple[Any, ...]
    ) -> None:
        if (sender_id, target.broker_id) not in self.cut:
            target.deliver(handler, args)
