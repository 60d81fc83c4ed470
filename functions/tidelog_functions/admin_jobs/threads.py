"""Runs jobs in threads of the process that serves the API on one machine.

Each has an event loop of its own, so that they do not hold requests up. A run that is unfinished
when the process ends gives its job back, and the next process goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import TidelogError

from tidelog_functions.admin_jobs.handler import sweep
from tidelog_functions.admin_jobs.run import STEP_MS_MAX, Outcome, RunResult, run_job
from tidelog_functions.admin_jobs.states import OVERDUE_MS
from tidelog_functions.admin_jobs.work import do_work
from tidelog_functions.invocation import FunctionSettings, TimeLimit

logger = logging.getLogger(__name__)

RUNNING_MAX = 2
RUN_MS_MAX = 900_000  # as on Lambda, where jobs are continued too
SWEEP_SECONDS_MIN, SWEEP_SECONDS_MAX = 1.0, 60.0  # between two looks for jobs that are due


class ThreadStarter:
    """Starts runs in threads. Used from one event loop."""

    def __init__(self, settings: FunctionSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(RUNNING_MAX, thread_name_prefix="admin-job")
        self._started: set[UUID] = set()  # waiting for a thread or in one
        self._stopping = threading.Event()
        self._look_again = asyncio.Event()

    async def start(self, job_id: UUID) -> None:
        """Have a thread run the job, unless one has it or will."""
        self._submit(job_id, asyncio.get_running_loop())

    async def sweep_until(self, stop: asyncio.Event) -> None:
        """Start jobs when they are due, until the event."""
        while not stop.is_set():
            seconds = SWEEP_SECONDS_MAX
            self._look_again.clear()
            try:
                due_ms = (await sweep(self._settings, self))["next_due_ms"]
            except TidelogError as error:
                logger.warning("jobs not listed, will retry", extra={"reason": str(error)})
            else:
                if isinstance(due_ms, int):
                    late_s = (due_ms + OVERDUE_MS - wall_clock_ms()) / 1000
                    seconds = min(seconds, max(SWEEP_SECONDS_MIN, late_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._look_again.wait()

    def wake(self) -> None:
        """Look for due jobs again. From the loop."""
        self._look_again.set()

    async def close(self) -> None:
        """Have the runs give their jobs back, and wait for that."""
        self._stopping.set()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _submit(self, job_id: UUID, loop: asyncio.AbstractEventLoop) -> None:
        if job_id not in self._started and not self._stopping.is_set():
            self._started.add(job_id)
            self._threads.submit(self._run, job_id, loop)

    def _run(self, job_id: UUID, loop: asyncio.AbstractEventLoop) -> None:
        """Run the job until it pauses or ends."""
        result = RunResult(Outcome.CONTINUES)
        try:
            while result.outcome is Outcome.CONTINUES and not self._stopping.is_set():
                limit = TimeLimit(_Time(self._stopping), reserve_ms=STEP_MS_MAX)
                result = asyncio.run(run_job(self._settings, job_id, limit, do_work))
        except TidelogError as error:
            extra = {"job_id": str(job_id), "reason": str(error)}
            logger.warning("run of a job failed, will retry", extra=extra)
        except Exception:
            logger.exception("run of a job broke", extra={"job_id": str(job_id)})
        finally:
            loop.call_soon_threadsafe(self._ended, job_id, result, loop)

    def _ended(self, job_id: UUID, result: RunResult, loop: asyncio.AbstractEventLoop) -> None:
        self._started.discard(job_id)
        if result.outcome is Outcome.PAUSED:
            # A millisecond late: a run that comes too early does not take the job.
            left_ms = max(0, result.due_ms - wall_clock_ms()) + 1
            loop.call_later(left_ms / 1000, self._submit, job_id, loop)
        self.wake()


class _Time:
    """The time that a run has, which ends with the process."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._end = time.monotonic() + RUN_MS_MAX / 1000

    def get_remaining_time_in_millis(self) -> int:
        """Return the remaining time."""
        if self._stopping.is_set():
            return 0
        return max(0, round((self._end - time.monotonic()) * 1000))
