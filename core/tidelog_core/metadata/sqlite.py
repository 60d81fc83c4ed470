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
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidelog_core.errors import CorruptItem, OutcomeUnknown, StoreUnavailable, VersionConflict
from tidelog_core.metadata import dynamodb_units as units
from tidelog_core.metadata.body import decode_body, encode_body
from tidelog_core.metadata.commit import CHANGELOG_LENGTH, require_valid
from tidelog_core.metadata.store import (
    ABSENT,
    ALL_KEYS,
    ANY_VERSION,
    LAST_KEY,
    UNREADABLE_VERSION,
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

FORMAT_VERSION = 1  # PRAGMA user_version
OPEN_RETRY_INTERVAL = 0.01  # seconds
BUSY_TIMEOUT = 10.0  # seconds a writer waits for its turn
NO_LIMIT = -1  # as SQLite has it
GET_AT_ONCE = 500  # items that one turn on the thread reads, in some milliseconds
FILE_SUFFIXES = ("", "-wal", "-shm")  # while a connection is open all three are there

LOST = "its file was deleted or replaced"

# The body as bytes: of a text that is not UTF-8 SQLite's driver makes an error of the query.
ITEM_COLUMNS = "version, CAST(body AS BLOB)"

SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    collection TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (collection, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changelog (
    version INTEGER NOT NULL,
    collection TEXT NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (version, collection, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cluster (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL
);
INSERT OR IGNORE INTO cluster (id, version) VALUES (1, 0);
"""


class _Connection(sqlite3.Connection):
    """A connection whose calls note the units that DynamoDB would charge for them."""

    usage: StoreUsage

    def note_read(self, size_bytes: int) -> None:
        """Note a consistent read, of an item or of a listing."""
        self.usage.modelled_read_units += units.read_units(size_bytes)

    def note_written(self, size_bytes: int, *, is_alone: bool) -> None:
        """Note a write or a check; ``is_alone``: without a transaction."""
        cost = units.write_units if is_alone else units.transaction_write_units
        self.usage.modelled_write_units += cost(size_bytes)


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
        self._connection: _Connection | None = None
        self._paths = tuple(path.with_name(path.name + suffix) for suffix in FILE_SUFFIXES)
        # As they were opened; None while nothing is open.
        self._files: tuple[_FileId | None, ...] | None = None
        self._is_closed = False
        self._usage = StoreUsage()

    @property
    def usage(self) -> StoreUsage:
        """The requests so far, counted by the store's thread."""
        return self._usage

    def is_lost(self) -> bool:
        """Whether the path no longer leads to the files that are open. For any thread."""
        files = self._files
        return files is not None and _identify(self._paths) != files

    async def get(self, id: ItemKey) -> Item | None:
        """Return the item, or ``None`` if it does not exist."""
        return await self._run(_get, id)

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Return the items that exist."""
        found: dict[ItemKey, Item] = {}
        # In portions, so that other calls get the thread in between.
        wanted = tuple(ids)
        for start in range(0, len(wanted), GET_AT_ONCE):
            found.update(await self._run(_get_many, wanted[start : start + GET_AT_ONCE]))
        return found

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        """Return the collection's items whose key starts with ``prefix``, in key order."""
        return await self._run(_list, collection, prefix, keys)

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
            await self._run(_commit, rows, tuple(checks), self._changelog_length)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        """Return the keys that logged writes touched after ``version``."""
        return await self._run(_changes_since, version, self._changelog_length)

    async def increment(self, id: ItemKey, by: int) -> int:
        """Add to the item's ``value`` (0 where absent) and return the sum. Never logged."""
        return await self._run(_increment, id, by)

    async def close(self) -> None:
        """Close the file and end the thread, after the calls that are under way."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def _run(
        self,
        call: Callable[Concatenate[_Connection, P], T],
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
                raise StoreUnavailable(f"metadata store {self._path}: {error}") from error
            finally:
                operation = call.__name__.lstrip("_")
                self._usage.note(operation, outcome, time.monotonic() - began)

        return await asyncio.get_running_loop().run_in_executor(self._thread, on_thread)

    def _connect(self) -> _Connection:
        connection = _open(self._path, self._busy_timeout)
        connection.usage = self._usage
        files = _identify(self._paths)
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


_FileId = tuple[int, int]  # device and inode


def _identify(paths: Iterable[Path]) -> tuple[_FileId | None, ...]:
    """Return the ids of the files at the paths, None for one that cannot be reached.

    A missing file and a folder that cannot be entered are the same: other processes cannot read
    a file that is written there.
    """
    found: list[_FileId | None] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def _open(path: Path, busy_timeout: float) -> _Connection:
    """Return a connection to the file, made and laid out if it was not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=_Connection,
    )
    try:
        _enter_wal(connection, busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        with _transaction(connection):
            (format_version,) = connection.execute("PRAGMA user_version").fetchone()
            if format_version > FORMAT_VERSION:
                raise StoreUnavailable(
                    f"metadata store {path} is of format {format_version}, "
                    f"this program reads up to {FORMAT_VERSION}"
                )
            for statement in SCHEMA.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _enter_wal(connection: _Connection, busy_timeout: float) -> None:
    """Put the file in WAL mode, once for its life.

    SQLite does not wait for the lock here as it does everywhere else, so processes
    that open a new file together have to try again.
    """
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(OPEN_RETRY_INTERVAL)


@contextmanager
def _transaction(connection: _Connection) -> Iterator[None]:
    """Hold the write lock; commit on a clean exit, roll back otherwise."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # A full disk rolls back by itself.
            connection.execute("ROLLBACK")
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        # A failed COMMIT leaves the transaction open if nothing was written.
        # If it is no longer open, the write may have reached the disk.
        if not connection.in_transaction:
            raise OutcomeUnknown(f"the metadata store failed in a commit: {error}") from error
        connection.execute("ROLLBACK")
        raise


def _get(connection: _Connection, id: ItemKey) -> Item | None:
    row = connection.execute(
        f"SELECT {ITEM_COLUMNS} FROM items WHERE collection = ? AND key = ?",
        (id.collection, id.key),
    ).fetchone()
    connection.note_read(0 if row is None else _size_bytes(id, row))
    return None if row is None else _item(id, *row)


def _get_many(connection: _Connection, ids: Iterable[ItemKey]) -> dict[ItemKey, Item]:
    items = (_get(connection, item_id) for item_id in ids)
    return {item.id: item for item in items if item is not None}


def _list(connection: _Connection, collection: str, prefix: str, keys: KeyRange) -> list[Item]:
    start, end = keys.bounds(prefix)
    rows = connection.execute(
        f"SELECT key, {ITEM_COLUMNS} FROM items"
        " WHERE collection = ? AND key >= ? AND key < ?"
        f" ORDER BY key {'DESC' if keys.is_descending else 'ASC'} LIMIT ?",
        (
            collection,
            start,
            LAST_KEY if end is None else end,
            NO_LIMIT if keys.limit is None else keys.limit,
        ),
    ).fetchall()
    found = [(ItemKey(collection, key), columns) for key, *columns in rows]
    connection.note_read(sum(_size_bytes(*one) for one in found))
    return [_item(item_id, *columns) for item_id, columns in found]


def _size_bytes(id: ItemKey, columns: Sequence[Any]) -> int:
    version, body = columns
    return units.stored_size_bytes(id, version if isinstance(version, int) else 0, len(body))


def _item(id: ItemKey, version: object, body: bytes) -> Item:
    if not isinstance(version, int):
        return Item(id, UNREADABLE_VERSION, {}, f"version must be a number, not {version!r}")
    try:
        return Item(id, version, decode_body(id, body.decode()))
    except UnicodeDecodeError as error:
        return Item(id, version, {}, f"not UTF-8: {error}")
    except CorruptItem as error:
        return Item(id, version, {}, error.problem)


def _commit(
    connection: _Connection,
    rows: Sequence[tuple[Write, str | None]],
    checks: Sequence[Check],
    changelog_length: int,
) -> None:
    with _transaction(connection):
        conditions = [(write.id, write.expected_version) for write, _ in rows]
        conditions += [(check.id, check.expected_version) for check in checks]
        is_alone = len(conditions) == 1 and not any(write.is_logged for write, _ in rows)
        versions, texts = {}, {write.id: text for write, text in rows}
        for item_id, expected in conditions:
            versions[item_id], size_bytes = _version(connection, item_id)
            if item_id not in texts and expected == ANY_VERSION:
                continue  # Such a check is not sent.
            size_bytes = max(size_bytes, len((texts.get(item_id) or "").encode()))
            stored = units.stored_size_bytes(item_id, versions[item_id], size_bytes)
            connection.note_written(stored, is_alone=is_alone)
        lost = [
            (item_id.collection, item_id.key)
            for item_id, expected in conditions
            if expected == UNREADABLE_VERSION or expected not in (ANY_VERSION, versions[item_id])
        ]
        if lost:
            raise VersionConflict(lost)
        for write, text in rows:
            _write(connection, write.id, versions[write.id], text)
        logged = [write.id for write, _ in rows if write.is_logged]
        if logged:
            _log(connection, logged, changelog_length)


def _version(connection: _Connection, id: ItemKey) -> tuple[int, int]:
    """Return the item's version and the bytes of its body."""
    row = connection.execute(
        "SELECT version, length(CAST(body AS BLOB)) FROM items WHERE collection = ? AND key = ?",
        (id.collection, id.key),
    ).fetchone()
    if row is None:
        return ABSENT, 0
    version, size_bytes = row
    return version if isinstance(version, int) else UNREADABLE_VERSION, size_bytes


def _write(connection: _Connection, id: ItemKey, version: int, text: str | None) -> None:
    if text is None:
        connection.execute(
            "DELETE FROM items WHERE collection = ? AND key = ?", (id.collection, id.key)
        )
    else:
        connection.execute(
            "INSERT OR REPLACE INTO items (collection, key, version, body) VALUES (?, ?, ?, ?)",
            (id.collection, id.key, max(version, ABSENT) + 1, text),
        )


def _log(connection: _Connection, ids: Sequence[ItemKey], changelog_length: int) -> None:
    connection.execute("UPDATE cluster SET version = version + 1 WHERE id = 1")
    version = _cluster_version(connection)
    connection.executemany(
        "INSERT INTO changelog (version, collection, key) VALUES (?, ?, ?)",
        [(version, item_id.collection, item_id.key) for item_id in ids],
    )
    connection.execute("DELETE FROM changelog WHERE version <= ?", (version - changelog_length,))
    connection.usage.modelled_write_units += sum(units.logging_units(ids).values())


def _changes_since(
    connection: _Connection, since: ClusterVersion, changelog_length: int
) -> Changes:
    connection.execute("BEGIN")  # Both reads see the same commit.
    try:
        version = _cluster_version(connection)
        connection.note_read(0)
        if since == version:
            return Changes(ClusterVersion(version), frozenset())
        if not version - changelog_length <= since < version:
            return Changes(ClusterVersion(version), None)
        rows = connection.execute(
            "SELECT version, collection, key FROM changelog WHERE version > ?", (since,)
        ).fetchall()
    finally:
        connection.execute("ROLLBACK")
    # Another process may keep a shorter changelog than this one, so the rows are counted.
    if len({row[0] for row in rows}) != version - since:
        return Changes(ClusterVersion(version), None)
    keys = frozenset(ItemKey(collection, key) for _, collection, key in rows)
    size_bytes = units.changelog_entry_size_bytes(keys)
    connection.usage.modelled_read_units += units.eventual_read_units(size_bytes)
    return Changes(ClusterVersion(version), keys)


def _cluster_version(connection: _Connection) -> int:
    return int(connection.execute("SELECT version FROM cluster WHERE id = 1").fetchone()[0])


def _increment(connection: _Connection, id: ItemKey, by: int) -> int:
    with _transaction(connection):
        read_units = connection.usage.modelled_read_units
        item = _get(connection, id)
        connection.usage.modelled_read_units = read_units  # DynamoDB adds in place.
        if item is not None and item.problem is not None:
            raise CorruptItem((id.collection, id.key), item.problem)
        value = 0 if item is None else item.body.get("value", 0)
        if not isinstance(value, int) or isinstance(value, bool):
            raise CorruptItem((id.collection, id.key), f"value must be a number, not {value!r}")
        body = {**({} if item is None else item.body), "value": value + by}
        version = ABSENT if item is None else item.version
        connection.note_written(0, is_alone=True)
        _write(connection, id, version, encode_body(id, body))
    return value + by


_WRITING: tuple[object, ...] = (_commit, _increment)
