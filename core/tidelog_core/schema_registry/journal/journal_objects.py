"""The objects of the registry's journal, and the state that follows from them. No I/O.

    entry        the writes of one change, numbered without gaps
    void         the entry of this number was never done, and does not count
    checkpoint   the items after an entry; of texts, the number of the entry that has each

Items have the keys and bodies that they have in the metadata store. All objects are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.schema_records import SCHEMA_TEXT_COLLECTION_PREFIX
from tidelog_core.metadata.store import Body, ItemKey, Write
from tidelog_core.turns import Steps, at_once

FORMAT_VERSION = 1
ROWS_AT_ONCE = 32  # of a checkpoint: what is encoded or parsed in one step
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


def void_object(sequence: int, store_id: UUID) -> bytes:
    """Return the content of the object that says that an entry does not count."""
    return _encode(VOID, sequence, store_id, {})


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
        return at_once(self.encoding())

    def encoding(self) -> Steps[bytes]:
        """Return the checkpoint, in steps. It has a line for each item and each text."""
        head = _encode(CHECKPOINT, self.sequence, self.store_id, {"items": []})
        parts = [head.rstrip().removesuffix(_LIST_END), b"\n"]
        items = ((key, self.items[key]) for key in list(self.items))
        yield from _encode_rows(items, parts)
        parts += [_BETWEEN_LISTS, b"\n"]
        yield from _encode_rows(iter(list(self.texts.items())), parts)
        parts += [_LIST_END, b"\n"]
        return b"".join(parts)

    @classmethod
    def parse(cls, data: bytes, *, key: str) -> JournalState:
        """Return the state in a checkpoint. Raises ``CorruptObject``."""
        return at_once(cls.parsing(data, key=key))

    @classmethod
    def parsing(cls, data: bytes, *, key: str) -> Steps[JournalState]:
        """Return the state in a checkpoint, in steps. Raises ``CorruptObject``."""
        lines = data.split(b"\n")
        if _BETWEEN_LISTS in lines:
            split = lines.index(_BETWEEN_LISTS)
            if lines[-2:] != [_LIST_END, b""]:
                raise CorruptObject(key, "it has no end")
            fields = _decode(lines[0] + _LIST_END, key, CHECKPOINT)
            rows: Any = yield from _parse_rows(lines[1:split], key)
            texts: Any = yield from _parse_rows(lines[split + 1 : -2], key)
        else:  # As programs wrote it that had it in one line.
            fields = _decode(data, key, CHECKPOINT)
            rows, texts = fields.get("items"), fields.get("texts")
            yield
        try:
            state = cls(int(fields["sequence"]), UUID(fields["store_id"]))
            for number, (collection, name, body) in enumerate(rows):
                state.items[ItemKey(_text(collection), _text(name))] = _body(body)
                if number % ROWS_AT_ONCE == 0:
                    yield
            for number, (collection, name, home) in enumerate(texts):
                state.texts[ItemKey(_text(collection), _text(name))] = int(home)
                if number % ROWS_AT_ONCE == 0:
                    yield
            return state
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptObject(key, f"it is no checkpoint: {error!r}") from None


_LIST_END = b"]}"
_BETWEEN_LISTS = b'], "texts": ['


def _encode_rows(rows: Iterator[tuple[ItemKey, Body | int]], parts: list[bytes]) -> Steps[None]:
    """Add a line for each row, with commas between them."""
    line: bytes | None = None
    for number, (key, value) in enumerate(rows):
        if line is not None:
            parts.append(line + b",\n")
        line = json.dumps([key.collection, key.key, value], default=_plain).encode()
        if number % ROWS_AT_ONCE == 0:
            yield
    if line is not None:
        parts.append(line + b"\n")


def _parse_rows(lines: Sequence[bytes], key: str) -> Steps[list[Any]]:
    rows: list[Any] = []
    for some in batched(lines, ROWS_AT_ONCE):
        rows += _loads(b"[" + b"\n".join(some).removesuffix(b",") + b"]", key)
        yield
    return rows


def is_text(key: ItemKey) -> bool:
    """Return whether an item is a schema's text."""
    return key.collection.startswith(SCHEMA_TEXT_COLLECTION_PREFIX)


def same_body(one: Body | None, other: Body | None) -> bool:
    """Return whether two bodies, or ``None`` for no item, say the same."""
    if one is None or other is None:
        return one is other
    return _comparable(one) == _comparable(other)


def _comparable(body: Body) -> str:
    return json.dumps(dict(body), default=_plain, sort_keys=True)


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


def _loads(data: bytes, key: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptObject(key, f"it is not JSON: {error}") from None


def _decode(data: bytes, key: str, kind: str) -> dict[str, Any]:
    fields = _loads(data, key)
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
