"""``tidelog produce`` writes each line of a file, or of stdin, as a record."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tidelog_cli.clients import RECORDS_TIMEOUT_MS, client_factory, opened_admin
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.named_arguments import Topic
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, require_choice
from tidelog_cli.output import Advance, counted, note, print_json, progress
from tidelog_cli.reaching import opened
from tidelog_cli.records.decoded_records import BYTES
from tidelog_cli.records.encoded_records import (
    FORMATS,
    FORMATS_HELP,
    SCHEMA_HELP,
    Wanted,
    encoding,
)
from tidelog_cli.records.record_lines import JsonLines, LineParser, LineRecord, TextLines
from tidelog_cli.records.record_text import parse_header, unescape
from tidelog_cli.registry.registry_access import DEFAULT_REGISTRY, Registry

if TYPE_CHECKING:
    from tidelog.options import CompressionName
    from tidelog.producer import Producer
    from tidelog.producing.batch import Delivery

READ_SIZE_BYTES = 256 * 1024
CHUNKS_WAITING_MAX = 4
MAX_BLOCK_MS = 5_000  # longest wait for nodes, topics and partitions that do not exist (yet)
LINGER_MS = 20
TEXT, JSON_FORMAT = "text", "json"
MESSAGE_BYTES, MESSAGE_BYTES_MAX = 1024 * 1024, 1024 * 1024 * 1024
BUFFER_BYTES = 32 * 1024 * 1024


def produce(
    topic: Topic,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File to read; stdin by default.")
    ] = None,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help=r"Text between key and value, such as : or \t."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Header to add to every record; may be repeated."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Partition to write to; chosen by the key by default.")
    ] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="all, 1 or 0.")] = "all",
    null_marker: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text that means a null value.")
    ] = None,
    format: Annotated[
        str,
        typer.Option("--format", "-f", help="text, or json: what 'consume --json' prints."),
    ] = TEXT,
    value_format: Annotated[str, typer.Option(help=f"Of values: {FORMATS_HELP}")] = BYTES,
    value_schema: Annotated[
        str | None, typer.Option(metavar="FILE-OR-ID", help=SCHEMA_HELP)
    ] = None,
    key_format: Annotated[str, typer.Option(help="Of keys, likewise.")] = BYTES,
    key_schema: Annotated[
        str | None, typer.Option(metavar="FILE-OR-ID", help="Of keys, likewise.")
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Protobuf message of values; by default the first."),
    ] = None,
    registry: Registry = DEFAULT_REGISTRY,
    max_message_bytes: Annotated[
        int,
        typer.Option(
            min=1024,
            max=MESSAGE_BYTES_MAX,
            help="Largest record; the topic's max.message.bytes must allow it too.",
        ),
    ] = MESSAGE_BYTES,
    json: Json = False,
) -> None:
    r"""Write each line of FILE, or of stdin, as a record.

    A line ends with \n, which is not part of the record. With --format json, a record keeps its
    key, value, headers, time and partition. Returns when every record is acknowledged; stops
    at the first that fails.
    """
    require_choice("--format", format, (TEXT, JSON_FORMAT))
    require_choice("--value-format", value_format, FORMATS)
    require_choice("--key-format", key_format, FORMATS)
    if key_separator == "":
        raise UsageError("--key-separator must not be empty")
    headers = tuple(parse_header(text) for text in header or ())
    wanted = (
        Wanted("key", key_format, key_schema, None),
        Wanted("value", value_format, value_schema, message),
    )
    structured = frozenset(one.part for one in wanted if one.format != BYTES)
    rules: LineParser = JsonLines(headers, partition, structured)
    if format == TEXT:
        rules = TextLines(
            key_separator=None if key_separator is None else unescape(key_separator).encode(),
            null_marker=None if null_marker is None else null_marker.encode(),
            headers=headers,
            partition=partition,
        )
    elif key_separator is not None or null_marker is not None:
        raise UsageError("--format json has keys and nulls: remove --key-separator, --null-marker")
    rules = encoding(rules, topic, wanted, registry)
    writing = _Writing(topic, bootstrap, compression, acks, max_message_bytes)
    started = time.monotonic()
    with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as opened:
        source = cast("BufferedReader", opened)
        written = asyncio.run(_produce(writing, source, rules))
    if json:
        seconds = round(time.monotonic() - started, 3)
        print_json({"topic": topic, "records": written, "seconds": seconds})
    else:
        note(f"{counted(written, 'record')} written to {topic}")


@dataclass(frozen=True, slots=True)
class _Writing:
    """The topic, and how to write to it."""

    topic: str
    bootstrap: str
    compression: str
    acks: str
    message_bytes_max: int


async def _produce(writing: _Writing, source: BufferedReader, rules: LineParser) -> int:
    from tidelog.producer import Producer

    factory = client_factory(writing.bootstrap, request_timeout_ms=RECORDS_TIMEOUT_MS)
    producer = factory.make(
        Producer,
        acks=writing.acks,
        compression=cast("CompressionName", writing.compression),
        linger_ms=LINGER_MS,
        max_block_ms=MAX_BLOCK_MS,
        request_size_bytes_max=writing.message_bytes_max,
        buffer_memory_bytes=max(BUFFER_BYTES, 2 * writing.message_bytes_max),
    )
    others = await _topics_unless_there(writing)
    async with opened(producer, factory):
        lines = _Lines(producer, writing, rules, others)
        # A bar would mix with typed text on the terminal.
        if source.isatty():
            return await lines.write(source, lambda _: None)
        with progress(f"to {writing.topic}", total=_size_bytes(source)) as advance:
            return await lines.write(source, advance)


async def _topics_unless_there(writing: _Writing) -> list[str] | None:
    """Return None if the topic exists, else the names of those that do."""
    from tidelog.errors import TopicAuthorizationFailed, UnknownTopicOrPartition

    async with opened_admin(writing.bootstrap) as admin:
        try:
            await admin.describe_topics([writing.topic])
        except TopicAuthorizationFailed:
            return None  # The producer learns whether it may write.
        except UnknownTopicOrPartition:
            return [listed.name for listed in await admin.list_topics(include_internal=True)]
    return None


class _Lines:
    """Writes the lines of a source."""

    def __init__(
        self, producer: Producer, writing: _Writing, rules: LineParser, others: list[str] | None
    ) -> None:
        """``others``: None if the topic exists, else the names of those that do."""
        self._producer, self._writing, self._rules = producer, writing, rules
        self._others = others
        self._waiting: deque[tuple[int, Delivery]] = deque()
        self._written_count = 0

    async def write(self, source: BufferedReader, advance: Advance) -> int:
        """Write every line and return the number of records, all acknowledged."""
        number = 0
        async for lines, size_bytes in _read_lines(source):
            for line in lines:
                number += 1
                record = self._rules.parse(line, number)
                if record is not None:
                    self._waiting.append((number, await self._send(record, number)))
                    self._written_count += 1
            while self._waiting and self._waiting[0][1].done():
                self._require_written(*self._waiting.popleft())
            advance(size_bytes)
        await self._producer.flush()
        for line_number, delivery in self._waiting:
            self._require_written(line_number, delivery)
        return self._written_count

    async def _send(self, record: LineRecord, number: int) -> Delivery:
        from tidelog.errors import MessageTooLarge, TidelogError, UnknownTopicOrPartition

        topic = self._writing.topic
        try:
            delivery = await self._producer.send(
                topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
        except MessageTooLarge:
            size_bytes = len(record.key or b"") + len(record.value or b"")
            raise CommandFailed(
                f"line {number} was not written: its {size_bytes} bytes are more than "
                f"--max-message-bytes ({self._writing.message_bytes_max}) allows; raise it, and "
                f"max.message.bytes of topic {topic}"
            ) from None
        except UnknownTopicOrPartition as error:
            better = UnknownTopicOrPartition.of_topic(topic, self._others or ())
            raise CommandFailed(f"line {number} was not written: {better}") from (
                better if self._others is not None else error
            )
        except TidelogError as error:
            raise CommandFailed(f"line {number} was not written: {error}") from error
        if self._others is not None:
            self._others = None
            note(f"topic {topic} created")
        return delivery

    def _require_written(self, number: int, delivery: Delivery) -> None:
        from tidelog.errors import MessageTooLarge

        error = delivery.exception()
        if isinstance(error, MessageTooLarge):
            topic = self._writing.topic
            raise CommandFailed(
                f"line {number} was not written: max.message.bytes of topic {topic} is smaller; "
                f"`tidelog topic alter {topic} --config max.message.bytes=N` raises it"
            )
        if error is not None:
            raise CommandFailed(f"line {number} was not written: {error}") from error


async def _read_lines(source: BufferedReader) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield lines without their ends as they arrive, and the number of bytes read.

    A thread reads, since stdin may be a terminal, a pipe or a file. It is a daemon, so that
    a blocked read does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_WAITING_MAX)

    def read() -> None:
        chunk: bytes | OSError = b"."
        while chunk and isinstance(chunk, bytes):
            room.acquire()
            try:
                # Not through the buffer: if a blocked read held its lock, the interpreter would
                # abort at exit.
                chunk = os.read(source.fileno(), READ_SIZE_BYTES)
            except OSError as error:
                chunk = error
            except ValueError:
                return  # The command has failed, and closed the file.
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:
                return  # The loop has ended.

    threading.Thread(target=read, daemon=True, name="read-lines").start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines, len(chunk)
    if rest:
        yield [rest], 0


def _size_bytes(source: BufferedReader) -> int | None:
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None
