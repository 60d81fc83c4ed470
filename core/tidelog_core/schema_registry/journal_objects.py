"""The objects of the registry's journal, and what they say together. No I/O.

    entry        the writes of one change, numbered without gaps
    void         the entry of this number was never done, and does not count
    checkpoint   the items after an entry; of texts, the number of the entry that has each

Items have the keys and bodies that they have in the metadata store. All objects are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.schema_records import SCHEMA_TEXT_COLLECTION_PREFIX
from tidelog_core.metadata.store import Body, ItemKey, Write

FORMAT_VERSION = 1
ENTRY, CHECKPOINT, VOID = "schemas-entry", "schemas-checkpoint", "schemas-void"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The writes of one change. An entry of a restoration has none."""

    sequence: int
    store_id: UUID  # of the metadata store that it is for
    writes: tuple[Write, ...]

    def to_bytes(self) -> bytes:
        """Return the object."""
        writes = [
            {
                "collection": one.id.collection,
                "key": one.id.key,
                "expected_version": one.expected_version,
                "body": one.body,
            }
            for one in self.writes
        ]
        return _encode(ENTRY, self.sequence, self.store_id, {"writes": writes})

    @classmethod
    def parse(cls, data: bytes, *, key: str) -> JournalEntry:
        """Return the entry in ``data``. Raises ``CorruptObject``."""
        fields = _decode(data, key, ENTRY)
        try:
            writes = tuple(
                Write(
                    ItemKey(_text(one["collection"]), _text(one["key"])),
                    None if one["body"] is None else _body(one["body"]),
                    int(one["expected_version"]),
                    is_logged=False,
                )
                for one in fields["writes"]
            )
            return cls(int(fields["sequence"]), UUID(fields["store_id"]), writes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptObject(key, f"it is no entry: {error!r}") from None


def void_object(entry: JournalEntry) -> bytes:
    """Return the content of the object that says that an entry does not count."""
    return _encode(VOID, entry.sequence, entry.store_id, {})


@dataclass(slots=True)
class JournalState:
    """The registry's items after an entry."""

    sequence: int = 0
    store_id: UUID | None = None
    items: dict[ItemKey, Body] = field(default_factory=dict)  # all but texts
    texts: dict[ItemKey, int] = field(default_factory=dict)  # the entry that has the text

    def apply(self, entry: JournalEntry) -> None:
        """Take the writes of the next entry."""
        self.sequence, self.store_id = entry.sequence, entry.store_id
        for write in entry.writes:
            self.items.pop(write.id, None)
            self.texts.pop(write.id, None)
            if write.body is None:
                continue
            if is_text(write.id):
                self.texts[write.id] = entry.sequence
            else:
                self.items[write.id] = write.body

    def to_bytes(self) -> bytes:
        """Return the checkpoint."""
        items = [[key.collection, key.key, self.items[key]] for key in sorted(self.items)]
        texts = [[key.collection, key.key, home] for key, home in sorted(self.texts.items())]
        fields = {"items": items, "texts": texts}
        return _encode(CHECKPOINT, self.sequence, self.store_id, fields)

    @classmethod
    def parse(cls, data: bytes, *, key: str) -> JournalState:
        """Return the state in a checkpoint. Raises ``CorruptObject``."""
        fields = _decode(data, key, CHECKPOINT)
        try:
            return cls(
                int(fields["sequence"]),
                UUID(fields["store_id"]),
                {ItemKey(_text(a), _text(b)): _body(body) for a, b, body in fields["items"]},
                {ItemKey(_text(a), _text(b)): int(home) for a, b, home in fields["texts"]},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptObject(key, f"it is no checkpoint: {error!r}") from None


def is_text(key: ItemKey) -> bool:
    """Return whether an item is a schema's text."""
    return key.collection.startswith(SCHEMA_TEXT_COLLECTION_PREFIX)


def texts_in(entry: JournalEntry, wanted: Iterable[ItemKey]) -> dict[ItemKey, Body]:
    """Return the wanted texts that an entry has."""
    found = {one.id: one.body for one in entry.writes}
    return {key: body for key in wanted if (body := found.get(key)) is not None}


def _encode(kind: str, sequence: int, store_id: UUID | None, fields: Mapping[str, object]) -> bytes:
    value = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "sequence": sequence,
        "store_id": None if store_id is None else str(store_id),
        **fields,
    }
    return json.dumps(value, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{value!r} is no JSON")


def _decode(data: bytes, key: str, kind: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptObject(key, f"it is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise CorruptObject(key, f"its kind is not {kind}")
    if fields.get("format_version") != FORMAT_VERSION:
        raise CorruptObject(key, f"its format version is not {FORMAT_VERSION}")
    return fields


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _body(value: object) -> Body:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no body")
    return value
