"""One run of a job: takes it, works until the end or until its time is over, and gives it back."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn
from uuid import UUID, uuid4

from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import (
    Interrupted,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.admin_jobs import AdminJob
from tidelog_core.objects.store import ObjectStore

from tidelog_functions.admin_jobs import states
from tidelog_functions.admin_jobs.job_hold import RENEW_SECONDS, JobHold
from tidelog_functions.admin_jobs.store import HoldLost, JobStore
from tidelog_functions.invocation import FunctionSettings, TimeLimit, open_stores

logger = logging.getLogger(__name__)

# A step begins only if so much of an invocation's time is left: one step handles one segment.
STEP_MS_MAX = 300_000
SAVE_SECONDS = 1.0  # between two positions, if the later one may be lost
PAUSE_MS_MAX, PAUSES_OF_AGE = 15_000, 20  # a pause is a twentieth of the job's age, up to that
STUCK_SECONDS = 60.0  # a run this long is to get further; a shorter one was stopped from outside
BACK_OFF_MS = 20_000  # shorter than the minute after which Lambda repeats a failed invocation
_PASSING = (StoreUnavailable, OutcomeUnknown, VersionConflict, ObjectNotFound)


class Paused(Interrupted):
    """There is nothing to do before some time."""

    def __init__(self, due_ms: int) -> None:
        super().__init__(f"nothing is to be done before {due_ms} ms since 1970")
        self.due_ms = due_ms


class Cancelled(Interrupted):
    """A request has cancelled the job."""


class Outcome(Enum):
    """The outcome of a run."""

    NOT_TAKEN = "not taken"  # another run has it, it has ended, or it is too early
    ENDED = "ended"
    CONTINUES = "continues"  # another run is to be started
    PAUSED = "paused"  # another run is to be started when it is due
    LOST = "lost"  # another run has it


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a run; with ``PAUSED`` the time of the next one."""

    outcome: Outcome
    due_ms: int = 0


