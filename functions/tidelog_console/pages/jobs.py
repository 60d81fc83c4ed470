"""Jobs and receipts: keys that were erased, erasures that go on, and verifications of the tier.

A verification is the one action of the console. It changes nothing, but reads much: it needs what
the admin API asks for it, Describe of the cluster, and a form with the console's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from aiohttp import web
from tidelog_core.errors import StoreUnavailable
from tidelog_core.verification.checking import check_planned
from tidelog_core.verification.source import planned_by_metadata
from tidelog_functions.admin.problems import HttpProblem

from tidelog_console.facts import may_see_cluster, require_cluster
from tidelog_console.forms import require_own_form
from tidelog_console.job_registry import Job, Report
from tidelog_console.web_context import Console, console_of, page, visitor_of

TOPICS_MAX = 50  # whose receipts a page lists
RECEIPTS_MAX = 100
PROBLEMS_MAX = 50
JOBS_MAX = 50  # remembered with their topics


async def show(request: web.Request) -> web.Response:
    """Show the jobs and the receipts of the topics that the visitor may describe."""
    console, admin = console_of(request), visitor_of(request).admin
    wanted = request.query.get("topic", "")
    names = [one.name for one in await admin.list_topics()]
    chosen = [wanted] if wanted in names else names
    receipts, problem = await _receipts(console, chosen[:TOPICS_MAX])
    requests = await console.stores.erasure_requests() if console.stores.has_metadata else []
    sees_all = await may_see_cluster(admin)
    return page(
        request,
        "jobs.html",
        title="Jobs",
        receipts=receipts[:RECEIPTS_MAX],
        problem=problem,
        requests=[one for one in requests if one.topic in names],
        topics=names,
        chosen=wanted,
        left_out=max(0, len(chosen) - TOPICS_MAX),
        jobs=await _jobs(console, visitor_of(request).name),
        may_verify=sees_all and console.stores.has_objects,
        has_objects=console.stores.has_objects,
    )


async def verify(request: web.Request) -> web.StreamResponse:
    """Start a verification of a topic's tiered segments."""
    console, visitor = console_of(request), visitor_of(request)
    form = await require_own_form(request)
    topic = str(form.get("topic", ""))
    await require_cluster(visitor.admin)
    await visitor.admin.describe_topics([topic])
    metadata, objects = console.stores.urls

    async def work(report: Report) -> dict[str, Any]:
        async with planned_by_metadata(metadata, objects, [topic]) as planned:
            found = await check_planned(planned, on_step=report.step)
        return {**found.document(problems_max=PROBLEMS_MAX), "notes": list(planned.notes)}

    job = console.jobs.start("verification", work)
    console.job_topics[job.job_id] = (visitor.name, topic)
    for old in list(islice(console.job_topics, max(0, len(console.job_topics) - JOBS_MAX))):
        del console.job_topics[old]
    return web.Response(status=303, headers={"Location": "/jobs"})


async def _receipts(console: Console, topics: list[str]) -> tuple[list[Mapping[str, Any]], str]:
    """Return what the receipts say, the newest first, and why some may be missing."""
    found: list[Mapping[str, Any]] = []
    try:
        for name in topics:
            found += map(_summary, await console.stores.receipts(name))
    except StoreUnavailable as error:
        return [], str(error)
    return sorted(found, key=lambda one: -int(one["requested_ms"])), ""


def _summary(receipt: Mapping[str, Any]) -> Mapping[str, Any]:
    partitions = receipt["partitions"]
    replaced = [one for part in partitions for one in part["segments_replaced"]]
    on_replicas = [
        one
        for part in partitions
        for replica in part.get("replicas", ())
        for one in replica["segments_replaced"]
    ]
    return {
        "erasure_id": receipt["erasure_id"],
        "topic": receipt["topic"],
        "key_sha256": receipt["key_sha256"],
        "requested_ms": receipt["requested_ms"],
        "ended_ms": receipt["ended_ms"],
        "is_done": receipt["is_done"],
        "record_count": sum(len(one["removed_offsets"]) for one in replaced),
        "segment_count": len(replaced) + len(on_replicas),
        "problems": [text for part in partitions for text in part["problems"]],
    }


async def _jobs(console: Console, user: str | None) -> list[tuple[str, Job]]:
    """Return the visitor's own verifications, the newest first."""
    found = []
    for job_id, (owner, topic) in reversed(list(console.job_topics.items())):
        if owner != user:
            continue
        try:
            found.append((topic, await console.jobs.wait(job_id, after_step=-1, seconds=0)))
        except HttpProblem:
            del console.job_topics[job_id]  # It was forgotten.
    return found


ROUTES = [web.get("/jobs", show), web.post("/jobs/verify", verify)]
