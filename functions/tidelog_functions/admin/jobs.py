"""Operations on jobs: verifications and erasures, their progress, their results and their end."""

from __future__ import annotations

import asyncio
import binascii
import json
from base64 import b64decode
from typing import Any
from uuid import UUID, uuid4

from tidelog_core.clock import wall_clock_ms
from tidelog_core.metadata.admin_jobs import AdminJob, JobKind, JobState
from tidelog_core.security.acl import CLUSTER_NAME, AclOperation, ResourceType

from tidelog_functions.admin.caller import Caller
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import ANSWER_SIZE_BYTES_MAX, HttpAnswer
from tidelog_functions.admin.problems import HttpProblem
from tidelog_functions.admin.rights import refuse
from tidelog_functions.admin_jobs.job_starter import JobStarter
from tidelog_functions.admin_jobs.requests import (
    TIMEOUT_SECONDS,
    ErasureRequest,
    VerificationRequest,
    topics_of,
    without_key,
)
from tidelog_functions.admin_jobs.states import cancelled, is_overdue, new_job
from tidelog_functions.admin_jobs.store import JobNotFound, JobStore

# A job's item has its request, its position with findings, and its steps: 380 KB together.
REQUEST_CHARACTERS_MAX = 100_000
LOOK_SECONDS = 0.5  # between two looks at a job that runs in another process


