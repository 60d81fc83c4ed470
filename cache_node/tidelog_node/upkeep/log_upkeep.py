"""Rolls old segments, flushes sealed ones and expires idle producers, without an append.

Sealed segments are flushed soon after the roll, segments are rolled when they are old enough,
idle producers are forgotten, and some logs are flushed where too many files are kept open because
of what is not flushed.

Logs are looked at when they have changed (``LogChanges``) and when something is due by the wall
clock: the roll of an active segment, the end of idle producers. What is due can come earlier only
by a change of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog

from tidelog_node.due_queue import DueQueue
from tidelog_node.replica import Replica
from tidelog_node.replicas import ReplicaManager
from tidelog_node.upkeep.flushing import Flusher

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0  # between two looks at what is due
RETRY_MS = 10_000  # before a log that could not be rolled, or looked at, is tried again
EXPIRE_MS_MIN = 600_000  # between two looks through one log's producers
FLUSHES_FOR_ROOM_MAX = 100  # logs in a sweep, so that their files may be let go of


class LogUpkeep:
    """Rolls, flushes and tidies the logs of one node. For the node's event loop only."""

    def __init__(
        self,
        flusher: Flusher,
        replicas: ReplicaManager,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """``clock_ms`` is the clock of the logs."""
        self._flusher = flusher
        self._replicas = replicas
        self._clock_ms = clock_ms
        self._to_roll: DueQueue[Replica] = DueQueue()  # by ``clock_ms``
        self._to_expire: DueQueue[Replica] = DueQueue()  # producers; by ``clock_ms``
        self._room_from = 0  # at which replica the next flushes for room begin

    def on_changed(self, replicas: Collection[Replica]) -> None:
        """Flush what is sealed, and note when the logs are to be looked at again."""
        for replica in replicas:
            log = _online_log(replica)
            if log is None:
                self._to_roll.discard(replica)
                self._to_expire.discard(replica)
                continue
            if log.needs_flush:
                self._flusher.request(replica)
            due_ms = log.roll_due_ms
            if due_ms is None:
                self._to_roll.discard(replica)
            else:
                self._to_roll.put(replica, due_ms)
            if log.producers.count and replica not in self._to_expire:
                self._expire_next(replica, log)

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()
            self._make_room()

    def sweep(self) -> None:
        """Roll the segments that are old enough, and forget idle producers."""
        self._work_through(self._to_roll, self._roll)
        self._work_through(self._to_expire, self._expire)

    def _work_through(
        self, queue: DueQueue[Replica], work: Callable[[Replica, LocalLog], None]
    ) -> None:
        now_ms = self._clock_ms()
        for replica in queue.take(now_ms):
            log = _online_log(replica)
            if log is None:
                continue
            try:
                work(replica, log)
            except Exception:
                # One log must not keep the others from their turn.
                queue.put(replica, now_ms + RETRY_MS)
                what = {"partition": str(replica.partition)}
                logger.exception("log could not be rolled or looked at, will retry", extra=what)

    def _roll(self, replica: Replica, log: LocalLog) -> None:
        try:
            if log.maybe_roll():
                replica.note_changed()
                self._flusher.request(replica)
                return
        except StorageError as error:
            if not replica.note_failure(error):
                what = {"partition": str(replica.partition), "reason": str(error)}
                logger.error("roll failed", extra=what)
        due_ms = log.roll_due_ms
        if due_ms is not None:
            self._to_roll.put(replica, max(due_ms, self._clock_ms() + RETRY_MS))

    def _expire(self, replica: Replica, log: LocalLog) -> None:
        log.producers.expire()
        self._expire_next(replica, log)

    def _expire_next(self, replica: Replica, log: LocalLog) -> None:
        due_ms = log.producers.next_expiry_ms
        if due_ms is not None:
            self._to_expire.put(replica, max(due_ms, self._clock_ms() + EXPIRE_MS_MIN))

    def _make_room(self) -> None:
        """Flush some logs where many files are kept open because of what is not flushed.

        In turns, so that all get theirs however busy some are.
        """
        left = min(self._replicas.open_files.crowded_count, FLUSHES_FOR_ROOM_MAX)
        if not left:
            return
        held = list(self._replicas.replicas())
        first = self._room_from % len(held) if held else 0
        for replica in (*held[first:], *held[:first]):
            self._room_from += 1
            log = replica.opened_log
            if log is not None and not log.is_offline and log.recovery_point < log.log_end_offset:
                self._flusher.request(replica)
                left -= 1
                if not left:
                    break


def _online_log(replica: Replica) -> LocalLog | None:
    """Return the log if it is open and of use."""
    log = replica.opened_log
    return None if log is None or log.is_offline or replica.is_dropped else log
