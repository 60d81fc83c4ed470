"""``tidelog consume`` prints records of a topic as they arrive."""

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
from tidelog_cli.completion import complete_group
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.named_arguments import Topic
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, require_choice
from tidelog_cli.output import Advance, counted, note, progress
from tidelog_cli.reaching import opened
from tidelog_cli.records.decoded_records import BYTES, FORMATS, FORMATS_HELP, RecordDecoder
from tidelog_cli.records.grep import RecordFilter
from tidelog_cli.records.grep import grep as matching
from tidelog_cli.records.record_text import RecordFormat, json_line, parse_format, value_line
from tidelog_cli.registry.registry_access import DEFAULT_REGISTRY, Registry

if TYPE_CHECKING:
    from tidelog.cluster import Cluster
    from tidelog.consumer import Consumer
    from tidelog.consuming.records import ConsumerRecord
    from tidelog_core.model import TopicPartition

POLL_RECORDS_MAX = 5_000
TOPIC_SECONDS_MAX = 1.0  # a topic that was just created is known within 0.2 s
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class Start:
    """A start position: an end, an offset, ``number`` records before the end, or a time."""

    kind: str  # earliest, latest, offset, last, time
    number: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the printed records; None: no limit."""

    records: int | None
    idle_seconds: float | None
    filter: RecordFilter | None = None  # the records that are printed and counted


def consume(
    topic: Topic,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the first record; in a group, only without a committed offset.",
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Read as a member of this group, and commit.",
            autocompletion=complete_group,
        ),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest (the default), N, -N (the last N) or @MS (since a Unix time).",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Read only this partition; may be repeated.")
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", "-n", min=1, help="Stop after this many records."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Stop after this long without a record."),
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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per record.")] = False,
    value_format: Annotated[str, typer.Option(help=f"Of values: {FORMATS_HELP}")] = BYTES,
    key_format: Annotated[str, typer.Option(help="Of keys, likewise.")] = BYTES,
    registry: Registry = DEFAULT_REGISTRY,
    grep: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Print only records whose key, value or a header has a match (RE2's syntax).",
        ),
    ] = None,
    read_committed: Annotated[
        bool,
        typer.Option("--read-committed", help="Skip records of aborted and open transactions."),
    ] = False,
) -> None:
    """Print the records of TOPIC.

    Stops at Ctrl-C or at a limit; in a group, the offsets of printed records are committed. Records
    that cannot be decoded are named on stderr; the exit status is 1 then.
    """
    require_choice("--value-format", value_format, FORMATS)
    require_choice("--key-format", key_format, FORMATS)
    if group is not None and (partition or offset is not None):
        raise UsageError("--group assigns the partitions itself: remove --partition and --offset")
    if from_beginning and offset is not None:
        raise UsageError("--from-beginning is the same as --offset earliest: give only one")
    if json and format is not None:
        raise UsageError("--json and --format exclude each other: give only one")
    start = Start(EARLIEST) if from_beginning else parse_start(offset or LATEST)
    writer = json_line if json else value_line if format is None else parse_format(format)
    decoder = RecordDecoder.of(key_format, value_format, registry)
    if decoder is not None:
        writer = decoder.json_format() if json else decoder.text_format(writer)
    reading = _Reading(topic, bootstrap, group, start, tuple(partition or ()), read_committed)
    limits = Limits(max_messages, timeout, None if grep is None else matching(grep))
    count = asyncio.run(_consume(reading, limits, writer))
    note(f"{counted(count, 'record')} read from {topic}")
    if decoder is not None:
        decoder.require_all()


def parse_start(text: str) -> Start:
    """Parse the value of ``--offset``. Raises ``UsageError``."""
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
    """The partitions to read, and how."""

    topic: str
    bootstrap: str
    group: str | None
    start: Start
    partitions: tuple[int, ...]  # empty: all of them
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
    """Yield a consumer at its start position."""
    from tidelog.consumer import Consumer

    async with opened_cluster(reading.bootstrap) as cluster:
        partitions = await _partitions(cluster, reading)
        offsets = {}
        if reading.group is None:
            offsets = await _start_offsets(cluster, partitions, reading)
    factory = client_factory(reading.bootstrap, request_timeout_ms=RECORDS_TIMEOUT_MS)
    consumer = factory.make(
        Consumer,
        group_id=reading.group,
        auto_offset_reset="earliest" if reading.start.kind == EARLIEST else "latest",
        isolation_level="read_committed" if reading.is_committed_only else "read_uncommitted",
    )
    # The consumer's own exit commits nothing after a failure: what it has polled last was not
    # printed, or not all of it.
    async with opened(consumer, factory), consumer:
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
        cluster.want_all()
        await cluster.refresh()
        raise UnknownTopicOrPartition.of_topic(reading.topic, cluster.topics()) from None
    for number in reading.partitions:
        if number not in info.partitions:
            last = info.partition_count - 1
            raise CommandFailed(f"topic {reading.topic!r} has partitions 0 to {last}, not {number}")
    partitions = [TopicPartition(reading.topic, n) for n in reading.partitions or info.partitions]
    for partition in partitions:
        if cluster.leader(partition) is None:
            note(f"{partition} has no leader: waiting for one")
    return partitions


async def _start_offsets(
    cluster: Cluster, partitions: list[TopicPartition], reading: _Reading
) -> dict[TopicPartition, int]:
    """Return each partition's start offset, within its existing offsets."""
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
    """Print until a limit or ``stop``; return the number of records."""
    count = 0
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set() and (limits.records is None or count < limits.records):
            wanted = POLL_RECORDS_MAX
            if limits.records is not None:  # A member commits what it polls.
                wanted = min(wanted, limits.records - count)
            records = await _poll(consumer, wanted, limits.idle_seconds, stopping)
            if records is None:
                break
            if limits.filter is not None:
                records = list(filter(limits.filter, records))[: _left(limits, count)]
            # A slow reader of the pipe must not keep the consumer from polling.
            await asyncio.to_thread(_write, records, writer)
            count += len(records)
            advance(len(records))
    finally:
        stopping.cancel()
    if _is_pipe_closed():
        raise BrokenPipeError(errno.EPIPE, "the reader of the output has gone")
    return count


def _left(limits: Limits, count: int) -> int | None:
    return None if limits.records is None else limits.records - count


async def _poll(
    consumer: Consumer, wanted: int, idle_seconds: float | None, stopping: asyncio.Task[object]
) -> list[ConsumerRecord] | None:
    """Return some records, or None after the idle limit or a stop."""
    timeout_ms = float("inf") if idle_seconds is None else idle_seconds * 1000
    polling = asyncio.create_task(consumer.poll(max_records=wanted, timeout_ms=timeout_ms))
    await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not polling.done():
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        return None
    return polling.result() or None


def _watch_pipe(stop: asyncio.Event) -> None:
    """Set ``stop`` when the pipe's reader ends, even if no further record is written."""
    descriptor = sys.stdout.fileno()
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        # The pipe's writing end becomes «readable» only by an error.
        asyncio.get_running_loop().add_reader(descriptor, stop.set)


def _is_pipe_closed() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # Errors are always reported.
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _write(records: list[ConsumerRecord], writer: RecordFormat) -> None:
    """Format and write records; formatting may ask a registry."""
    sys.stdout.buffer.write(b"".join([writer(record) for record in records]))
    sys.stdout.buffer.flush()
