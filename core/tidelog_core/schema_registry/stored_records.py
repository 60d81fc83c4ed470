"""Reads any of the registry's items as its record; a malformed item hides no other."""

from __future__ import annotations

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.schema_records import (
    SCHEMA_CONTEXT_COLLECTION,
    SCHEMA_SETTINGS_COLLECTION,
    SCHEMA_SUBJECT_COLLECTION,
    SCHEMA_TEXT_COLLECTION_PREFIX,
    SchemaContext,
    SchemaIdentity,
    SchemaSettings,
    SchemaSubject,
    SchemaText,
)
from tidelog_core.metadata.store import Body, Item, ItemKey

_READ_VERSION = 1  # Items in the bucket have none.
_RECORDS: dict[str, type[Record]] = {
    SCHEMA_CONTEXT_COLLECTION: SchemaContext,
    SCHEMA_SETTINGS_COLLECTION: SchemaSettings,
    SCHEMA_SUBJECT_COLLECTION: SchemaSubject,
}


def record_of(item: Item) -> Record | None:
    """Return the record of an item, ``None`` if its body is malformed."""
    kind = _RECORDS.get(item.id.collection)
    if kind is None:
        is_text = item.id.collection.startswith(SCHEMA_TEXT_COLLECTION_PREFIX)
        kind = SchemaText if is_text else SchemaIdentity
    try:
        return kind.from_item(item)
    except CorruptItem:
        return None


def record_in(items: dict[ItemKey, Body], key: ItemKey) -> Record | None:
    """Return the record of one of the journal's items, ``None`` if there is none, or malformed."""
    body = items.get(key)
    return None if body is None else record_of(Item(key, _READ_VERSION, body))
