"""Flushes logs in the executor, one flush at a time for each log.

A topic may require a flush after a number of records (``flush.messages``; an append is acknowledged
after it) or after a time (``flush.ms``). ``LogUpkeep`` requests the other flushes.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from tidelog_core.errors import StorageError
from tidelog_core.model import INT64_MAX

from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)


class Flusher:
    """Flushes the logs of one node. For the node's event loop only."""

    def __init__(self, executor: Executor) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._timers: dict[Replica, asyncio.TimerHandle] = {}
        self._running: dict[Replica, asyncio.Task[None]] = {}
        self._next: dict[Replica, asyncio.Future[None]] = {}  # requested during a flush

    def appended(self, replica: Replica) -> list[asyncio.Future[None]]:
        """Note an append; return the flush to wait for before its acknowledgement, if any."""
        config, log = replica.config, replica.log
        if log.log_end_offset - log.recovery_point >= config.flush_messages:
            return [self.flush(replica)]
        if config.flush_ms < INT64_MAX and replica not in self._timers:
            self._timers[replica] = self._loop.call_later(
                config.flush_ms / 1000, self._flush_due, replica
            )
        return []

    def flush(self, replica: Replica) -> asyncio.Future[None]:
        """Flush the records appended so far; the future is done when they are durable.

        The future is the caller's own: cancelling it does not cancel the flush. Fails with
        ``StorageError`` if the flush was cancelled, since the state of the disk is then unknown.
        """
        outcome = self._loop.create_future()
        self.request(replica).add_done_callback(lambda flush: _pass_on(flush, outcome))
        return outcome

    def request(self, replica: Replica) -> asyncio.Future[None]:
        """Begin a flush, or schedule one after the running flush. Returns a shared future.

        Only ``flush`` waits for it; a failure is logged.
        """
        if replica not in self._running:
            return self._start(replica)
        waiting = self._next.get(replica)
        if waiting is None:
            waiting = self._next[replica] = self._loop.create_future()
        return waiting

    async def close(self) -> None:
        """Cancel the scheduled flushes and wait for the running ones."""
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
        self.request(replica)

    async def _flush(self, replica: Replica) -> None:
        log = replica.opened_log
        if log is None:
            return
        # The active segment of a diskless log takes appends: a flush would only delay them.
        up_to = log.tiered_up_to if replica.is_diskless and log.needs_flush else None
        pending = log.begin_flush(up_to)
        if pending is None:
            return
        try:
            await self._loop.run_in_executor(self._executor, pending.run)
        except OSError:
            log.fail_flush(pending)
            raise
        except BaseException:
            # If the flush stayed begun, no other could begin, and later ones would seem to have
            # nothing to do. The state of the disk is unknown: the next flush tries again.
            log.give_up_flush(pending)
            raise
        log.finish_flush(pending)
        replica.note_changed()  # Flushed records may be copied and compacted.

    def _on_flushed(self, replica: Replica, done: asyncio.Future[None]) -> None:
        del self._running[replica]
        problem = None if done.cancelled() else done.exception()
        if problem is not None:
            what = {"partition": str(replica.partition), "reason": str(problem)}
            log = replica.opened_log
            is_known = isinstance(problem, OSError | StorageError) and replica.note_failure(problem)
            if log is None or log.is_offline:
                replica.wake()  # Requests that wait for records will get none.
            else:
                if not is_known:
                    logger.error("flush failed, will retry", extra=what)
                replica.note_changed()
        waiting = self._next.pop(replica, None)
        if waiting is not None:
            self._start(replica).add_done_callback(lambda after: _pass_on(after, waiting))


def _pass_on(source: asyncio.Future[None], target: asyncio.Future[None]) -> None:
    """Pass the result of a flush on to a future that waits for it."""
    if target.done():
        return
    if source.cancelled():
        # Records are acknowledged on a result: an unfinished flush must not give one.
        problem: BaseException | None = StorageError("the flush was cancelled")
    else:
        problem = source.exception()
    if problem is None:
        target.set_result(None)
        return
    target.set_exception(problem)
    target.exception()  # It was logged, so the loop need not report it as never retrieved.
