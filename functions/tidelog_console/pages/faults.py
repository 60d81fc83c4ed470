"""The page of the cluster's faults, and what to do next about each."""

from __future__ import annotations

from aiohttp import web
from tidelog_core.metadata.stored_cluster import describe_unreadable

from tidelog_console import findings
from tidelog_console.facts import cluster_facts, may_see_cluster
from tidelog_console.node_pages import NodePage
from tidelog_console.web_context import console_of, page, visitor_of


async def show(request: web.Request) -> web.Response:
    """Show the findings; those of nodes and stores to those who may describe the cluster."""
    console, admin = console_of(request), visitor_of(request).admin
    facts = await cluster_facts(admin)
    found = list(findings.of_cluster(facts))
    sees_all = await may_see_cluster(admin)
    nodes: list[NodePage] = []
    if sees_all:
        nodes = await console.node_pages.ask()
        found += findings.of_nodes(nodes)
        if console.stores.has_metadata:
            found += findings.of_store(describe_unreadable(await console.stores.image()))
    return page(
        request,
        "faults.html",
        title="Faults",
        findings=sorted(found, key=lambda one: one.severity != findings.BAD),
        nodes=nodes,
        sees_all=sees_all,
        refresh_seconds=max(facts.refresh_seconds, console.stores.refresh_seconds),
        asks_nodes=console.node_pages.is_known,
    )


ROUTES = [web.get("/faults", show)]
