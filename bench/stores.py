"""Metadata stores for measurements, and the number of transactions of each.

The counts do not depend on the product's code. SQLite's write-ahead log marks the last page of
every transaction, and an open read transaction prevents the log from starting over. A relay in
front of DynamoDB Local counts the operations that requests name.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sqlite3
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore

from tools import dynamodb_local
from tools.places import ToolAbsent

REGION = "us-east-1"
_WAL_HEADER = struct.Struct(">8xI4x8s8x")  # page size, salts. Source: SQLite's file format
_WAL_FRAME = struct.Struct(">4xI8s8x")  # size of the database after a commit or 0, salts
_OPERATION = re.compile(rb"x-amz-target: *DynamoDB_\d+\.(\w+)", re.IGNORECASE)


class MeasuredStore(Protocol):
    """A store for nodes."""

    name: str
    url: str

    def transactions(self) -> int:
        """Return the number of transactions with several items or conditions.

        On DynamoDB single writes (leases) are no transactions and do not count. On SQLite every
        write is a transaction, and ``lone_writes`` of them are not a group's.
        """

    def lone_writes(self) -> int:
        """Return the number of counted transactions that are not a group's; see above."""


class SqliteStore:
    """A new SQLite file."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metadata.db"
        self.url = f"sqlite://{self._path}"
        self._reader: sqlite3.Connection | None = None

    def transactions(self) -> int:
        """Return the commits in the write-ahead log, which is not truncated from now on."""
        if self._reader is None:
            self._reader = sqlite3.connect(self._path, isolation_level=None)
            self._reader.execute("BEGIN")
            self._reader.execute("SELECT version FROM cluster").fetchone()
        data = self._path.with_name("metadata.db-wal").read_bytes()
        page_size, salts = _WAL_HEADER.unpack_from(data)
        count = 0
        step = _WAL_FRAME.size + page_size
        for position in range(_WAL_HEADER.size, len(data) - step + 1, step):
            size_after, frame_salts = _WAL_FRAME.unpack_from(data, position)
            if frame_salts != salts:
                break
            count += size_after != 0
        return count

    def lone_writes(self) -> int:
        """Return the writes of items other than groups': leases, if nothing else changes."""
        with sqlite3.connect(self._path) as connection:
            (total,) = connection.execute(
                "SELECT sum(version) FROM items"
                " WHERE collection NOT LIKE 'group:%' AND collection NOT LIKE 'member:%'"
                " AND collection NOT LIKE 'offset:%'"
            ).fetchone()
        connection.close()
        return int(total or 0)

    def close(self) -> None:
        """End the read transaction, so that the log can be truncated."""
        if self._reader is not None:
            self._reader.close()


class DynamoDbStore:
    """A new table of DynamoDB Local, behind a counting relay."""

    name = "DynamoDB Local"

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._counts: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        relay = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        table = f"bench-{uuid.uuid4().hex}"
        asyncio.run(_create_table(table, endpoint))
        self.url = f"dynamodb://{table}?region={REGION}&endpoint={relay}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def transactions(self) -> int:
        """Return the number of TransactWriteItems requests."""
        return self._counts["TransactWriteItems"]

    def lone_writes(self) -> int:
        """Return 0: a single write is not a transaction on DynamoDB."""
        return 0

    def close(self) -> None:
        """End the relay."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._relay, sock=self._listener))
        self._loop.run_forever()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_connection(*self._target)
        await asyncio.gather(
            self._pump(reader, server[1], counts=True), self._pump(server[0], writer, counts=False)
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool
    ) -> None:
        tail = b""
        try:
            while data := await reader.read(1 << 16):
                if counts:
                    tail = self._count(tail + data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def _count(self, data: bytes) -> bytes:
        """Count the operations named in whole lines; return the incomplete last line."""
        whole, newline, tail = data.rpartition(b"\r\n")
        for found in _OPERATION.finditer(whole + newline):
            self._counts[found[1].decode()] += 1
        return tail


@contextmanager
def sqlite_store(folder: Path) -> Iterator[SqliteStore]:
    """Yield a store in the folder."""
    store = SqliteStore(folder)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def dynamodb_store() -> Iterator[DynamoDbStore]:
    """Run a server; yield a store on a table of it. Raises ``ToolAbsent``."""
    # No emulator checks them, but clients require them.
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    with dynamodb_local.serve() as endpoint:
        store = DynamoDbStore(endpoint)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def store_named(name: str, folder: Path) -> Iterator[MeasuredStore | None]:
    """Yield the store ``sqlite`` or ``dynamodb``, or ``None`` if it is not installed (printed)."""
    if name == "sqlite":
        with sqlite_store(folder) as store:
            yield store
        return
    try:
        opened = dynamodb_store()
        measured = opened.__enter__()
    except ToolAbsent as absent:
        print(f"left out: {absent}")
        yield None
        return
    try:
        yield measured
    finally:
        opened.__exit__(None, None, None)


async def _create_table(table: str, endpoint: str) -> None:
    store = DynamoDbMetadataStore(table, region=REGION, endpoint=endpoint)
    try:
        await store.create_table()
    finally:
        await store.close()