async def start_verification(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Start a job that checks the tiered segments of some topics, or of all."""
    topics = list(call.body.get("topics", ()))
    await cluster.view.refresh()
    for name in topics:
        cluster.known_topic(name)
    request = VerificationRequest(topics).to_json()
    return await _started(cluster, call, JobKind.VERIFICATION, request)


async def start_erasure(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Start a job that erases a key from a topic, or with ``dry_run`` counts its records."""
    body = call.body
    topic = await cluster.topic(body["topic"])
    request = ErasureRequest(
        topic.name,
        _key(body["key_base64"]),
        is_dry_run=body.get("dry_run", False),
        timeout_seconds=body.get("timeout_seconds", TIMEOUT_SECONDS),
    )
    return await _started(cluster, call, JobKind.ERASURE, request.to_json())


async def list_jobs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return the jobs that the caller may see, the newest first."""
    may_see_all = _may(call.caller, AclOperation.DESCRIBE)
    jobs = [
        job
        for job in await _jobs(cluster).list()
        if may_see_all or call.caller.is_dry_run or job.caller == call.caller.name
    ]
    return HttpAnswer({"jobs": [_summary(job) for job in jobs]})


async def describe_job(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a job; if requests may wait, once it has more steps than the caller knows."""
    after_step = call.parameters["after_step"]
    wait_seconds = call.parameters["wait_seconds"] if cluster.waits_for_news else 0
    loop, jobs = asyncio.get_running_loop(), _jobs(cluster)
    deadline = loop.time() + wait_seconds
    job = await _visible(cluster, call)
    if cluster.jobs is not None and is_overdue(job, wall_clock_ms()):
        await cluster.jobs.start(job.job_id)
    while not job.has_ended and job.step_count <= after_step:
        left = deadline - loop.time()
        if left <= 0:
            break
        await asyncio.sleep(min(left, LOOK_SECONDS))
        job = await jobs.get(job.job_id)
    return HttpAnswer(_document(job, after_step=after_step))


async def describe_receipt(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return the receipt of an erasure that is done."""
    job = await _visible(cluster, call)
    result = json.loads(job.result or "{}")
    if "receipt_key" not in result:
        raise HttpProblem(404, f"Job {job.job_id} has no receipt: it is no erasure, or not done.")
    key = result["receipt_key"]
    objects = cluster.objects()
    size_bytes = (await objects.head(key)).size_bytes
    if size_bytes > ANSWER_SIZE_BYTES_MAX:
        raise HttpProblem(422, f"The receipt has {size_bytes} bytes; read it in the bucket: {key}.")
    return HttpAnswer(json.loads(await objects.get(key)))


async def cancel_job(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Have a job end after its current step. What it has done stays done."""
    job = await _visible(cluster, call)
    if job.caller != call.caller.name and not _may(call.caller, AclOperation.ALTER):
        refuse(call.caller, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    changed = await _jobs(cluster).change(
        job.job_id, lambda found: cancelled(found, now_ms=wall_clock_ms())
    )
    assert changed is not None
    return HttpAnswer(_document(changed, after_step=0))


async def _started(cluster: AdminCluster, call: Call, kind: JobKind, request: str) -> HttpAnswer:
    starter = _starter(cluster)
    if len(request) > REQUEST_CHARACTERS_MAX:
        raise _too_large(len(request))
    given = call.body.get("job_id")
    job = new_job(
        uuid4() if given is None else _new_id(given),
        kind,
        request,
        caller=call.caller.name,
        now_ms=wall_clock_ms(),
    )
    stored = await _jobs(cluster).add(job)
    if stored.caller != job.caller or stored.kind is not kind or not _same(stored, job):
        raise HttpProblem(409, f"There is another job {job.job_id}: give each an id of its own.")
    if not stored.has_ended:
        await starter.start(stored.job_id)
    return HttpAnswer(_document(stored, after_step=0), status=202)


def _too_large(size: int) -> HttpProblem:
    problem = HttpProblem(
        422, f"The request has {size} characters; a job takes {REQUEST_CHARACTERS_MAX}."
    )
    problem.hint = (
        "name fewer topics, or none for all topics; erase a larger key where the stores are reached"
    )
    return problem


def _same(stored: AdminJob, job: AdminJob) -> bool:
    # An ended job has no key any more, so only the rest of its request can be compared.
    request = without_key(job.request) if stored.has_ended else job.request
    return stored.request == request


async def _visible(cluster: AdminCluster, call: Call) -> AdminJob:
    """Return the job of the call. Raises ``JobNotFound``, also if the caller may not see it."""
    text = call.parameters["job_id"]
    job = await _jobs(cluster).get(_job_id(text))
    caller = call.caller
    if (
        job.caller != caller.name
        and not _may(caller, AclOperation.DESCRIBE)
        and caller.deny(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    ):
        raise JobNotFound(text)
    return job


def _may(caller: Caller, operation: AclOperation) -> bool:
    return caller.has_right(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _summary(job: AdminJob) -> dict[str, Any]:
    return {
        "job_id": str(job.job_id),
        "kind": job.kind.value,
        "state": job.state.value,
        "topics": topics_of(job.request),
        "caller": job.caller,
        "created_ms": job.created_ms,
        "is_cancelled": job.is_cancelled or job.state is JobState.CANCELLED,
        "step_count": job.step_count,
    }


def _document(job: AdminJob, *, after_step: int) -> dict[str, Any]:
    """Return the job for JSON, with the steps after the first ``after_step``."""
    forgotten = job.step_count - len(job.steps)
    return {
        **_summary(job),
        "steps": list(job.steps[max(0, after_step - forgotten) :]),
        "result": json.loads(job.result) if job.result else None,
        "problem": job.problem or None,
    }


def _jobs(cluster: AdminCluster) -> JobStore:
    return JobStore(cluster.store, wall_clock_ms)


def _starter(cluster: AdminCluster) -> JobStarter:
    if cluster.jobs is None:
        problem = HttpProblem(422, "This API runs no jobs.")
        problem.hint = (
            "set TIDELOG_ADMIN_JOBS_FUNCTION in its environment, or run `tidelog` with --metadata"
            " and --objects, where the stores are reached"
        )
        raise problem
    return cluster.jobs


def _job_id(text: str) -> UUID:
    """Return the id. Raises ``JobNotFound``."""
    try:
        return UUID(text)
    except ValueError:
        raise JobNotFound(text) from None


def _new_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise HttpProblem(422, "job_id is no UUID.") from None


def _key(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HttpProblem(422, "key_base64 is not valid base64.") from None
