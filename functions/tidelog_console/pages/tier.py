"""The tier map: every segment of a partition, and where it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID

from aiohttp import web
from tidelog.admin import Admin
from tidelog.administering.results import PartitionDescription
from tidelog_core.errors import LeaderNotAvailable, RequestTimedOut, StoreUnavailable

from tidelog_console import tier_map
from tidelog_console.facts import offsets
from tidelog_console.stores import Stores
from tidelog_console.web_context import console_of, page, visitor_of

PAGE_PARTITIONS = 25
BARS_MAX = 1_200  # of a page
TOPICS_MAX = 200


async def list_(request: web.Request) -> web.Response:
    """Show the topics to choose from."""
    names = [one.name for one in await visitor_of(request).admin.list_topics()]
    return page(
        request,
        "tier_topics.html",
        title="Tier map",
        topics=names[:TOPICS_MAX],
        left_out=max(0, len(names) - TOPICS_MAX),
    )


async def show(request: web.Request) -> web.Response:
    """Show a topic's map. A node decides whether the visitor may describe the topic."""
    console, admin = console_of(request), visitor_of(request).admin
    name = request.match_info["topic"]
    topic = (await admin.describe_topics([name]))[name]
    first = _first(request, len(topic.partitions))
    some = topic.partitions[first : first + PAGE_PARTITIONS]
    starts, ends = await _local_ranges(admin, name, some)
    tiers = await console.stores.tier_of(name, [one.partition for one in some])
    erased, receipts_problem = await _erased(console.stores, name)
    maps = [
        tier_map.partition_map(
            tier,
            local_start=starts.get(tier.partition.partition),
            log_end=ends.get(tier.partition.partition),
            erased=erased,
            now_ms=time.time_ns() // 1_000_000,
            bars_max=max(20, BARS_MAX // max(1, len(tiers))),
        )
        for tier in tiers
    ]
    return page(
        request,
        "tier.html",
        title=f"{name}: tier map",
        topic=topic,
        first=first,
        page_size=PAGE_PARTITIONS,
        maps=maps,
        meanings=tier_map.MEANINGS,
        receipts_problem=receipts_problem,
        refresh_seconds=console.stores.refresh_seconds,
    )


async def _local_ranges(
    admin: Admin, topic: str, partitions: Sequence[PartitionDescription]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return local starts and ends; empty if leaders do not answer."""
    try:
        starts, ends = await asyncio.gather(
            offsets(admin, topic, partitions, "earliest-local"),
            offsets(admin, topic, partitions, "latest"),
        )
    except (LeaderNotAvailable, RequestTimedOut):
        return {}, {}
    return starts, ends


async def _erased(stores: Stores, topic: str) -> tuple[frozenset[UUID], str]:
    try:
        receipts = await stores.receipts(topic)
        return frozenset[UUID]().union(*(one.new_segments for one in receipts)), ""
    except StoreUnavailable as error:
        return frozenset(), str(error)


def _first(request: web.Request, count: int) -> int:
    text = request.query.get("first", "0")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    return min(number, max(0, count - 1))


ROUTES = [web.get("/tier", list_), web.get("/tier/{topic}", show)]