class Run:
    """The job as its work sees it. For one event loop."""

    def __init__(
        self,
        jobs: JobStore,
        job: AdminJob,
        *,
        settings: FunctionSettings,
        objects: ObjectStore,
        limit: TimeLimit,
        hold: JobHold,
    ) -> None:
        self.settings = settings
        self.objects = objects
        self.job = job
        self._jobs = jobs
        self._limit = limit
        self.hold = hold
        self._began = self._saved = time.monotonic()
        self._is_saved = True
        self._first_position = job.position

    def step(self, sentence: str) -> None:
        """Note that a step begins; stored with the next position."""
        self.job = states.stepped(self.job, sentence)
        self._is_saved = False

    def move_to(self, position: str) -> None:
        """Note where the job continues if it is interrupted now."""
        self.job = states.advanced(self.job, position, now_ms=self._jobs.clock_ms())
        self._is_saved = False

    def is_save_due(self) -> bool:
        """Return whether the position was last stored some time ago."""
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def has_moved(self) -> bool:
        """Return whether the job is at a later position than when this run took it."""
        return self.job.position != self._first_position

    def age_seconds(self) -> float:
        """Return the time since this run took the job."""
        return time.monotonic() - self._began

    async def save(self) -> None:
        """Store steps and position. Raises ``HoldLost`` and the errors of the store."""
        if not self._is_saved:
            await self.store(self.job)

    async def store(self, job: AdminJob) -> None:
        """Store the job as given; it replaces the one that this run stored before.

        Raises ``HoldLost`` and the errors of the store.
        """

        def decide(stored: AdminJob) -> AdminJob:
            return dataclasses.replace(
                job, version=stored.version, is_cancelled=stored.is_cancelled
            )

        self.job = await self._jobs.change_held(job.job_id, job.holder or self.job.holder, decide)
        self._saved, self._is_saved = time.monotonic(), True

    def require_time(self) -> None:
        """Return if another step may begin.

        Raises ``HoldLost``, ``Cancelled`` and ``OutOfTime``.
        """
        if self.hold.is_lost:
            raise HoldLost(f"another run has job {self.job.job_id}")
        if self.hold.is_cancelled or self.job.is_cancelled:
            raise Cancelled("the job was cancelled")
        self._limit.require()

    async def wait(self, seconds: float) -> NoReturn:
        """Give the job back for that time: an invocation that waits costs like one that works.

        An old job, which has waited long already, is looked at less often.

        Raises ``Paused``, or as ``require_time``.
        """
        self.require_time()
        now_ms = self._jobs.clock_ms()
        pause_ms = max(
            round(seconds * 1000),
            min(PAUSE_MS_MAX, (now_ms - self.job.created_ms) // PAUSES_OF_AGE),
        )
        raise Paused(now_ms + pause_ms)


Work = Callable[[Run], Awaitable[str]]
"""Goes on with a job from its position; returns its result as JSON."""


async def run_job(
    settings: FunctionSettings,
    job_id: UUID,
    limit: TimeLimit,
    work: Work,
    *,
    renew_seconds: float = RENEW_SECONDS,
    stuck_seconds: float = STUCK_SECONDS,
) -> RunResult:
    """Take the job and work on it until it has ended or the time is over.

    After some runs of ``stuck_seconds`` or more without a step that ends the job has failed.
    Raises the passing errors of the stores after the job was given back, for another try, and
    those that prevent even that: then its hold lapses.
    """
    async with open_stores(settings) as (store, objects):
        jobs = JobStore(store, wall_clock_ms)
        job = await jobs.take(job_id, str(uuid4()))
        if job is None:
            return RunResult(Outcome.NOT_TAKEN)
        if job.has_ended:
            return RunResult(Outcome.ENDED)

        hold = JobHold(
            settings.metadata_url,
            job_id,
            job.holder,
            clock_ms=wall_clock_ms,
            renew_seconds=renew_seconds,
        )
        run = Run(jobs, job, settings=settings, objects=objects, limit=limit, hold=hold)
        with hold:
            try:
                return await _worked(run, jobs, work, stuck_seconds)
            except HoldLost:
                return RunResult(Outcome.LOST)


async def _worked(run: Run, jobs: JobStore, work: Work, stuck_seconds: float) -> RunResult:
    """Do the work and store how that has ended."""
    clock_ms = jobs.clock_ms
    try:
        result = await work(run)
    except HoldLost:
        raise
    except Cancelled:
        await run.store(states.ended_by_request(run.job, now_ms=clock_ms()))
    except Paused as pause:
        await run.store(states.given_back(run.job, due_ms=pause.due_ms))
        return RunResult(Outcome.PAUSED, pause.due_ms)
    except Interrupted:
        if run.has_moved() or run.age_seconds() < stuck_seconds:
            await run.store(states.given_back(run.job, due_ms=clock_ms()))
        else:
            await run.store(states.unmoved(run.job, now_ms=clock_ms()))
        return RunResult(Outcome.ENDED if run.job.has_ended else Outcome.CONTINUES)
    except _PASSING as error:
        now_ms = clock_ms()
        reason = f"{type(error).__name__}: {error}"
        await run.store(
            states.set_back(run.job, reason, due_ms=now_ms + BACK_OFF_MS, now_ms=now_ms)
        )
        raise
    except TidelogError as error:
        hint = f"; {error.hint}" if error.hint else ""
        problem = f"{str(error).rstrip('.')}{hint}"
        await run.store(states.failed(run.job, problem, now_ms=clock_ms()))
    except Exception:
        logger.exception("job failed unexpectedly", extra={"job_id": str(run.job.job_id)})
        problem = "the job failed unexpectedly; see the function's log for the cause"
        await run.store(states.failed(run.job, problem, now_ms=clock_ms()))
    else:
        await run.store(states.done(run.job, result, now_ms=clock_ms()))
    return RunResult(Outcome.ENDED)
