"""The metadata store of one machine: a SQLite file that many processes share.

The file is in WAL mode with ``synchronous=FULL``: a commit is on the disk when it
returns, readers never wait for writers, and a process killed at any point leaves
either all of a commit or nothing. Writers take turns through ``BEGIN IMMEDIATE``,
which waits for the lock instead of failing half way.

A store has a thread for reads and another one for writes, each with its own connection
(``sqlite_thread``). So calls never block the event loop, and reads go on while a commit waits for
another process. The calls of each thread run in order. Between the threads:

- A read that begins after a commit has returned sees it: every statement reads the newest state
  of the file.
- A read beside a commit sees all of it or nothing, as if another process had written it. Decisions
  are safe in either case, because their writes are conditional on versions that were read.
- A commit whose caller was cancelled may still wait for its turn, and happen after a read that
  does not show it. A later write on the version that was read conflicts then, or makes that
  commit conflict. DynamoDB is no different.

If the file is deleted or replaced, processes that have it open keep using the old one, while
other processes open or create a new one. So every call checks that the path still leads to the
files that were opened, and a commit checks it again before it is reported as done.

    items       collection, key, version, body (JSON)
    changelog   cluster version, collection, key; the newest ``changelog_length`` versions
    cluster     one row: the cluster version
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from tidelog_core.batched import batched
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
from tidelog_core.metadata.stores import sqlite_items
from tidelog_core.metadata.stores.commit import CHANGELOG_LENGTH, encode_body, require_valid
from tidelog_core.metadata.stores.sqlite_file import StoreFiles
from tidelog_core.metadata.stores.sqlite_thread import SqliteThread
from tidelog_core.metadata.stores.usage import StoreUsage

BUSY_TIMEOUT = 10.0  # seconds a writer waits for its turn
GET_AT_ONCE = 500  # items that one turn on the thread reads, in some milliseconds


class SqliteMetadataStore:
    """A ``MetadataStore`` in one file. Opened by the first call, so making one is free."""

    def __init__(
        self,
        path: Path,
        *,
        changelog_length: int = CHANGELOG_LENGTH,
        busy_timeout: float = BUSY_TIMEOUT,
    ) -> None:
        self._changelog_length = changelog_length
        self._files = StoreFiles(path)
        self._usage = StoreUsage()
        self._reads, self._writes = (
            SqliteThread(self._files, writes=writes, busy_timeout=busy_timeout, usage=self._usage)
            for writes in (False, True)
        )
        self._is_closed = False

    @property
    def usage(self) -> StoreUsage:
        """The requests so far. Each operation and each kind of unit is counted by one thread."""
        return self._usage

    def is_lost(self) -> bool:
        """Whether the path no longer leads to the files that are open. For any thread."""
        return self._files.are_lost()

    async def get(self, id: ItemKey) -> Item | None:
        """Return the item, or ``None`` if it does not exist."""
        return await self._reads.run(sqlite_items.get, id)

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Return the items that exist."""
        found: dict[ItemKey, Item] = {}
        # In portions, so that other calls get the thread in between.
        for portion in batched(tuple(ids), GET_AT_ONCE):
            found.update(await self._reads.run(sqlite_items.get_many, portion))
        return found

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        """Return the collection's items whose key starts with ``prefix``, in key order."""
        return await self._reads.run(sqlite_items.list_, collection, prefix, keys)

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
            await self._writes.run(sqlite_items.commit, rows, tuple(checks), self._changelog_length)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        """Return the keys that logged writes touched after ``version``."""
        return await self._reads.run(sqlite_items.changes_since, version, self._changelog_length)

    async def increment(self, id: ItemKey, by: int) -> int:
        """Add to the item's ``value`` (0 where absent) and return the sum. Never logged."""
        return await self._writes.run(sqlite_items.increment, id, by)

    async def close(self) -> None:
        """Close the file and end the threads, after the calls that are under way."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.gather(self._reads.close(), self._writes.close())
