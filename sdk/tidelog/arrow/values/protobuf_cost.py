"""What Protobuf's messages take as columns at most, and while they are parsed.

The library makes room for all fields of a message as soon as two bytes say that it is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tidelog.arrow.values.column_budget import ColumnCost

_MESSAGE_BYTES = 64  # of a message without fields, parsed
_FIELD_BYTES = 32.0  # of a field: parsed, as an object of Python, and in its column
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # Protobuf's wire types
_VARINT_BYTES_MAX = 10


class _Malformed(Exception):
    """The bytes are no message."""


class _HasGroups(Exception):
    """A message has a field in the old form without a length."""


class MessageCosts:
    """Knows the messages of one schema, none of which contains itself."""

    def __init__(self) -> None:
        self._widths: dict[str, float] = {}
        self._per_byte: dict[str, float] = {}

    def cost(self, of: Any) -> ColumnCost:
        """Return what messages of a type take."""
        return ColumnCost(self._width(of), 1.0 + self._rate(of))

    def bytes_of(self, of: Any, data: bytes) -> float:
        """Return what a message takes: its messages are counted, and nothing is made of them.

        Of a message with groups that is not known: infinity.
        """
        total = self._width(of) + len(data)
        waiting = [(of, data)]
        while waiting:
            of, data = waiting.pop()
            try:
                for number, content in _fields(data):
                    field = of.fields_by_number.get(number)
                    if field is None:
                        continue
                    if field.is_repeated:
                        total += self._item_width(field) * _item_count(field, content)
                    if field.message_type is not None:
                        waiting.append((field.message_type, content))
            except _Malformed:
                continue  # The library says what is wrong.
            except _HasGroups:
                return math.inf
        return total

    def _width(self, of: Any) -> float:
        """Return what a message takes without repeated fields."""
        known = self._widths.get(of.full_name)
        if known is None:
            known = _MESSAGE_BYTES + sum(
                _FIELD_BYTES if field.is_repeated else self._item_width(field)
                for field in of.fields
            )
            self._widths[of.full_name] = known
        return known

    def _item_width(self, field: Any) -> float:
        if field.message_type is not None:
            return _FIELD_BYTES + self._width(field.message_type)
        if field.enum_type is not None:
            longest = max((len(one.name) for one in field.enum_type.values), default=0)
            return _FIELD_BYTES + longest
        return _FIELD_BYTES

    def _rate(self, of: Any) -> float:
        """Return what repeated fields take for each byte of theirs."""
        known = self._per_byte.get(of.full_name)
        if known is None:
            known = max((self._field_rate(field) for field in of.fields), default=0.0)
            self._per_byte[of.full_name] = known
        return known

    def _field_rate(self, field: Any) -> float:
        inner = 0.0 if field.message_type is None else self._rate(field.message_type)
        if not field.is_repeated:
            return inner
        return inner + self._item_width(field) / (1 if _may_be_packed(field) else 2)


def _may_be_packed(field: Any) -> bool:
    return field.message_type is None and field.cpp_type != FieldDescriptor.CPPTYPE_STRING


def _item_count(field: Any, content: bytes) -> int:
    """Return the number of items at most that the bytes of a repeated field have."""
    return len(content) if _may_be_packed(field) and content else 1


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields' numbers, and the bytes of those that have a length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, size = key & 7, 0
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:  # A group of proto2 begins: what is in it is not counted.
            raise _HasGroups
        if size > len(data) - at:
            raise _Malformed
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(_VARINT_BYTES_MAX):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at
    raise _Malformed
