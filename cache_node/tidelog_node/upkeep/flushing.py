"""When logs are flushed and rolled without anyone appending just then.

A topic may ask for a flush after so many records (``flush.messages``; whoever appended
them waits for it before acknowledging) or after so much time (``flush.ms``). Sealed
segments are flushed soon after the roll in any case, and segments are rolled when they
are old enough. The fsync runs in the executor, one at a time per partition.

Logs are looked at when they have changed (``LogChanges``) and when something is due by the wall
clock: the roll of an active segment, the end of idle producers. What is due can come earlier only
by a change of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import INT64_MAX
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog

from tidelog_node.due_queue import DueQueue
from tidelog_node.replica import Replica
from tidelog_node.replicas import ReplicaManager

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0  # between two looks at what is due
RETRY_MS = 10_000  # before a log that could not be rolled, or looked at, is tried again
EXPIRE_MS_MIN = 600_000  # between two looks through one log's producers
FLUSHES_FOR_ROOM_MAX = 100  # logs in a sweep, so that their files may be let go of


class Flusher:
    """Flushes the logs of one node. For the node's event loop only."""

    def __init__(self, executor: Executor, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        """``clock_ms`` is the clock of the logs."""
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._timers: dict[Replica, asyncio.TimerHandle] = {}
        self._running: dict[Replica, asyncio.Task[None]] = {}
        self._next: dict[Replica, asyncio.Future[None]] = {}  # asked for during a flush
        self._to_roll: DueQueue[Replica] = DueQueue()  # by ``clock_ms``
        self._to_expire: DueQueue[Replica] = DueQueue()  # producers; by ``clock_ms``
        self._room_from = 0  # at which replica the next flushes for room begin

    def appended(self, replica: Replica) -> list[asyncio.Future[None]]:
        """Note an append; return the flush to wait for before acknowledging it, if any."""
        config, log = replica.config, replica.log
        if log.log_end_offset - log.recovery_point >= config.flush_messages:
            return [self.flush(replica)]
        if config.flush_ms < INT64_MAX and replica not in self._timers:
            self._timers[replica] = self._loop.call_later(
                config.flush_ms / 1000, self._flush_due, replica
            )
        return []

    def flush(self, replica: Replica) -> asyncio.Future[None]:
        """Flush what is appended so far; the future is done when it is durable.

        It is the caller's own: cancelling it ends this one wait, and not the flush. Fails with
        ``StorageError`` if the flush was cancelled, since nothing is known of the disk then.
        """
        outcome = self._loop.create_future()
        self._request(replica).add_done_callback(lambda flush: _pass_on(flush, outcome))
        return outcome

    def _request(self, replica: Replica) -> asyncio.Future[None]:
        """Begin a flush, or have one follow the flush under way. Returns what all share."""
        if replica not in self._running:
            return self._start(replica)
        waiting = self._next.get(replica)
        if waiting is None:
            waiting = self._next[replica] = self._loop.create_future()
        return waiting

    def on_changed(self, replicas: Collection[Replica]) -> None:
        """Flush what is sealed, and note when the logs are to be looked at again."""
        for replica in replicas:
            log = _online_log(replica)
            if log is None:
                self._to_roll.discard(replica)
                self._to_expire.discard(replica)
                continue
            if log.needs_flush:
                self._request(replica)
            due_ms = log.roll_due_ms
            if due_ms is None:
                self._to_roll.discard(replica)
            else:
                self._to_roll.put(replica, due_ms)
            if log.producer_count and replica not in self._to_expire:
                self._expire_next(replica, log)

    async def run(self, replicas: ReplicaManager) -> None:
        """Do what is due, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()
            self._make_room(replicas)

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
                self._request(replica)
                return
        except StorageError as error:
            if not replica.note_failure(error):
                what = {"partition": str(replica.partition), "reason": str(error)}
                logger.error("roll failed", extra=what)
        due_ms = log.roll_due_ms
        if due_ms is not None:
            self._to_roll.put(replica, max(due_ms, self._clock_ms() + RETRY_MS))

    def _expire(self, replica: Replica, log: LocalLog) -> None:
        log.expire_producers()
        self._expire_next(replica, log)

    def _expire_next(self, replica: Replica, log: LocalLog) -> None:
        due_ms = log.next_producer_expiry_ms
        if due_ms is not None:
            self._to_expire.put(replica, max(due_ms, self._clock_ms() + EXPIRE_MS_MIN))

    def _make_room(self, replicas: ReplicaManager) -> None:
        """Flush some logs where many files are kept open because of what is not flushed.

        In turns, so that all get theirs however busy some are.
        """
        left = min(replicas.open_files.crowded_count, FLUSHES_FOR_ROOM_MAX)
        if not left:
            return
        held = list(replicas.replicas())
        first = self._room_from % len(held) if held else 0
        for replica in (*held[first:], *held[:first]):
            self._room_from += 1
            log = replica.opened_log
            if log is not None and not log.is_offline and log.recovery_point < log.log_end_offset:
                self._request(replica)
                left -= 1
                if not left:
                    break

    async def close(self) -> None:
        """Cancel what is due and wait for the flushes under way."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _start(self, replica: Replica) -> asyncio.Future[None]:
        timer = self._timers.pop(replica, None)
        if timer is not None:
            timer.cancel()
        flush = self._loop.create_task(self._flush(replica))
        self._running[replica] = flush
        flush.add_done_callback(lambda done: self._on_flushed(replica, done))
        return flush

    def _flush_due(self, replica: Replica) -> None:
        del self._timers[replica]
        self._request(replica)

    async def _flush(self, replica: Replica) -> None:
        log = replica.opened_log
        pending = None if log is None else log.begin_flush()
        if log is None or pending is None:
            return
        try:
            await self._loop.run_in_executor(self._executor, pending.run)
        except OSError:
            log.fail_flush(pending)
            raise
        except BaseException:
            # A flush that stayed begun would let no other one begin, and all after it would
            # seem to have nothing to do. Nothing is known of the disk: the next tries again.
            log.give_up_flush(pending)
            raise
        log.finish_flush(pending)
        replica.note_changed()  # What is flushed may be copied, and compacted.

    def _on_flushed(self, replica: Replica, done: asyncio.Future[None]) -> None:
        del self._running[replica]
        problem = None if done.cancelled() else done.exception()
        if problem is not None:
            what = {"partition": str(replica.partition), "reason": str(problem)}
            log = replica.opened_log
            is_known = isinstance(problem, OSError | StorageError) and replica.note_failure(problem)
            if log is None or log.is_offline:
                replica.wake()  # Who waits for records will get none.
            else:
                if not is_known:
                    logger.error("flush failed, will retry", extra=what)
                replica.note_changed()
        waiting = self._next.pop(replica, None)
        if waiting is not None:
            self._start(replica).add_done_callback(lambda after: _pass_on(after, waiting))


def _online_log(replica: Replica) -> LocalLog | None:
    """Return the log if it is open and of use."""
    log = replica.opened_log
    return None if log is None or log.is_offline or replica.is_dropped else log


def _pass_on(source: asyncio.Future[None], target: asyncio.Future[None]) -> None:
    """Give the end of a flush to a future that waits for it."""
    if target.done():
        return
    if source.cancelled():
        # Records are acknowledged on a result: a flush that came to no end must not give one.
        problem: BaseException | None = StorageError("the flush was cancelled")
    else:
        problem = source.exception()
    if problem is None:
        target.set_result(None)
        return
    target.set_exception(problem)
    target.exception()  # It was logged: if nobody waits, the loop need not say so again.
