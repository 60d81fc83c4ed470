"""The file of a SQLite metadata store: how it is opened, laid out and identified."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog_core.errors import OutcomeUnknown, StoreUnavailable
from tidelog_core.metadata.stores import dynamodb_units as units
from tidelog_core.metadata.stores.usage import StoreUsage

FORMAT_VERSION = 1  # PRAGMA user_version
OPEN_RETRY_INTERVAL = 0.01  # seconds
FILE_SUFFIXES = ("", "-wal", "-shm")  # while a connection is open all three are there
LOST = "its file was deleted or replaced"

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


class SqliteConnection(sqlite3.Connection):
    """A connection whose calls note the units that DynamoDB would charge for them."""

    usage: StoreUsage

    def note_read(self, size_bytes: int) -> None:
        """Note a consistent read, of an item or of a listing."""
        self.usage.modelled_read_units += units.read_units(size_bytes)

    def note_written(self, size_bytes: int, *, is_alone: bool) -> None:
        """Note a write or a check; ``is_alone``: without a transaction."""
        cost = units.write_units if is_alone else units.transaction_write_units
        self.usage.modelled_write_units += cost(size_bytes)


FileId = tuple[int, int]  # device and inode


def identify_files(paths: Iterable[Path]) -> tuple[FileId | None, ...]:
    """Return the ids of the files at the paths, None for one that cannot be reached.

    A missing file and a folder that cannot be entered are the same: other processes cannot read
    a file that is written there.
    """
    found: list[FileId | None] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


class StoreFiles:
    """The files of a store, as its first connection found them. For any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._paths = tuple(path.with_name(path.name + suffix) for suffix in FILE_SUFFIXES)
        self._lock = threading.Lock()  # connections are opened and closed by several threads
        self._connections = 0
        self._opened: tuple[FileId | None, ...] | None = None  # None while nothing is open

    def are_lost(self) -> bool:
        """Whether the path no longer leads to the files that are open."""
        opened = self._opened
        return opened is not None and identify_files(self._paths) != opened

    def note_opened(self) -> None:
        """Note a new connection. Raises ``StoreUnavailable`` if its files are not the store's."""
        with self._lock:
            found = identify_files(self._paths)
            if None in found or self._opened not in (None, found):
                raise StoreUnavailable(f"metadata store {self.path}: {LOST}")
            self._opened = found
            self._connections += 1

    def note_closing(self) -> None:
        """Note that a connection will be closed. The last one of all processes removes files."""
        with self._lock:
            self._connections -= 1
            if not self._connections:
                self._opened = None


def open_file(path: Path, busy_timeout: float) -> SqliteConnection:
    """Return a connection to the file, made and laid out if it was not there.

    Waits for the write lock only if the file has to be laid out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=SqliteConnection,
    )
    try:
        _enter_wal(connection, busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        if not _is_laid_out(connection, path):
            with transaction(connection):
                if not _is_laid_out(connection, path):  # Another process may have been first.
                    for statement in SCHEMA.split(";\n"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_laid_out(connection: SqliteConnection, path: Path) -> bool:
    """Raises ``StoreUnavailable`` if a newer program has laid the file out."""
    (format_version,) = connection.execute("PRAGMA user_version").fetchone()
    if format_version > FORMAT_VERSION:
        newer = StoreUnavailable(
            f"metadata store {path} is of format {format_version}, "
            f"this program reads up to {FORMAT_VERSION}"
        )
        newer.hint = "install the version of Tidelog that wrote it, or a later one"
        raise newer
    return bool(format_version == FORMAT_VERSION)


def _enter_wal(connection: SqliteConnection, busy_timeout: float) -> None:
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
def transaction(connection: SqliteConnection) -> Iterator[None]:
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
