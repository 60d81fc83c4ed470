"""Writes Avro's binary values from Avro's JSON encoding.

Where a union has null and one other type, the value may also be written without the type's name.
A field that is absent takes its default. Source: Avro 1.12's specification.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tidelog_core.schemas.avro.types import NO_DEFAULT, AvroField, AvroType
from tidelog_core.schemas.values.avro_reading import DEPTH_MAX, branch_name
from tidelog_core.schemas.values.framing import UnreadableValue, zigzag_varint

SHOWN_CHARACTERS_MAX = 60
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_UNUSUAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_BITS = {"int": 31, "long": 63}


def write_avro(schema: AvroType, value: Any) -> bytes:
    """Return the value as the type's bytes. Raises ``UnreadableValue``."""
    parts = bytearray()
    _Writer(parts).write(schema, value, "the value", 0)
    return bytes(parts)


class _Writer:
    """Writes one value. ``where`` names the part of it in messages."""

    def __init__(self, parts: bytearray) -> None:
        self._parts = parts
        self._writes: dict[str, Callable[[AvroType, Any, str, int], None]] = {
            "union": self._union,
            "record": self._record,
            "error": self._record,
            "array": self._array,
            "map": self._map,
        }

    def write(self, schema: AvroType, value: Any, where: str, depth: int) -> None:
        """Write a value of the type."""
        if depth > DEPTH_MAX:
            raise UnreadableValue(f"it nests more than {DEPTH_MAX} times")
        write = self._writes.get(schema.kind)
        if write is not None:
            write(schema, value, where, depth + 1)
        else:
            self._parts += _simple(schema, value, where)

    def _record(self, of: AvroType, value: Any, where: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _no(of, value, where)
        unknown = value.keys() - {one.name for one in of.fields}
        if unknown:
            raise UnreadableValue(f"{where} has no field {min(unknown)[:100]!r}")
        for one in of.fields:
            place = f"{where}.{one.name}" if where != "the value" else one.name
            if one.name in value:
                self.write(one.type, value[one.name], place, depth)
            else:
                self._default(one, place, depth)

    def _default(self, one: AvroField, where: str, depth: int) -> None:
        if one.default is NO_DEFAULT:
            raise UnreadableValue(f"{where} is missing")
        kind, value = one.type, one.default
        if kind.kind == "union":  # Its default is of any of its branches.
            for index, branch in enumerate(kind.branches):
                start = len(self._parts)
                self._parts += zigzag_varint(index)
                try:
                    self.write(branch, value, where, depth)
                except UnreadableValue:
                    del self._parts[start:]
                else:
                    return
        self.write(kind, value, where, depth)

    def _union(self, of: AvroType, value: Any, where: str, depth: int) -> None:
        names = [branch_name(one) for one in of.branches]
        if value is None and "null" in names:
            self._parts += zigzag_varint(names.index("null"))
            return
        if isinstance(value, dict) and len(value) == 1:
            ((name, inner),) = value.items()
            if name in names and name != "null":
                index = names.index(name)
                self._parts += zigzag_varint(index)
                self.write(of.branches[index], inner, where, depth)
                return
        others = [index for index, name in enumerate(names) if name != "null"]
        if len(others) == 1:
            self._parts += zigzag_varint(others[0])
            self.write(of.branches[others[0]], value, where, depth)
            return
        raise UnreadableValue(
            f"{where} is a union: write null or an object with one of {', '.join(names)[:200]}"
        )

    def _array(self, of: AvroType, value: Any, where: str, depth: int) -> None:
        if not isinstance(value, list):
            raise _no(of, value, where)
        assert of.items is not None
        if value:
            self._parts += zigzag_varint(len(value))
        for number, item in enumerate(value):
            self.write(of.items, item, f"{where}[{number}]", depth)
        self._parts += b"\0"

    def _map(self, of: AvroType, value: Any, where: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _no(of, value, where)
        assert of.items is not None
        if value:
            self._parts += zigzag_varint(len(value))
        for name, item in value.items():
            text = _text(name, where)
            self._parts += zigzag_varint(len(text)) + text
            self.write(of.items, item, f"{where}[{name[:SHOWN_CHARACTERS_MAX]}]", depth)
        self._parts += b"\0"


def _simple(of: AvroType, value: Any, where: str) -> bytes:  # noqa: PLR0911
    kind = of.kind
    if kind == "null" and value is None:
        return b""
    if kind == "boolean" and isinstance(value, bool):
        return b"\1" if value else b"\0"
    if kind in _BITS and type(value) is int:
        if -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind]:
            return zigzag_varint(value)
        raise UnreadableValue(f"{where} is too large for {kind}")
    if kind in ("float", "double"):
        return _number(of, value, where)
    if isinstance(value, str):
        if kind == "string":
            data = _text(value, where)
            return zigzag_varint(len(data)) + data
        if kind in ("bytes", "fixed"):
            return _raw(of, value, where)
        if kind == "enum" and value in of.symbols:
            return zigzag_varint(of.symbols.index(value))
    raise _no(of, value, where)


def _number(of: AvroType, value: Any, where: str) -> bytes:
    if isinstance(value, str) and value in _UNUSUAL:
        value = _UNUSUAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _no(of, value, where)
    try:
        return (_FLOAT if of.kind == "float" else _DOUBLE).pack(value)
    except (OverflowError, struct.error):
        raise UnreadableValue(f"{where} is too large for {of.kind}") from None


def _raw(of: AvroType, value: str, where: str) -> bytes:
    try:
        data = value.encode("latin-1")
    except UnicodeEncodeError:
        raise UnreadableValue(f"{where} has characters that stand for no byte") from None
    if of.kind == "bytes":
        return zigzag_varint(len(data)) + data
    if len(data) != of.size:
        raise UnreadableValue(f"{where} has {len(data)} bytes, {of.size} are required")
    return data


def _text(value: str, where: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise UnreadableValue(f"{where} has half of a surrogate pair") from None


def _no(of: AvroType, value: Any, where: str) -> UnreadableValue:
    shown = repr(value)[:SHOWN_CHARACTERS_MAX]
    return UnreadableValue(f"{where} must be {branch_name(of)}, is {shown}")
