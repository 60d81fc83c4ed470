"""Topics: a list in pages, and one topic with its partitions and settings."""

from __future__ import annotations

import asyncio
from itertools import islice

from aiohttp import web
from tidelog.admin import Admin
from tidelog.administering.results import ConfigEntry, TopicDescription
from tidelog_core.errors import TopicAuthorizationFailed

from tidelog_console.facts import offsets
from tidelog_console.web_context import page, visitor_of

PAGE_TOPICS = 100
FILTER_LENGTH_MAX = 249
PARTITIONS_SHOWN_MAX = 200


async def list_(request: web.Request) -> web.Response:
    """List the topics that the visitor may describe."""
    admin = visitor_of(request).admin
    wanted = request.query.get("filter", "")[:FILTER_LENGTH_MAX].strip()
    after = request.query.get("after", "")[:FILTER_LENGTH_MAX]
    shows_internal = "internal" in request.query
    found = (
        one
        for one in await admin.list_topics(include_internal=shows_internal)
        if wanted.lower() in one.name.lower() and one.name > after
    )
    rows = list(islice(found, PAGE_TOPICS + 1))
    described = await admin.describe_topics([one.name for one in rows[:PAGE_TOPICS]])
    return page(
        request,
        "topics.html",
        title="Topics",
        topics=[described[one.name] for one in rows[:PAGE_TOPICS] if one.name in described],
        next_after=rows[PAGE_TOPICS - 1].name if len(rows) > PAGE_TOPICS else None,
        filter=wanted,
        shows_internal=shows_internal,
    )


async def describe(request: web.Request) -> web.Response:
    """Show a topic."""
    admin = visitor_of(request).admin
    name = request.match_info["topic"]
    topic = (await admin.describe_topics([name]))[name]
    shown = topic.partitions[:PARTITIONS_SHOWN_MAX]
    starts, ends, settings = await asyncio.gather(
        offsets(admin, name, shown, "earliest"),
        offsets(admin, name, shown, "latest"),
        _settings(admin, topic),
    )
    return page(
        request,
        "topic.html",
        title=name,
        topic=topic,
        partitions=shown,
        starts=starts,
        ends=ends,
        settings=settings,
    )


async def _settings(admin: Admin, topic: TopicDescription) -> list[ConfigEntry] | None:
    """Return the settings, those of the topic first; None if the visitor may not see them."""
    try:
        found = await admin.describe_configs("topic", topic.name, include_documentation=True)
    except TopicAuthorizationFailed:
        return None
    return sorted(found.values(), key=lambda one: (one.source != "dynamic_topic", one.name))


ROUTES = [web.get("/topics", list_), web.get("/topics/{topic}", describe)]
