"""Numbers as they change: records a second, of a topic or of all that the visitor may see."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from tidelog.admin import Admin
from tidelog.administering.results import OffsetSpec
from tidelog_core.errors import TidelogError
from tidelog_core.model import TopicPartition

from tidelog_console.stream import StreamEnded, opened_stream
from tidelog_console.web_context import visitor_of

LATEST: OffsetSpec = "latest"
SAMPLE_SECONDS = 2.0
PARTITIONS_MAX = 500  # of one sample, so that a page costs the nodes little
NAMES_SECONDS = 10.0  # until the partitions are looked up again


async def follow(request: web.Request) -> web.StreamResponse:
    """Send a sample every two seconds."""
    topic = request.query.get("topic")
    admin = visitor_of(request).admin
    partitions = await _partitions(admin, topic)
    async with opened_stream(request) as stream:
        loop = asyncio.get_running_loop()
        before: dict[TopicPartition, int] = {}
        before_at = looked_up_at = loop.time()
        try:
            while True:
                try:
                    if loop.time() - looked_up_at > NAMES_SECONDS:
                        partitions, looked_up_at = await _partitions(admin, topic), loop.time()
                    found = (
                        await admin.list_offsets(dict.fromkeys(partitions, LATEST))
                        if partitions
                        else {}
                    )
                except TidelogError as error:
                    await stream.send("problem", {"detail": str(error)})
                    return stream.response  # The page asks again.
                now = loop.time()
                ends = {name: one.offset for name, one in found.items()}
                if before and now > before_at:
                    added = sum(max(0, end - before.get(p, end)) for p, end in ends.items())
                    rate = added / (now - before_at)
                    await stream.send("sample", {"at": time.time(), "rate": rate})
                else:
                    await stream.beat()
                before, before_at = ends, now
                await asyncio.sleep(SAMPLE_SECONDS)
        except StreamEnded:
            return stream.response


async def _partitions(admin: Admin, topic: str | None) -> list[TopicPartition]:
    """Return the partitions with a leader; not more than a sample may have."""
    names = [one.name for one in await admin.list_topics()] if topic is None else [topic]
    described = await admin.describe_topics(names)
    found = [
        TopicPartition(one.name, partition.partition)
        for one in described.values()
        for partition in one.partitions
        if partition.leader >= 0
    ]
    return found[:PARTITIONS_MAX]


ROUTES = [web.get("/events/numbers", follow)]
