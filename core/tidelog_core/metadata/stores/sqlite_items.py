"""Reads and writes the items of a SQLite metadata store, by SQL.

Each of the public functions is one call on a thread of the store: ``commit`` and ``increment`` on
the one that writes, the others on the one that reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidelog_core.errors import CorruptItem, VersionConflict
from tidelog_core.metadata.store import (
    ABSENT,
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
from tidelog_core.metadata.stores import dynamodb_units as units
from tidelog_core.metadata.stores.commit import decode_body, encode_body
from tidelog_core.metadata.stores.sqlite_file import SqliteConnection, transaction

NO_LIMIT = -1  # as SQLite has it

# The body as bytes: of a text that is not UTF-8 SQLite's driver makes an error of the query.
ITEM_COLUMNS = "version, CAST(body AS BLOB)"


def get(connection: SqliteConnection, id: ItemKey) -> Item | None:
    """Return the item, or ``None`` if it does not exist."""
    row = _row(connection, id)
    connection.note_read(0 if row is None else _size_bytes(id, row))
    return None if row is None else _item(id, *row)


def get_many(connection: SqliteConnection, ids: Iterable[ItemKey]) -> dict[ItemKey, Item]:
    """Return the items that exist."""
    items = (get(connection, item_id) for item_id in ids)
    return {item.id: item for item in items if item is not None}


def list_(connection: SqliteConnection, collection: str, prefix: str, keys: KeyRange) -> list[Item]:
    """Return the collection's items whose key starts with ``prefix``, in key order."""
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


def _row(connection: SqliteConnection, id: ItemKey) -> tuple[Any, Any] | None:
    row: tuple[Any, Any] | None = connection.execute(
        f"SELECT {ITEM_COLUMNS} FROM items WHERE collection = ? AND key = ?",
        (id.collection, id.key),
    ).fetchone()
    return row


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


def commit(
    connection: SqliteConnection,
    rows: Sequence[tuple[Write, str | None]],
    checks: Sequence[Check],
    changelog_length: int,
) -> None:
    """Do all the writes or none. Raises ``VersionConflict``."""
    with transaction(connection):
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


def _version(connection: SqliteConnection, id: ItemKey) -> tuple[int, int]:
    """Return the item's version and the bytes of its body."""
    row = connection.execute(
        "SELECT version, length(CAST(body AS BLOB)) FROM items WHERE collection = ? AND key = ?",
        (id.collection, id.key),
    ).fetchone()
    if row is None:
        return ABSENT, 0
    version, size_bytes = row
    return version if isinstance(version, int) else UNREADABLE_VERSION, size_bytes


def _write(connection: SqliteConnection, id: ItemKey, version: int, text: str | None) -> None:
    if text is None:
        connection.execute(
            "DELETE FROM items WHERE collection = ? AND key = ?", (id.collection, id.key)
        )
    else:
        connection.execute(
            "INSERT OR REPLACE INTO items (collection, key, version, body) VALUES (?, ?, ?, ?)",
            (id.collection, id.key, max(version, ABSENT) + 1, text),
        )


def _log(connection: SqliteConnection, ids: Sequence[ItemKey], changelog_length: int) -> None:
    connection.execute("UPDATE cluster SET version = version + 1 WHERE id = 1")
    version = _cluster_version(connection)
    connection.executemany(
        "INSERT INTO changelog (version, collection, key) VALUES (?, ?, ?)",
        [(version, item_id.collection, item_id.key) for item_id in ids],
    )
    connection.execute("DELETE FROM changelog WHERE version <= ?", (version - changelog_length,))
    connection.usage.modelled_write_units += sum(units.logging_units(ids).values())


def changes_since(
    connection: SqliteConnection, since: ClusterVersion, changelog_length: int
) -> Changes:
    """Return the keys that logged writes touched after ``since``."""
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


def _cluster_version(connection: SqliteConnection) -> int:
    return int(connection.execute("SELECT version FROM cluster WHERE id = 1").fetchone()[0])


def increment(connection: SqliteConnection, id: ItemKey, by: int) -> int:
    """Add to the item's ``value`` (0 where absent) and return the sum."""
    with transaction(connection):
        row = _row(connection, id)  # Not noted as a read: DynamoDB adds in place.
        item = None if row is None else _item(id, *row)
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
