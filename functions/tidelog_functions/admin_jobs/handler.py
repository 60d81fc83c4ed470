"""The Lambda function that runs the admin API's jobs.

    {"job_id": "…"}      a run of that job
    a schedule           starts runs of jobs that nobody works on, and removes old ones

TIDELOG_METADATA              location of the metadata store
TIDELOG_OBJECTS               location of the segments
TIDELOG_CONFIG_<NAME>         a node setting, with the nodes' value
AWS_LAMBDA_FUNCTION_NAME      this function, which starts itself again; set by Lambda
"""

from __future__ import annotations

import asyncio
import logging
import os
from uuid import UUID

from tidelog_core.clock import wall_clock_ms
from tidelog_core.metadata.location import opened_metadata_store

from tidelog_functions.admin_jobs.job_starter import JOB_ID, JobStarter, LambdaStarter
from tidelog_functions.admin_jobs.run import STEP_MS_MAX, Outcome, run_job
from tidelog_functions.admin_jobs.states import is_overdue
from tidelog_functions.admin_jobs.store import JobNotFound, JobStore
from tidelog_functions.admin_jobs.work import do_work
from tidelog_functions.events import Scheduled, UnknownEvent, parse_event
from tidelog_functions.invocation import (
    Context,
    FunctionSettings,
    TimeLimit,
    parse_function_settings,
)

logger = logging.getLogger(__name__)


def handle(event: object, context: Context) -> dict[str, object]:
    """Return a summary, for the log and for tests.

    Raises ``UnknownEvent``, ``InvalidConfig`` and the passing errors of the stores, after which
    Lambda repeats the event.
    """
    settings = parse_function_settings(os.environ)
    starter = LambdaStarter(os.environ.get("AWS_LAMBDA_FUNCTION_NAME", ""))
    if isinstance(event, dict) and event.keys() == {JOB_ID}:
        summary = asyncio.run(
            _run(
                settings,
                _job_id(event[JOB_ID]),
                TimeLimit(context, reserve_ms=STEP_MS_MAX),
                starter,
            )
        )
    elif all(isinstance(one, Scheduled) for one in parse_event(event)):
        summary = asyncio.run(sweep(settings, starter))
    else:
        raise UnknownEvent("call the function by a schedule, or with only the field job_id")
    logger.info("jobs handled", extra={"summary": summary})
    return summary


async def sweep(settings: FunctionSettings, starter: JobStarter) -> dict[str, object]:
    """Start runs of jobs that nobody works on, and remove those that ended long ago."""
    started, removed, next_due_ms = list[str](), 0, None
    async with opened_metadata_store(settings.metadata_url, may_be_new=True) as store:
        jobs = JobStore(store, wall_clock_ms)
        for job in await jobs.list():
            if is_overdue(job, wall_clock_ms()):
                await starter.start(job.job_id)
                started.append(str(job.job_id))
            elif job.has_ended and job.due_ms <= wall_clock_ms():
                await jobs.remove(job)
                removed += 1
            elif not job.has_ended:
                next_due_ms = min(job.due_ms, next_due_ms or job.due_ms)
    return {"started": started, "removed_count": removed, "next_due_ms": next_due_ms}


async def _run(
    settings: FunctionSettings, job_id: UUID, limit: TimeLimit, starter: JobStarter
) -> dict[str, object]:
    try:
        result = await run_job(settings, job_id, limit, do_work)
    except JobNotFound:
        return {JOB_ID: str(job_id), "outcome": Outcome.NOT_TAKEN.value}
    if result.outcome is Outcome.CONTINUES:
        await starter.start(job_id)
    return {JOB_ID: str(job_id), "outcome": result.outcome.value}


def _job_id(value: object) -> UUID:
    try:
        return UUID(str(value))
    except ValueError:
        raise UnknownEvent(f"{JOB_ID} must be a UUID, not {value!r:.80}") from None
