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

from tidelog_cli.clients import RECORDS_TIMEOUT_MS, client_factory
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import Advance, note, print_json, progress
from tidelog_cli.record_text import parse_header, split_line, unescape

if TYPE_CHECKING:
    from tidelog.options import CompressionName
    from tidelog.producer import Producer
    from tidelog.producing.batch import Delivery

READ_SIZE_BYTES = 256 * 1024
CHUNKS_WAITING_MAX = 4
MAX_BLOCK_MS = 5_000  # longest wait for nodes, topics and partitions that do not exist (yet)
LINGER_MS = 20


@dataclass(frozen=True, slots=True)
class LineRules:
    """The rules that turn a line into a record."""

    key_separator: bytes | None
    null_marker: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None

    def parse(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        """Return key and value. Raises ``CommandFailed`` with the line's number."""
        split = split_line(line, self.key_separator)
        if split is None:
            assert self.key_separator is not None
            separator = self.key_separator.decode()
            raise CommandFailed(f"line {number} has no {separator!r}; check --key-separator")
        key, value = split
        return key, None if value == self.null_marker else value


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.")],
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
        str | None, typer.Option(metavar="TEXT", help="Text that stands for a null value.")
    ] = None,
    json: Json = False,
) -> None:
    r"""Write each line of FILE, or of stdin, as a record.

    A line ends with \n, which is not part of the record. Returns when every record is
    acknowledged; stops at the first that fails.
    """
    if key_separator == "":
        raise UsageError("--key-separator must not be empty")
    rules = LineRules(
        key_separator=None if key_separator is None else unescape(key_separator).encode(),
        null_marker=None if null_marker is None else null_marker.encode(),
        headers=tuple(parse_header(text) for text in header or ()),
        partition=partition,
    )
    started = time.monotonic()
    with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as opened:
        source = cast("BufferedReader", opened)
        written = asyncio.run(
            _produce(topic, source, rules, bootstrap=bootstrap, compression=compression, acks=acks)
        )
    if json:
        seconds = round(time.monotonic() - started, 3)
        print_json({"topic": topic, "records": written, "seconds": seconds})
    else:
        note(f"{written} records written to {topic}")


async def _produce(
    topic: str,
    source: BufferedReader,
    rules: LineRules,
    *,
    bootstrap: str,
    compression: str,
    acks: str,
) -> int:
    from tidelog.producer import Producer

    producer = client_factory(bootstrap, request_timeout_ms=RECORDS_TIMEOUT_MS).make(
        Producer,
        acks=acks,
        compression=cast("CompressionName", compression),
        linger_ms=LINGER_MS,
        max_block_ms=MAX_BLOCK_MS,
    )
    async with producer:
        # A bar would mix with typed text on the terminal.
        if source.isatty():
            return await _write_lines(producer, topic, source, rules, lambda _: None)
        with progress(f"to {topic}", total=_size_bytes(source)) as advance:
            return await _write_lines(producer, topic, source, rules, advance)


async def _write_lines(
    producer: Producer, topic: str, source: BufferedReader, rules: LineRules, advance: Advance
) -> int:
    """Write every line and return their number, all acknowledged."""
    from tidelog.errors import TidelogError

    waiting: deque[tuple[int, Delivery]] = deque()
    number = 0
    async for lines, size_bytes in _read_lines(source):
        for line in lines:
            number += 1
            key, value = rules.parse(line, number)
            try:
                delivery = await producer.send(
                    topic, value, key=key, headers=rules.headers, partition=rules.partition
                )
            except TidelogError as error:
                raise CommandFailed(f"line {number} was not written: {error}") from error
            waiting.append((number, delivery))
        while waiting and waiting[0][1].done():
            _require_written(*waiting.popleft())
        advance(size_bytes)
    await producer.flush()
    for line_number, delivery in waiting:
        _require_written(line_number, delivery)
    return number


def _require_written(number: int, delivery: Delivery) -> None:
    error = delivery.exception()
    if error is not None:
        raise CommandFailed(f"line {number} was not written: {error}")


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
