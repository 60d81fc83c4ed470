"""Writes ``docs/internals/metadata-items.md``: ``python -m tools.metadata_items``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from uuid import UUID

from tidelog_core.metadata.fields import StoredField
from tidelog_core.metadata.items import ITEMS
from tidelog_core.metadata.record import Record, stored_fields
from tidelog_core.metadata.store import ItemKey
from tidelog_core.model import INT64_MAX

from tools.places import ROOT

PAGE = ROOT / "docs" / "internals" / "metadata-items.md"

_NAMES = {
    bool: "true or false",
    int: "number",
    str: "text",
    UUID: "UUID",
    Mapping[str, int]: "numbers by name",
    Mapping[str, str]: "texts by name",
    tuple[int, ...]: "numbers",
    tuple[str, ...]: "texts",
    tuple[tuple[int, int], ...]: "pairs of numbers",
}

_BEGIN = """\
# Items of the metadata store

Every kind of item, with its key and the record that it holds. This page is made by `make docs`
from the records, which declare what is stored, and from `core/tidelog_core/metadata/items.py`,
which says who writes and reads them. Logged writes are in the changelog, which images follow. A
restoration logs none: no image is there yet.

| collection | key | value | logged | written by | read by |
|---|---|---|---|---|---|
"""

_FIELDS = """
## Fields

The body of an item is a JSON object of these fields, in this order; those of its key are not here.
A field in brackets is stored only if it is not the default. Settings of no single broker have the
key `default`.

| value | key | fields |
|---|---|---|
"""


def items_page() -> str:
    """Return the page's text."""
    rows = (
        _row(
            f"`{form.collection}`",
            f"`{form.key}`",
            _value(kind.value),
            kind.logged,
            kind.writers,
            kind.readers,
        )
        for kind in ITEMS
        for form in [kind.value if isinstance(kind.value, ItemKey) else kind.value.KEY.text]
    )
    records = (kind.value for kind in ITEMS if not isinstance(kind.value, ItemKey))
    fields = (
        _row(f"`{record.__name__}`", f"`{record.KEY.make.__name__}`", ", ".join(_fields(record)))
        for record in records
    )
    return "".join((_BEGIN, *rows, _FIELDS, *fields))


def _value(value: type[Record] | ItemKey) -> str:
    return "a counter" if isinstance(value, ItemKey) else f"`{value.__name__}`"


def _fields(record: type[Record]) -> Iterable[str]:
    for field in stored_fields(record):
        if field.is_stored and not field.is_in_key:
            text = f"{field.name}: {_type(field)}"
            yield f"[{text}]" if field.is_omitted else text


def _type(field: StoredField) -> str:
    if field.write is not None:
        return f"as `{field.write.__name__}` returns it"
    text = _NAMES.get(field.type, "")
    if isinstance(field.type, type) and issubclass(field.type, Enum):
        text = " or ".join(str(member.value) for member in field.type)
    elif field.type is int and field.at_least > -INT64_MAX:
        text = f"number ≥ {field.at_least}"
    return f"{text} or null" if field.is_optional and not field.is_omitted else text


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(items_page())
    print(PAGE.relative_to(ROOT))
