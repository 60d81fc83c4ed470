"""Verifications by the console: started by a request, looked at by others.

A visitor has one of a topic at a time: a form that is sent twice starts one.

Unlike the admin API's jobs they are in no store, because the console writes to none. They run in
its process, each in a thread with an event loop of its own, so that they do not hold requests up,
and end with it. Their numbers, their steps and the time that they are remembered are limited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from tidelog_core.errors import TidelogError
from tidelog_functions.admin.problems import HttpProblem

logger = logging.getLogger(__name__)

JOBS_MAX = 100  # remembered; the oldest that have ended are forgotten first
RUNNING_MAX = 2
WAITING_MAX = 8
STOPPED = "the console was stopped"
STEPS_MAX = 200  # of one job; later ones replace the last


class Report(Protocol):
    """Gets a job's progress, from its thread."""

    def step(self, sentence: str) -> None:
        """Note that a step has begun."""


Work = Callable[[Report], Awaitable[dict[str, Any]]]
"""Does the job and returns its result for JSON."""


@dataclass(slots=True)
class Job:
    """A verification of a topic, and its progress."""

    job_id: str
    owner: str | None  # the visitor who started it; None: nobody has to log in
    topic: str
    state: str = "waiting"  # waiting, running, done, failed
    steps: list[str] = field(default_factory=list)
    result: dict[str, Any] | None = None
    problem: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is done or has failed."""
        return self.state in ("done", "failed")


class JobRegistry:
    """The jobs of one process. Used from its event loop."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(RUNNING_MAX, thread_name_prefix="console-job")
        self._runners: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()

    def start(self, owner: str | None, topic: str, work: Work) -> Job:
        """Start a job, or return the one of the same owner and topic that has not ended.

        Raises ``HttpProblem`` if too many wait already.
        """
        going = [job for job in self._jobs.values() if not job.has_ended]
        for job in going:
            if (job.owner, job.topic) == (owner, topic):
                return job
        if len(going) >= RUNNING_MAX + WAITING_MAX:
            raise HttpProblem(
                409, f"{len(going)} jobs are running or waiting already: try again later."
            )
        ended = [one for one in self._jobs.values() if one.has_ended]
        for old in ended[: max(0, len(self._jobs) - JOBS_MAX + 1)]:
            del self._jobs[old.job_id]
        job = Job(str(uuid4()), owner, topic)
        self._jobs[job.job_id] = job
        task = asyncio.get_running_loop().create_task(self._run(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def of_owner(self, owner: str | None) -> list[Job]:
        """Return the jobs that a visitor has started, the newest first."""
        return [job for job in reversed(self._jobs.values()) if job.owner == owner]

    async def close(self) -> None:
        """Cancel what is running and wait for its end."""
        for loop, task in list(self._runners):
            loop.call_soon_threadsafe(task.cancel)
        for waiting in list(self._tasks):
            waiting.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        for job in self._jobs.values():
            if not job.has_ended:  # It had not begun.
                job.state, job.problem = "failed", STOPPED

    async def _run(self, job: Job, work: Work) -> None:
        loop = asyncio.get_running_loop()
        report = _Report(loop, job)
        try:
            job.result = await loop.run_in_executor(self._threads, self._work, work, report)
            job.state = "done"
        except TidelogError as error:
            hint = f"; {error.hint}" if error.hint else ""
            job.state, job.problem = "failed", f"{str(error).rstrip('.')}{hint}"
        except (OSError, asyncio.CancelledError) as error:
            job.state, job.problem = "failed", str(error) or STOPPED
        except Exception:
            logger.exception("verification failed unexpectedly", extra={"topic": job.topic})
            job.state = "failed"
            job.problem = "The job failed unexpectedly; see the console's log for the cause."

    def _work(self, work: Work, report: _Report) -> dict[str, Any]:
        """Do the work in a loop of this thread."""

        async def run() -> dict[str, Any]:
            task = asyncio.current_task()
            assert task is not None
            entry = (asyncio.get_running_loop(), task)
            self._runners.add(entry)
            try:
                report.begin()
                return await work(report)
            finally:
                self._runners.discard(entry)

        return asyncio.run(run())


class _Report:
    """Passes a job's progress to the server's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, job: Job) -> None:
        self._loop, self._job = loop, job

    def begin(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def step(self, sentence: str) -> None:
        self._loop.call_soon_threadsafe(self._step, sentence)

    def _begin(self) -> None:
        if not self._job.has_ended:
            self._job.state = "running"

    def _step(self, sentence: str) -> None:
        if len(self._job.steps) >= STEPS_MAX:
            self._job.steps.pop()
        self._job.steps.append(sentence)
