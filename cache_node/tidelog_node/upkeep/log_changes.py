"""Publishes the logs that have changed, so that background tasks need not visit all of them.

A log has changed when it was opened or dropped, when its records, segments, settings or
leadership have changed, and when more of it is committed or flushed. ``Replica.note_changed`` is
called for each of these, on any thread. The changes of a second are published together. If a log
makes a subscriber raise, it is published again later, and the other logs still are.

A subscriber puts later work on a log into a ``DueQueue``. A few unchanged logs are published in
rotation too, so a change without ``note_changed`` is found late rather than never.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from tidelog_core.batched import batched
from tidelog_core.due_queue import DueQueue
from tidelog_core.turns import Turn

from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

PUBLISH_SECONDS = 1.0
UNCHANGED_COUNT = 4  # unchanged logs published each time
PORTION_COUNT_MAX = 100  # logs published before other tasks run: about a millisecond
RETRY_SECONDS = 60.0  # before a log that made a subscriber raise is published again

Subscriber = Callable[[Collection[Replica]], None]


class LogChanges:
    """Publishes the changes. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        replicas: ReplicaManager,
        *,
        interval_s: float = PUBLISH_SECONDS,
        unchanged_count: int = UNCHANGED_COUNT,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``now`` is in seconds."""
        self._replicas = replicas
        self._interval_s = interval_s
        self._unchanged_count = unchanged_count
        self._subscribers: list[Subscriber] = []
        self._turn: Iterator[Replica] = iter(())
        self._now = now
        self._again: DueQueue[Replica] = DueQueue()  # logs that made a subscriber raise, by ``now``

    def subscribe(self, callback: Subscriber) -> None:
        """Call back with replicas that may have changed since the last call; first with all."""
        self._subscribers.append(callback)
        for replica in self._replicas.replicas():
            replica.note_changed()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            turn = Turn()
            for portion in self._portions():
                self._publish(portion)
                await turn.step()

    def publish(self) -> None:
        """Publish the changed logs and the next few unchanged ones."""
        for portion in self._portions():
            self._publish(portion)

    def _publish(self, replicas: Collection[Replica]) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(replicas)
            except Exception:
                logger.exception("changed logs could not be checked, each is tried alone")
                self._publish_each(subscriber, replicas)

    def _publish_each(self, subscriber: Subscriber, replicas: Collection[Replica]) -> None:
        for replica in replicas:
            try:
                subscriber((replica,))
            except Exception as error:  # The traceback has been logged.
                self._again.put(replica, self._now() + RETRY_SECONDS)
                logger.error(
                    "log could not be checked, will retry",
                    extra={"partition": str(replica.partition), "reason": repr(error)},
                )

    def _portions(self) -> Iterator[Sequence[Replica]]:
        again = self._again.take(self._now())
        changed = list(self._replicas.take_changed().union(again, self._next_in_turn()))
        yield from batched(changed, PORTION_COUNT_MAX)

    def _next_in_turn(self) -> Iterator[Replica]:
        for index in range(self._unchanged_count):
            replica = next(self._turn, None)
            if replica is None:
                if index:
                    return  # Few logs: none is published twice at a time.
                self._turn = iter(tuple(self._replicas.replicas()))
                replica = next(self._turn, None)
            if replica is not None:
                yield replica
