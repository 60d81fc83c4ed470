"""``tidelog consume``: records of a topic, printed as they come."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import RECORDS_TIMEOUT_MS, client_factory, opened_cluster
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap
from tidelog_cli.output import Advance, note, progress
from tidelog_cli.record_text import RecordFormat, json_line, parse_format, value_line

if TYPE_CHECKING:
    from tidelog.cluster import Cluster
    from tidelog.consumer import Consumer
    from tidelog.consuming.records import ConsumerRecord
    from tidelog_core.model import TopicPartition

POLL_RECORDS_MAX = 5_000
TOPIC_SECONDS_MAX = 3.0
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins: one of the ends, ``number`` records before the end, or there."""

    kind: str  # earliest, latest, offset, last, time
    number: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """When reading ends by itself; None: never."""

    records: int | None
    idle_seconds: float | None


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the first record; in a group only where it has committed nothing.",
        ),
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this group, and commit.")
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest (the default), N, -N (the last N), @MS (since a time).",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this; may be repeated.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="End after so many records.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="End when no record came for so long."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEXT",
            help=r"%s value, %k key, %t topic, %p partition, %o offset, %T time, %h headers, "
            r"%S and %K sizes; \n and \t. By default %s\n.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a record.")] = False,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Leave out what was aborted or is open.")
    ] = False,
) -> None:
    """Print the records of TOPIC.

    Ends with Ctrl-C, or as the options say; in a group, what was printed is committed then.
    """
    if group is not None and (partition or offset is not None):
        raise UsageError("--group divides the partitions by itself: no --partition, no --offset")
    if from_beginning and offset is not None:
        raise UsageError("--from-beginning is --offset earliest: give one of the two")
    if json and format is not None:
        raise UsageError("--json and --format exclude one another")
    start = Start(EARLIEST) if from_beginning else parse_start(offset or LATEST)
    writer = json_line if json else value_line if format is None else parse_format(format)
    reading = _Reading(topic, bootstrap, group, start, tuple(partition or ()), read_committed)
    count = asyncio.run(_consume(reading, Limits(max_messages, timeout), writer))
    note(f"{count} records read from {topic}")


