"""The live tail of a topic: its records as they arrive, or a sample of them if there are many.

A stream sends at most ``RECORDS_PER_SECOND`` records. If more arrive, it goes on at the end of the
log, and says how many offsets it left out: the console never reads more than it shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web
from tidelog.administering.results import OffsetSpec
from tidelog.consumer import Consumer
from tidelog_core.errors import TidelogError, UnknownTopicOrPartition
from tidelog_core.model import TopicPartition

from tidelog_console.record_view import record_view
from tidelog_console.sessions import Visitor
from tidelog_console.stream import BEAT_SECONDS, EventStream, StreamEnded, opened_stream
from tidelog_console.web_context import page, visitor_of

RECORDS_PER_SECOND = 40
POLL_RECORDS_MAX = 20
LAST_DEFAULT, LAST_MAX = 10, 100
PARTITIONS_MAX = 256
FETCH_BYTES_MAX = 1024 * 1024
PREFETCH_BYTES_MAX = 4 * 1024 * 1024
FAR_BEHIND = 2 * RECORDS_PER_SECOND  # offsets of all partitions, from where it skips


async def show(request: web.Request) -> web.Response:
    """Show the page of the tail; its script opens the stream."""
    name = request.match_info["topic"]
    topic = (await visitor_of(request).admin.describe_topics([name]))[name]
    return page(
        request,
        "tail.html",
        title=f"{name}: live tail",
        topic=topic,
        partition=_number(request, "partition", None, len(topic.partitions)),
        last=_number(request, "last", LAST_DEFAULT, LAST_MAX),
    )


async def follow(request: web.Request) -> web.StreamResponse:
    """Send the last records, and those that come."""
    visitor = visitor_of(request)
    name = request.query.get("topic", "")
    topic = (await visitor.admin.describe_topics([name]))[name]
    only = _number(request, "partition", None, len(topic.partitions))
    last = _number(request, "last", LAST_DEFAULT, LAST_MAX) or 0
    numbers = [
        one.partition
        for one in topic.partitions
        if only in (None, one.partition) and one.leader >= 0
    ]
    partitions = [TopicPartition(name, number) for number in numbers[:PARTITIONS_MAX]]
    if not partitions:
        raise UnknownTopicOrPartition(
            f"No partition of the topic {name} that was asked for has a leader."
        )
    async with opened_stream(request) as stream:
        consumer = _consumer(visitor)
        try:
            await _follow(stream, consumer, partitions, last)
        except StreamEnded:
            pass
        except TidelogError as error:
            await _tell(stream, error)
        finally:
            await consumer.close()
        return stream.response


def _consumer(visitor: Visitor) -> Consumer:
    return visitor.factory.make(
        Consumer,
        auto_offset_reset="latest",
        enable_auto_commit=False,
        fetch_max_bytes=FETCH_BYTES_MAX,
        max_partition_fetch_bytes=FETCH_BYTES_MAX,
        prefetch_bytes_max=PREFETCH_BYTES_MAX,
    )


async def _follow(
    stream: EventStream, consumer: Consumer, partitions: list[TopicPartition], last: int
) -> None:
    await consumer.start()
    consumer.assign(partitions)
    for partition, offset in (await _last_offsets(stream.visitor, partitions, last)).items():
        consumer.seek(partition, offset)
    await stream.send("begin", {"partitions": len(partitions)})
    loop = asyncio.get_running_loop()
    while True:
        second_ends = loop.time() + 1.0
        sent = 0
        while sent < RECORDS_PER_SECOND:
            wanted = min(POLL_RECORDS_MAX, RECORDS_PER_SECOND - sent)
            records = await consumer.poll(max_records=wanted, timeout_ms=BEAT_SECONDS * 1000)
            if not records:
                await stream.beat()
                break
            await stream.send("records", [record_view(record) for record in records])
            sent += len(records)
            if loop.time() >= second_ends:
                break
        if sent >= RECORDS_PER_SECOND:
            await asyncio.sleep(max(0.0, second_ends - loop.time()))
            await _skip(stream, consumer, partitions)


async def _skip(stream: EventStream, consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Go to the end if it is far away."""
    ends = await _offsets(stream.visitor, partitions, "latest")
    positions = {partition: await consumer.position(partition) for partition in ends}
    left_out = sum(max(0, end - positions[p]) for p, end in ends.items())
    if left_out <= FAR_BEHIND:
        return
    share = RECORDS_PER_SECOND // len(partitions)
    for partition, end in ends.items():
        consumer.seek(partition, max(positions[partition], end - share))
    await stream.send("skipped", {"offsets": left_out})


async def _last_offsets(
    visitor: Visitor, partitions: list[TopicPartition], last: int
) -> Mapping[TopicPartition, int]:
    """Return where the last records begin; a page has so many of them, of all partitions."""
    ends = await _offsets(visitor, partitions, "latest")
    starts = await _offsets(visitor, partitions, "earliest")
    share = -(-last // len(partitions))
    return {p: max(starts.get(p, 0), end - share) for p, end in ends.items()}


async def _offsets(
    visitor: Visitor, partitions: list[TopicPartition], spec: OffsetSpec
) -> Mapping[TopicPartition, int]:
    found = await visitor.admin.list_offsets(dict.fromkeys(partitions, spec))
    return {partition: one.offset for partition, one in found.items()}


async def _tell(stream: EventStream, error: TidelogError) -> None:
    try:
        await stream.send("problem", {"detail": str(error), "hint": error.hint})
    except StreamEnded:
        return


def _number(request: web.Request, name: str, default: int | None, most: int) -> int | None:
    """Return a number of the query, not more than ``most``; the default if it is none."""
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        return default
    return min(int(text), most)


ROUTES = [web.get("/topics/{topic}/tail", show), web.get("/events/tail", follow)]
