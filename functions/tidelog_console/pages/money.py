"""What the cluster costs an hour, and why: the ledger's counts by item and by topic."""

from __future__ import annotations

from aiohttp import web
from tidelog_core.cost.report import Period

from tidelog_console.facts import require_cluster
from tidelog_console.web_context import console_of, page, visitor_of

TOPICS_MAX = 20


async def show(request: web.Request) -> web.Response:
    """Show the costs to those who may describe the cluster, as the admin API does."""
    admin = visitor_of(request).admin
    await require_cluster(admin)
    asked = request.query.get("last", Period.HOUR)
    period = Period(asked) if asked in list(Period) else Period.HOUR
    seen = {one.name for one in await admin.list_topics(include_internal=True)}
    found = await console_of(request).stores.costs(
        period, topics_max=TOPICS_MAX, sees_topic=seen.__contains__
    )
    return page(
        request, "money.html", title="Money", found=found, period=period.value, periods=list(Period)
    )


ROUTES = [web.get("/money", show)]