def parse_start(text: str) -> Start:
    """Return where ``--offset`` says to begin. Raises ``UsageError``."""
    if text in (EARLIEST, LATEST):
        return Start(text)
    kind, digits = "offset", text
    if text.startswith("-"):
        kind, digits = "last", text[1:]
    elif text.startswith("@"):
        kind, digits = "time", text[1:]
    if not digits.isascii() or not digits.isdecimal():
        raise UsageError(
            f"--offset {text!r} must be earliest, latest, N, -N (the last N) or @MS (Unix time)"
        )
    return Start(kind, int(digits))


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is read."""

    topic: str
    bootstrap: str
    group: str | None
    start: Start
    partitions: tuple[int, ...]  # none: all of them
    is_committed_only: bool


async def _consume(reading: _Reading, limits: Limits, writer: RecordFormat) -> int:
    async with _started(reading) as consumer:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        _watch_pipe(stop)
        if sys.stdout.isatty():
            return await _print_records(consumer, limits, writer, stop, lambda _: None)
        with progress(f"from {reading.topic}", total=limits.records, unit="records") as advance:
            return await _print_records(consumer, limits, writer, stop, advance)


@asynccontextmanager
async def _started(reading: _Reading) -> AsyncIterator[Consumer]:
    """Yield a consumer that reads what it should from where it should."""
    from tidelog.consumer import Consumer

    async with opened_cluster(reading.bootstrap) as cluster:
        partitions = await _partitions(cluster, reading)
        offsets = {}
        if reading.group is None:
            offsets = await _start_offsets(cluster, partitions, reading)
    consumer = client_factory(reading.bootstrap, request_timeout_ms=RECORDS_TIMEOUT_MS).make(
        Consumer,
        group_id=reading.group,
        auto_offset_reset="earliest" if reading.start.kind == EARLIEST else "latest",
        isolation_level="read_committed" if reading.is_committed_only else "read_uncommitted",
    )
    async with consumer:
        if reading.group is not None:
            consumer.subscribe([reading.topic])
        else:
            consumer.assign(partitions)
            for partition, offset in offsets.items():
                consumer.seek(partition, offset)
        yield consumer


async def _partitions(cluster: Cluster, reading: _Reading) -> list[TopicPartition]:
    from tidelog.errors import UnknownTopicOrPartition
    from tidelog_core.model import TopicPartition

    try:
        info = await cluster.wait_for_topic(reading.topic, timeout_s=TOPIC_SECONDS_MAX)
    except UnknownTopicOrPartition:
        raise CommandFailed(f"there is no topic {reading.topic!r}") from None
    for number in reading.partitions:
        if number not in info.partitions:
            last = info.partition_count - 1
            raise CommandFailed(f"topic {reading.topic!r} has partitions 0 to {last}, not {number}")
    return [TopicPartition(reading.topic, n) for n in reading.partitions or info.partitions]


async def _start_offsets(
    cluster: Cluster, partitions: list[TopicPartition], reading: _Reading
) -> dict[TopicPartition, int]:
    """Return the offset to start at for each partition, within what there is."""
    from tidelog.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets

    async def look_up(timestamp: int) -> dict[TopicPartition, int]:
        found = await list_offsets(
            cluster,
            dict.fromkeys(partitions, timestamp),
            read_committed=reading.is_committed_only,
            timeout_s=cluster.request_timeout_s,
        )
        return {partition: at.offset for partition, at in found.items()}

    start = reading.start
    firsts = await look_up(EARLIEST_TIMESTAMP)
    if start.kind == EARLIEST:
        return firsts
    ends = await look_up(LATEST_TIMESTAMP)
    match start.kind:
        case "last":
            return {p: max(firsts[p], end - start.number) for p, end in ends.items()}
        case "time":
            found = await look_up(start.number)
            return {p: at if at >= 0 else ends[p] for p, at in found.items()}
        case "offset":
            for partition, end in ends.items():
                if not firsts[partition] <= start.number <= end:
                    raise CommandFailed(
                        f"{partition} has offsets {firsts[partition]} to {end}, not {start.number}"
                    )
            return dict.fromkeys(partitions, start.number)
    return ends


async def _print_records(
    consumer: Consumer,
    limits: Limits,
    writer: RecordFormat,
    stop: asyncio.Event,
    advance: Advance,
) -> int:
    """Print until a limit or ``stop``; return how many records there were."""
    count = 0
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set() and (limits.records is None or count < limits.records):
            wanted = POLL_RECORDS_MAX
            if limits.records is not None:
                wanted = min(wanted, limits.records - count)
            records = await _poll(consumer, wanted, limits.idle_seconds, stopping)
            if records is None:
                break
            # A reader of the pipe that is slow must not keep us from our group.
            await asyncio.to_thread(_write, b"".join([writer(record) for record in records]))
            count += len(records)
            advance(len(records))
    finally:
        stopping.cancel()
    if _is_pipe_closed():
        raise BrokenPipeError(errno.EPIPE, "nobody reads what is printed")
    return count


async def _poll(
    consumer: Consumer, wanted: int, idle_seconds: float | None, stopping: asyncio.Task[object]
) -> list[ConsumerRecord] | None:
    """Return some records, None when there were none for too long or it is time to stop."""
    timeout_ms = float("inf") if idle_seconds is None else idle_seconds * 1000
    polling = asyncio.create_task(consumer.poll(max_records=wanted, timeout_ms=timeout_ms))
    await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not polling.done():
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        return None
    return polling.result() or None


def _watch_pipe(stop: asyncio.Event) -> None:
    """Set ``stop`` when the program behind the pipe ends: there may be no next write to tell."""
    descriptor = sys.stdout.fileno()
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        # Our end is for writing: it becomes «readable» only by its error.
        asyncio.get_running_loop().add_reader(descriptor, stop.set)


def _is_pipe_closed() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # Errors are always reported.
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
