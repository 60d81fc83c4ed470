"""Reads Avro's binary values into Avro's JSON encoding.

A union's value is an object with the branch's name, bytes are text with a character for each.
Reading any bytes takes time and memory in proportion to them: items without bytes,
such as nulls, are counted, and how deep values nest is limited. Source: Avro 1.12's specification.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.values.framing import UnreadableValue

EMPTY_ITEMS_MAX = 100_000  # of one value: parts that take no bytes
DEPTH_MAX = 100  # of records, arrays, maps and unions within each other
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_INT_MAX, _LONG_MAX = 2**31, 2**63


class Source:
    """The bytes of one value, and the place that reading has come to."""

    __slots__ = ("at", "data", "depth", "empty_items")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.depth = 0
        self.empty_items = 0


Read = Callable[[Source], Any]


def reader_of(schema: AvroType) -> Callable[[bytes], Any]:
    """Return a function that reads values of the type; it raises ``UnreadableValue``."""
    read = _Readers().of(schema)

    def read_whole(data: bytes) -> Any:
        source = Source(data)
        try:
            value = read(source)
        except (IndexError, struct.error):
            raise UnreadableValue("it ends in the middle") from None
        except UnicodeDecodeError:
            raise UnreadableValue("a string is not in UTF-8") from None
        if source.at != len(data):
            raise UnreadableValue(f"{len(data) - source.at} bytes follow the value")
        return value

    return read_whole


def branch_name(schema: AvroType) -> str:
    """Return the name that a union's branch has in JSON."""
    return schema.full_name or schema.kind


class _Readers:
    """Makes one function for each type; a record may have itself in a field."""

    def __init__(self) -> None:
        self._named: dict[int, Read] = {}

    def of(self, schema: AvroType) -> Read:
        """Return the function that reads the type."""
        simple = _SIMPLE.get(schema.kind)
        if simple is not None:
            return simple
        makers: dict[str, Callable[[AvroType], Read]] = {
            "union": self._union,
            "array": self._array,
            "map": self._map,
            "enum": lambda schema: _enum(schema.symbols),
            "fixed": lambda schema: _fixed(schema.size),
        }
        return makers.get(schema.kind, self._record)(schema)

    def _record(self, of: AvroType) -> Read:
        known = self._named.get(id(of))
        if known is not None:
            return known
        fields: list[tuple[str, Read]] = []

        def read(source: Source) -> Any:
            _descend(source)
            before = source.at
            value = {name: read_field(source) for name, read_field in fields}
            if source.at == before:
                _count_empty(source)
            source.depth -= 1
            return value

        self._named[id(of)] = read
        fields += [(one.name, self.of(one.type)) for one in of.fields]
        return read

    def _union(self, of: AvroType) -> Read:
        branches = [(branch_name(one), self.of(one)) for one in of.branches]

        def read(source: Source) -> Any:
            index = read_long(source)
            if not 0 <= index < len(branches):
                raise UnreadableValue(f"a union has no branch {index}")
            name, read_branch = branches[index]
            if name == "null":
                return None
            _descend(source)
            value = read_branch(source)
            source.depth -= 1
            return {name: value}

        return read

    def _array(self, of: AvroType) -> Read:
        assert of.items is not None
        read_item = self.of(of.items)

        def read(source: Source) -> Any:
            _descend(source)
            values = []
            while (count := _block_count(source)) != 0:
                values += [read_item(source) for _ in range(count)]
            source.depth -= 1
            return values

        return read

    def _map(self, of: AvroType) -> Read:
        assert of.items is not None
        read_item = self.of(of.items)

        def read(source: Source) -> Any:
            _descend(source)
            values = {}
            while (count := _block_count(source)) != 0:
                for _ in range(count):
                    name = _string(source)
                    values[name] = read_item(source)
            source.depth -= 1
            return values

        return read


def read_long(source: Source) -> int:
    """Return a number written as a zigzag varint of up to 64 bits."""
    data, at = source.data, source.at
    byte = data[at]
    at += 1
    value, shift = byte & 0x7F, 7
    while byte > 0x7F:
        if shift > 63:
            raise UnreadableValue("a number has more than 64 bits")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    source.at = at
    value = (value >> 1) ^ -(value & 1)
    if not -_LONG_MAX <= value < _LONG_MAX:
        raise UnreadableValue("a number has more than 64 bits")
    return value


def _int(source: Source) -> int:
    value = read_long(source)
    if not -_INT_MAX <= value < _INT_MAX:
        raise UnreadableValue(f"{value} is no int: it has more than 32 bits")
    return value


def _take(source: Source, size: int) -> bytes:
    start, end = source.at, source.at + size
    if size < 0 or end > len(source.data):
        raise UnreadableValue(f"{size} bytes are to follow, {len(source.data) - start} do")
    source.at = end
    return source.data[start:end]


def _string(source: Source) -> str:
    return _take(source, read_long(source)).decode()


def _bytes(source: Source) -> str:
    return _take(source, read_long(source)).decode("latin-1")


def _boolean(source: Source) -> bool:
    byte = source.data[source.at]
    source.at += 1
    if byte > 1:
        raise UnreadableValue(f"the byte {byte} is no boolean")
    return byte == 1


def _float(source: Source) -> float | str:
    (value,) = _FLOAT.unpack(_take(source, 4))
    return shown_float(value)


def _double(source: Source) -> float | str:
    (value,) = _DOUBLE.unpack(_take(source, 8))
    return shown_float(value)


def shown_float(value: float) -> float | str:
    """Return the number, or a text where JSON has no such number."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _null(source: Source) -> None:
    _count_empty(source)


_SIMPLE: dict[str, Read] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": read_long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(source: Source) -> str:
        index = _int(source)
        if not 0 <= index < len(symbols):
            raise UnreadableValue(f"an enum has no symbol {index}")
        return symbols[index]

    return read


def _fixed(size: int) -> Read:
    def read(source: Source) -> str:
        if not size:
            _count_empty(source)
        return _take(source, size).decode("latin-1")

    return read


def _block_count(source: Source) -> int:
    """Return the number of items of the next block; its size in bytes is not needed."""
    count = read_long(source)
    if count < 0:
        count = -count
        read_long(source)
    if count > len(source.data) - source.at + EMPTY_ITEMS_MAX:
        raise UnreadableValue(f"{count} items are to follow in {len(source.data)} bytes")
    return count


def _count_empty(source: Source) -> None:
    source.empty_items += 1
    if source.empty_items > EMPTY_ITEMS_MAX:
        raise UnreadableValue(f"it has more than {EMPTY_ITEMS_MAX} parts without bytes")


def _descend(source: Source) -> None:
    source.depth += 1
    if source.depth > DEPTH_MAX:
        raise UnreadableValue(f"it nests more than {DEPTH_MAX} times")
