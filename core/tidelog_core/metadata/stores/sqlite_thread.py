"""Runs a SQLite store's calls on a thread that owns a connection."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from tidelog_core.errors import OutcomeUnknown, StoreFull, StoreUnavailable, VersionConflict
from tidelog_core.metadata.stores.sqlite_file import LOST, SqliteConnection, StoreFiles, open_file
from tidelog_core.metadata.stores.usage import CONFLICT, FAILED, OK, StoreUsage

P = ParamSpec("P")
T = TypeVar("T")

# The second is that of the shared memory, a file that the first process makes.
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


class SqliteThread:
    """One thread and its connection. The first call begins the one and opens the other.

    Calls run in order. One that is cancelled before its turn is left out; one that runs goes on.
    """

    def __init__(
        self, files: StoreFiles, *, writes: bool, busy_timeout: float, usage: StoreUsage
    ) -> None:
        """``writes``: after each call the thread checks that its file can still be found."""
        self._files = files
        self._writes = writes
        self._busy_timeout = busy_timeout
        self._usage = usage
        name = "metadata-writes" if writes else "metadata-reads"
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._connection: SqliteConnection | None = None

    async def run(
        self,
        call: Callable[Concatenate[SqliteConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run the call on the thread; map SQLite's errors."""

        def on_thread() -> T:
            outcome, began = FAILED, time.monotonic()
            path = self._files.path
            try:
                if self._files.are_lost():
                    raise StoreUnavailable(f"metadata store {path}: {LOST}")
                if self._connection is None:
                    self._connection = self._connect()
                result = call(self._connection, *args, **kwargs)
                if self._writes and self._files.are_lost():
                    raise OutcomeUnknown(f"metadata store {path}: {LOST}")
                outcome = OK
                return result
            except VersionConflict:
                outcome = CONFLICT
                raise
            except (sqlite3.Error, OSError) as error:
                kind = StoreFull if _is_full(error) else StoreUnavailable
                raise kind(f"metadata store {path}: {error}") from error
            finally:
                operation = call.__name__.strip("_")
                self._usage.note(operation, outcome, time.monotonic() - began)

        return await asyncio.get_running_loop().run_in_executor(self._executor, on_thread)

    async def close(self) -> None:
        """Close the connection and end the thread, after the calls that are under way."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    def _connect(self) -> SqliteConnection:
        connection = open_file(self._files.path, self._busy_timeout)
        connection.usage = self._usage
        try:
            self._files.note_opened()
        except StoreUnavailable:
            connection.close()
            raise
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._files.note_closing()
            self._connection.close()
            self._connection = None


def _is_full(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) in _FULL
