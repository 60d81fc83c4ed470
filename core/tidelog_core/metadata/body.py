"""Bodies of metadata items: to and from JSON, and strict reading of their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard, cast
from uuid import UUID

from tidelog_core.config import INT64_MAX
from tidelog_core.errors import CorruptItem, ItemTooLarge
from tidelog_core.metadata.store import Body, Item, ItemKey, JsonValue

# DynamoDB stops at 400 KiB an item, names and keys included. Every store refuses
# at the same size, so that what works on a laptop works when deployed.
BODY_SIZE_BYTES_MAX = 380_000

_INT64_MIN = -INT64_MAX - 1
_MISSING = object()
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def encode_body(id: ItemKey, body: Body) -> str:
    """Return the body as compact JSON. Raises ``ItemTooLarge``."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    size_bytes = len(text.encode())
    if size_bytes > BODY_SIZE_BYTES_MAX:
        raise ItemTooLarge((id.collection, id.key), size_bytes, limit=BODY_SIZE_BYTES_MAX)
    return text


def decode_body(id: ItemKey, text: str) -> Body:
    """Return the body that the JSON holds. Raises ``CorruptItem``."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptItem((id.collection, id.key), f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise CorruptItem((id.collection, id.key), "not an object")
    return cast("Body", body)


class BodyReader:
    """Takes an item's fields one by one and insists on their types.

    ``finish`` raises where a field was left over: a program that meets a field it
    does not know must not go on, for it would drop the field with its next write.
    Every method raises ``CorruptItem`` naming the item and the field.
    """

    __slots__ = ("_item", "_left")

    def __init__(self, item: Item) -> None:
        self._item = item
        if item.problem is not None:
            raise self.error(item.problem)
        self._left: dict[str, JsonValue] = dict(item.body)

    def has(self, field: str) -> bool:
        """Return whether the item has the field and it was not taken yet."""
        return field in self._left

    def integer(self, field: str, *, at_least: int | None = None) -> int:
        """Take a whole number."""
        value = self._take(field)
        if not _is_int64(value):
            raise self.error(f"{field} must be a whole number of 64 bits, not {value!r}")
        if at_least is not None and value < at_least:
            raise self.error(f"{field} must be at least {at_least}, not {value}")
        return value

    def integer_or_none(self, field: str, *, at_least: int | None = None) -> int | None:
        """Take a whole number or null."""
        if self._left.get(field, 0) is None:
            self._take(field)
            return None
        return self.integer(field, at_least=at_least)

    def integer_or_absent(self, field: str, *, absent: int, at_least: int) -> int:
        """Take a whole number; ``absent`` where an older program wrote the item without it."""
        return self.integer(field, at_least=at_least) if field in self._left else absent

    def boolean(self, field: str) -> bool:
        """Take true or false."""
        value = self._take(field)
        if not isinstance(value, bool):
            raise self.error(f"{field} must be true or false, not {value!r}")
        return value

    def boolean_or_absent(self, field: str, *, absent: bool) -> bool:
        """Take true or false; ``absent`` where the item was written without it."""
        return self.boolean(field) if field in self._left else absent

    def text(self, field: str) -> str:
        """Take a string."""
        value = self._take(field)
        if not isinstance(value, str):
            raise self.error(f"{field} must be a string, not {value!r}")
        return value

    def text_or_absent(self, field: str, *, absent: str) -> str:
        """Return the string, or ``absent`` where the record is from before the field."""
        return self.text(field) if field in self._left else absent

    def text_or_none(self, field: str) -> str | None:
        """Take a string or null."""
        if self._left.get(field, "") is None:
            self._take(field)
            return None
        return self.text(field)

    def uuid(self, field: str) -> UUID:
        """Take a UUID in its canonical spelling."""
        text = self.text(field)
        if _UUID.fullmatch(text) is None:
            raise self.error(f"{field} must be a canonical UUID, not {text!r}")
        return UUID(int=int(text.replace("-", ""), 16))

    def integers(self, field: str) -> tuple[int, ...]:
        """Take a list of whole numbers."""
        values = self.sequence(field)
        for value in values:
            if not _is_int64(value):
                raise self.error(f"{field} must hold whole numbers of 64 bits, not {value!r}")
        return cast("tuple[int, ...]", tuple(values))

    def integer_pairs(self, field: str) -> tuple[tuple[int, int], ...]:
        """Take a list of pairs of whole numbers."""
        pairs = []
        for value in self.sequence(field):
            match value:
                case [first, second] if _is_int64(first) and _is_int64(second):
                    pairs.append((first, second))
                case _:
                    raise self.error(
                        f"{field} must hold pairs of whole numbers of 64 bits, not {value!r}"
                    )
        return tuple(pairs)

    def texts(self, field: str) -> dict[str, str]:
        """Take a mapping of strings to strings."""
        values = self._take(field)
        if not isinstance(values, Mapping):
            raise self.error(f"{field} must be a mapping, not {values!r}")
        for name, value in values.items():
            if not isinstance(value, str):
                raise self.error(f"{field}.{name} must be a string, not {value!r}")
        return cast("dict[str, str]", dict(values))

    def integers_by_name(self, field: str) -> dict[str, int]:
        """Take a mapping of strings to whole numbers."""
        values = self._take(field)
        if not isinstance(values, Mapping):
            raise self.error(f"{field} must be a mapping, not {values!r}")
        for name, value in values.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise self.error(f"{field}.{name} must be a whole number, not {value!r}")
        return cast("dict[str, int]", dict(values))

    def sequence(self, field: str) -> Sequence[JsonValue]:
        """Take a list of anything."""
        values = self._take(field)
        if not isinstance(values, list | tuple):
            raise self.error(f"{field} must be a list, not {values!r}")
        return values

    def anything(self, field: str) -> JsonValue:
        """Take a value that its reader checks."""
        return self._take(field)

    def finish(self) -> None:
        """Raise where a field was not taken."""
        if self._left:
            raise self.error(f"unknown fields: {', '.join(sorted(self._left))}")

    def error(self, problem: str) -> CorruptItem:
        """Return the error that names the item and the problem."""
        return CorruptItem((self._item.id.collection, self._item.id.key), problem)

    def _take(self, field: str) -> JsonValue:
        value = self._left.pop(field, _MISSING)
        if value is _MISSING:
            raise self.error(f"{field} is missing")
        return cast("JsonValue", value)


def _is_int64(value: object) -> TypeGuard[int]:
    return type(value) is int and _INT64_MIN <= value <= INT64_MAX
