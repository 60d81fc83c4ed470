"""The metadata store of one machine: a SQLite file that many processes share.

The file is in WAL mode with ``synchronous=FULL``: a commit is on the disk when it
returns, readers never wait for writers, and a process killed at any point leaves
either all of a commit or nothing. Writers take turns through ``BEGIN IMMEDIATE``,
which waits for the lock instead of failing half way. One dedicated thread per store
owns the connection, so calls never block the event loop and run in order.

If the file is deleted or replaced, processes that have it open keep using the old one, while
other processes open or create a new one. So every call checks that the path still leads to the
files that were opened, and a commit checks it again before it is reported as done.

    items       collection, key, version, body (JSON)
    changelog   cluster version, collection, key; the newest ``changelog_length`` versions
    cluster     one row: the cluster version
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from tidelog_core.errors import OutcomeUnknown, StoreFull, StoreUnavailable, VersionConflict
from tidelog_core.metadata import sqlite_items
from tidelog_core.metadata.body import encode_body
from tidelog_core.metadata.commit import CHANGELOG_LENGTH, require_valid
from tidelog_core.metadata.sqlite_file import (
    FILE_SUFFIXES,
    FileId,
    SqliteConnection,
    identify_files,
    open_file,
)
from tidelog_core.metadata.store import (
    ALL_KEYS,
    Changes,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    KeyRange,
    Write,
)
from tidelog_core.metadata.usage import CONFLICT, FAILED, OK, StoreUsage

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT = 10.0  # seconds a writer waits for its turn
GET_AT_ONCE = 500  # items that one turn on the thread reads, in some milliseconds

LOST = "its file was deleted or replaced"

# The second is that of the shared memory, a file that the first process makes.
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_WRITING: tuple[object, ...] = (sqlite_items.commit, sqlite_items.increment)


class SqliteMetadataStore:
    """A ``MetadataStore`` in one file. Opened by the first call, so making one is free."""

    def __init__(
        self,
        path: Path,
        *,
        changelog_length: int = CHANGELOG_LENGTH,
        busy_timeout: float = BUSY_TIMEOUT,
    ) -> None:
        self._path = path
        self._changelog_length = changelog_length
        self._busy_timeout = busy_timeout
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        self._connection: SqliteConnection | None = None
        self._paths = tuple(path.with_name(path.name + suffix) for suffix in FILE_SUFFIXES)
        # As they were opened; None while nothing is open.
        self._files: tuple[FileId | None, ...] | None = None
        self._is_closed = False
        self._usage = StoreUsage()

    @property
    def usage(self) -> StoreUsage:
        """The requests so far, counted by the store's thread."""
        return self._usage

    def is_lost(self) -> bool:
        """Whether the path no longer leads to the files that are open. For any thread."""
        files = self._files
        return files is not None and identify_files(self._paths) != files

    async def get(self, id: ItemKey) -> Item | None:
        """Return the item, or ``None`` if it does not exist."""
        return await self._run(sqlite_items.get, id)

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Return the items that exist."""
        found: dict[ItemKey, Item] = {}
        # In portions, so that other calls get the thread in between.
        wanted = tuple(ids)
        for start in range(0, len(wanted), GET_AT_ONCE):
            found.update(
                await self._run(sqlite_items.get_many, wanted[start : start + GET_AT_ONCE])
            )
        return found

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        """Return the collection's items whose key starts with ``prefix``, in key order."""
        return await self._run(sqlite_items.list_, collection, prefix, keys)

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        """Do all the writes or none.

        A caller that is cancelled does not know whether the commit happened.
        """
        require_valid(writes, checks)
        rows = [
            (write, None if write.body is None else encode_body(write.id, write.body))
            for write in writes
        ]
        if rows or checks:
            await self._run(sqlite_items.commit, rows, tuple(checks), self._changelog_length)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        """Return the keys that logged writes touched after ``version``."""
        return await self._run(sqlite_items.changes_since, version, self._changelog_length)

    async def increment(self, id: ItemKey, by: int) -> int:
        """Add to the item's ``value`` (0 where absent) and return the sum. Never logged."""
        return await self._run(sqlite_items.increment, id, by)

    async def close(self) -> None:
        """Close the file and end the thread, after the calls that are under way."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def _run(
        self,
        call: Callable[Concatenate[SqliteConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        def on_thread() -> T:
            outcome, began = FAILED, time.monotonic()
            try:
                if self._connection is None:
                    self._connection = self._connect()
                elif self.is_lost():
                    raise StoreUnavailable(f"metadata store {self._path}: {LOST}")
                result = call(self._connection, *args, **kwargs)
                if call in _WRITING and self.is_lost():
                    raise OutcomeUnknown(f"metadata store {self._path}: {LOST}")
                outcome = OK
                return result
            except VersionConflict:
                outcome = CONFLICT
                raise
            except (sqlite3.Error, OSError) as error:
                kind = StoreFull if _is_full(error) else StoreUnavailable
                raise kind(f"metadata store {self._path}: {error}") from error
            finally:
                operation = call.__name__.strip("_")
                self._usage.note(operation, outcome, time.monotonic() - began)

        return await asyncio.get_running_loop().run_in_executor(self._thread, on_thread)

    def _connect(self) -> SqliteConnection:
        connection = open_file(self._path, self._busy_timeout)
        connection.usage = self._usage
        files = identify_files(self._paths)
        if None in files:
            connection.close()
            raise StoreUnavailable(f"metadata store {self._path}: {LOST}")
        self._files = files
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._files = None
            self._connection.close()
            self._connection = None


def _is_full(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) in _FULL
