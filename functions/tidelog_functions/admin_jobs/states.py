"""The states of a job's item, and their changes. No I/O."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from tidelog_core.metadata.admin_jobs import NO_HOLDER, AdminJob, JobKind, JobState

from tidelog_functions.admin_jobs.requests import without_key

HOLD_MS = 60_000  # renewed long before; afterwards another run may take the job
OVERDUE_MS = 5_000  # the time that a started run has to take it
KEPT_MS = 7 * 86_400_000  # after its end
LOST_MAX = 5  # runs one after another that ended without progress
STEPS_KEPT_MAX = 50
STEP_CHARACTERS_MAX = 300
PROBLEM_CHARACTERS_MAX = 4_000


def new_job(job_id: UUID, kind: JobKind, request: str, *, caller: str, now_ms: int) -> AdminJob:
    """Return a job that any run may take."""
    return AdminJob(
        job_id=job_id,
        kind=kind,
        state=JobState.WAITING,
        caller=caller,
        request=request,
        created_ms=now_ms,
        due_ms=now_ms,
    )


def is_overdue(job: AdminJob, now_ms: int) -> bool:
    """Return whether the job should be worked on and no process does."""
    return not job.has_ended and now_ms >= job.due_ms + OVERDUE_MS


def taken(job: AdminJob, holder: str, *, now_ms: int) -> AdminJob | None:
    """Return the job as this run holds it; ``None`` if it is not to be taken now."""
    if job.holder == holder:  # An earlier attempt has succeeded.
        return kept(job, now_ms=now_ms)
    if job.has_ended or now_ms < job.due_ms:
        return None
    lost = job.lost_count + (job.state is JobState.RUNNING)
    if lost > LOST_MAX:
        return failed(job, _given_up(lost), now_ms=now_ms)
    return dataclasses.replace(
        job, state=JobState.RUNNING, holder=holder, due_ms=now_ms + HOLD_MS, lost_count=lost
    )


def kept(job: AdminJob, *, now_ms: int) -> AdminJob:
    """Return the job with a renewed hold."""
    return dataclasses.replace(job, due_ms=now_ms + HOLD_MS)


def stepped(job: AdminJob, sentence: str) -> AdminJob:
    """Return the job with one more step, without the oldest if there are many.

    A run that goes on with the last step of the run before adds none.
    """
    step = sentence[:STEP_CHARACTERS_MAX]
    if job.steps[-1:] == (step,):
        return job
    steps = (*job.steps, step)[-STEPS_KEPT_MAX:]
    return dataclasses.replace(job, steps=steps, step_count=job.step_count + 1)


def advanced(job: AdminJob, position: str, *, now_ms: int) -> AdminJob:
    """Return the job at a position; at a later one than before it has made progress."""
    lost = job.lost_count if position == job.position else 0
    return dataclasses.replace(kept(job, now_ms=now_ms), position=position, lost_count=lost)


def given_back(job: AdminJob, *, due_ms: int) -> AdminJob:
    """Return the job for another run, from that time on."""
    return dataclasses.replace(job, state=JobState.WAITING, holder=NO_HOLDER, due_ms=due_ms)


def unmoved(job: AdminJob, *, now_ms: int) -> AdminJob:
    """Return the job after a run whose time was over before its first step had ended."""
    lost = job.lost_count + 1
    if lost > LOST_MAX:
        return failed(job, f"a step takes longer than a run; {_given_up(lost)}", now_ms=now_ms)
    return dataclasses.replace(given_back(job, due_ms=now_ms), lost_count=lost)


def set_back(job: AdminJob, reason: str, *, due_ms: int, now_ms: int) -> AdminJob:
    """Return the job after a run that failed in a way that another one may not."""
    lost = job.lost_count + 1
    if lost > LOST_MAX:
        return failed(job, f"{reason}; {_given_up(lost)}", now_ms=now_ms)
    waiting = given_back(stepped(job, f"trying again: {reason}"), due_ms=due_ms)
    return dataclasses.replace(waiting, lost_count=lost)


def done(job: AdminJob, result: str, *, now_ms: int) -> AdminJob:
    """Return the job with its result."""
    return dataclasses.replace(_ended(job, JobState.DONE, now_ms), result=result)


def failed(job: AdminJob, problem: str, *, now_ms: int) -> AdminJob:
    """Return the job with the reason of its failure."""
    ended = _ended(job, JobState.FAILED, now_ms)
    return dataclasses.replace(ended, problem=problem[:PROBLEM_CHARACTERS_MAX])


def cancelled(job: AdminJob, *, now_ms: int) -> AdminJob:
    """Return the job after a request to cancel it: its holder, if there is one, ends it."""
    if job.has_ended:
        return job
    if job.state is JobState.RUNNING and now_ms < job.due_ms:
        return dataclasses.replace(job, is_cancelled=True)
    return _ended(job, JobState.CANCELLED, now_ms)


def ended_by_request(job: AdminJob, *, now_ms: int) -> AdminJob:
    """Return the job that its holder has ended because it was cancelled."""
    return _ended(job, JobState.CANCELLED, now_ms)


def _ended(job: AdminJob, state: JobState, now_ms: int) -> AdminJob:
    return dataclasses.replace(
        job,
        state=state,
        holder=NO_HOLDER,
        request=without_key(job.request),
        position="",
        due_ms=now_ms + KEPT_MS,
    )


def _given_up(lost: int) -> str:
    return f"given up after {lost} runs without progress; the function's log has their errors"
