"""The cluster at a glance: nodes, leaders, replicas in sync, disks, versions."""

from __future__ import annotations

from aiohttp import web

from tidelog_console.facts import NAMES_SHOWN_MAX, cluster_facts
from tidelog_console.web_context import page, visitor_of


async def show(request: web.Request) -> web.Response:
    """Show the cluster."""
    found = await cluster_facts(visitor_of(request).admin)
    return page(request, "cluster.html", title="Cluster", found=found, names_max=NAMES_SHOWN_MAX)


ROUTES = [web.get("/", show)]
