"""Limits the rate of requests with very many partitions.

Produce, Fetch and ShareFetch are handled in one piece, in about 4 microseconds for each partition
that they name. So after one that names many, the next such request waits for twice the time it
took: together they use at most a third of the loop's time. Waiting requests are queued, one per
connection, and the node does not read from their clients.

The queue serves hosts in rotation, so more connections do not give a client more turns. Fetches of
followers come before clients' requests, because acknowledgements wait for them and a late follower
leaves the ISR. While both wait, followers come first only until they have used half of the shared
time; the other half is for clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tidelog_node.fairness.host_queue import HostQueue

MANY_ELEMENTS = 500  # a request with more needs a turn
RESTS_PER_WORK = 2.0

_Queue = HostQueue[Callable[[], None]]


class NotYet(Exception):
    """The request must wait for its turn; call ``wait`` with the function that repeats it."""

    def __init__(self, wait: Callable[[Callable[[], None]], None]) -> None:
        super().__init__("it is not this request's turn yet")
        self.wait = wait


class PartitionPace:
    """The pace of one loop."""

    def __init__(self) -> None:
        self._followers: _Queue = HostQueue()
        self._clients: _Queue = HostQueue()
        self._is_resting = False
        self._worked_seconds = 0.0  # by the last request
        # Time used by followers minus that used by clients, since both have been waiting.
        self._ahead_seconds = 0.0

    def begin(self, host: str, *, is_follower: bool) -> float:
        """Return the time at which a request of the host begins. Raises ``NotYet``."""
        if self._is_resting:
            line = self._followers if is_follower else self._clients
            raise NotYet(lambda try_again: line.add(host, try_again))
        return time.perf_counter()

    def end(self, began: float) -> None:
        """End the request that began at ``began``; the next one begins after a pause."""
        self._worked_seconds = time.perf_counter() - began
        self._is_resting = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._worked_seconds * RESTS_PER_WORK, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        while self._followers or self._clients:
            queue = self._next_queue()
            host, try_again = queue.take()
            try_again()
            if self._is_resting:
                queue.end_turn(host)
                is_follower = queue is self._followers
                self._ahead_seconds += (
                    self._worked_seconds if is_follower else -self._worked_seconds
                )
                break
            # A connection that has closed or is paused for another reason loses its turn.

    def _next_queue(self) -> _Queue:
        if not self._followers or not self._clients:
            self._ahead_seconds = 0.0
            return self._followers or self._clients
        return self._clients if self._ahead_seconds > 0 else self._followers
