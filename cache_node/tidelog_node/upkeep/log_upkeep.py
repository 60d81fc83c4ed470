"""Rolls old segments, flushes sealed ones and expires idle producers, without an append.

Sealed segments are flushed soon after the roll, old segments are rolled, idle producers are
forgotten, and some logs are flushed if unflushed records keep too many files open.

Logs are visited when they have changed (``LogChanges``) and at due times by the wall clock: the
roll of an active segment, the expiry of idle producers. Only a change of the log can make these
earlier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from tidelog_core.clock import wall_clock_ms
from tidelog_core.due_queue import DueQueue
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog

from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.upkeep.flusher import Flusher

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0  # between two checks for due work
RETRY_MS = 10_000  # before a log that failed is visited again
EXPIRE_MS_MIN = 600_000  # between two expiries of one log's producers
EXPIRE_MORE_MS = 1_000  # between two turns of one expiry
FLUSHES_FOR_ROOM_MAX = 100  # logs per sweep, so that their files can be closed


class LogUpkeep:
    """Rolls and flushes logs and expires producers. For the node's event loop only."""

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
        self._room_from = 0  # index of the first replica of the next flushes for room

    def on_changed(self, replicas: Collection[Replica]) -> None:
        """Flush sealed segments, and schedule the next visits of the logs."""
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
        """Do the work that is due, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()
            self._make_room()

    def sweep(self) -> None:
        """Roll the segments that are old enough, and expire idle producers."""
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
                # A failure of one log must not prevent the work on the others.
                queue.put(replica, now_ms + RETRY_MS)
                what = {"partition": str(replica.partition)}
                logger.exception("log could not be rolled or checked, will retry", extra=what)

    def _roll(self, replica: Replica, log: LocalLog) -> None:
        try:
            if log.maybe_roll():
                replica.note_changed()
                if not replica.is_diskless:
                    self._flusher.request(replica)
                return
        except StorageError as error:
            if not replica.note_failure(error):
                what = {"partition": str(replica.partition), "reason": str(error)}
                logger.error("segment could not be rolled", extra=what)
        due_ms = log.roll_due_ms
        if due_ms is not None:
            self._to_roll.put(replica, max(due_ms, self._clock_ms() + RETRY_MS))

    def _expire(self, replica: Replica, log: LocalLog) -> None:
        log.producers.expire()
        self._expire_next(replica, log)

    def _expire_next(self, replica: Replica, log: LocalLog) -> None:
        due_ms, now_ms = log.producers.next_expiry_ms, self._clock_ms()
        if due_ms is not None:
            pause_ms = EXPIRE_MORE_MS if due_ms <= now_ms else EXPIRE_MS_MIN
            self._to_expire.put(replica, max(due_ms, now_ms + pause_ms))

    def _make_room(self) -> None:
        """Flush some logs if unflushed records keep too many files open.

        In rotation, so that busy logs do not displace the others.
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
    """Return the log if it is open and usable."""
    log = replica.opened_log
    return None if log is None or log.is_offline or replica.is_dropped else log
