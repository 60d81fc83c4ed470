"""Items of a SQLite metadata store as they are on disk, for tests that damage them.

The store's API writes documents alone, and gives a written item a new version.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tidelog_core.metadata.store import ItemKey

BUSY_SECONDS_MAX = 60.0


def stored_items(path: Path) -> dict[ItemKey, tuple[int, str]]:
    """Return version and body of every item, in the order of their keys."""
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS_MAX)) as store:
        rows = store.execute(
            "SELECT collection, key, version, body FROM items ORDER BY collection, key"
        ).fetchall()
    return {ItemKey(collection, key): (version, body) for collection, key, version, body in rows}


def overwrite_body(path: Path, key: ItemKey, body: str = "{") -> None:
    """Replace the body of an item; its version stays. By default it is no document any more."""
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS_MAX)) as store, store:
        changed = store.execute(
            "UPDATE items SET body = ? WHERE collection = ? AND key = ?",
            (body, key.collection, key.key),
        )
    assert changed.rowcount == 1
