"""Flushes logs in the executor, one flush at a time for each log.

A topic may ask for a flush after so many records (``flush.messages``; whoever appended
them waits for it before acknowledging) or after so much time (``flush.ms``). ``LogUpkeep`` asks
for the others.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from tidelog_core.config import INT64_MAX
from tidelog_core.errors import StorageError

from tidelog_node.replica import Replica

logger = logging.getLogger(__name__)


class Flusher:
    """Flushes the logs of one node. For the node's event loop only."""

    def __init__(self, executor: Executor) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._timers: dict[Replica, asyncio.TimerHandle] = {}
        self._running: dict[Replica, asyncio.Task[None]] = {}
        self._next: dict[Replica, asyncio.Future[None]] = {}  # asked for during a flush

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
        self.request(replica).add_done_callback(lambda flush: _pass_on(flush, outcome))
        return outcome

    def request(self, replica: Replica) -> asyncio.Future[None]:
        """Begin a flush, or have one follow the flush under way. Returns what all share.

        Nobody but ``flush`` waits for that; what fails is logged.
        """
        if replica not in self._running:
            return self._start(replica)
        waiting = self._next.get(replica)
        if waiting is None:
            waiting = self._next[replica] = self._loop.create_future()
        return waiting

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
        self.request(replica)

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
