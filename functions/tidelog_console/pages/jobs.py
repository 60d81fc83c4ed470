"""Jobs and receipts: keys that were erased, erasures that go on, and verifications of the tier.

A verification is the one action of the console. It changes nothing, but reads much: it needs what
the admin API asks for it, Describe of the cluster, and a form with the console's token.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.admin_jobs import AdminJob
from tidelog_core.model import USER_KIND
from tidelog_core.verification.check_run import check_planned
from tidelog_core.verification.source import planned_by_metadata
from tidelog_functions.admin_jobs.requests import topics_of

from tidelog_console.facts import may_see_cluster, require_cluster
from tidelog_console.forms import require_own_form
from tidelog_console.job_registry import Report
from tidelog_console.receipts import Receipt
from tidelog_console.web_context import Console, console_of, page, visitor_of

TOPICS_MAX = 50  # whose receipts a page lists
RECEIPTS_MAX = 100
PROBLEMS_MAX = 50
JOB_SECONDS = 2  # between looks at a job that runs
API_JOBS_MAX = 50


async def show(request: web.Request) -> web.Response:
    """Show the jobs and the receipts of the topics that the visitor may describe."""
    console, admin = console_of(request), visitor_of(request).admin
    wanted = request.query.get("topic", "")
    names = [one.name for one in await admin.list_topics()]
    chosen = [wanted] if wanted in names else names
    receipts, problem = await _receipts(console, chosen[:TOPICS_MAX])
    requests = await console.stores.erasure_requests() if console.stores.has_metadata else []
    sees_all = await may_see_cluster(admin)
    jobs = console.jobs.of_owner(visitor_of(request).name)
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
        jobs=jobs,
        api_jobs=await _api_jobs(console, visitor_of(request).name, sees_all=sees_all),
        refresh_seconds=JOB_SECONDS
        if any(not job.has_ended for job in jobs)
        else console.stores.refresh_seconds,
        may_verify=sees_all and console.stores.has_objects,
        has_objects=console.stores.has_objects,
    )


async def verify(request: web.Request) -> web.StreamResponse:
    """Start a verification of a topic's tiered segments, unless one of the visitor's goes on."""
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

    console.jobs.start(visitor.name, topic, work)
    return web.Response(status=303, headers={"Location": "/jobs"})


async def _receipts(console: Console, topics: list[str]) -> tuple[list[Receipt], str]:
    """Return the receipts, the newest first, and why some may be missing."""
    found: list[Receipt] = []
    try:
        for name in topics:
            found += await console.stores.receipts(name)
    except StoreUnavailable as error:
        return [], str(error)
    return sorted(found, key=lambda one: -one.requested_ms), ""


async def _api_jobs(
    console: Console, user: str | None, *, sees_all: bool
) -> list[tuple[AdminJob, str]]:
    """Return the admin API's jobs with their topics: all, or those that the visitor has started."""
    if not console.stores.has_metadata:
        return []
    return [
        (job, ", ".join(topics_of(job.request)) or "all")
        for job in await console.stores.admin_jobs()
        if sees_all or job.caller == f"{USER_KIND}:{user}"
    ][:API_JOBS_MAX]


ROUTES = [web.get("/jobs", show), web.post("/jobs/verify", verify)]
