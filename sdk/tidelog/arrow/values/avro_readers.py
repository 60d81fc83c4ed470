"""Readers of one part of an Avro schema, of many values at once, as an Arrow column.

A part of the schema is read of all values at once: numbers of several bytes in as many rounds, the
branches of a union with the cursors of its values alone, the items of arrays in as many rounds as
the longest has items. Values with longer arrays than ``ITEMS_MAX`` are marked as damaged, and
those that have more items when ``STEPS_MAX`` is used up: steps for few values cost too much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.parsed_schema import InvalidSchema

from tidelog.arrow.values.arrays import Longs, gathered, numbers, spread
from tidelog.arrow.values.avro_cursors import Cursors, Flags
from tidelog.arrow.values.avro_plain_values import decimal_type, scaled_decimal

DEPTH_MAX = 32  # of a schema; one that contains itself has no columns
COLUMNS_MAX = 10_000  # of a schema: a short one may have records within each other in any number
ITEMS_MAX = 64  # of one array or map of a value that is read with the others
_NUMBERS = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}

Read = Callable[[Cursors, Longs], pa.Array]


def column_count(of: AvroType) -> int:
    """Return how many columns the type has, with those within it.

    Raises ``InvalidSchema`` if there are too many, or if they nest too deeply.
    """
    counts: dict[int, int] = {}

    def count(one: AvroType, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise InvalidSchema("it contains itself, or nests too deeply for columns")
        known = counts.get(id(one))
        if known is None:
            items = () if one.items is None else (one.items,)
            inner = (*(field.type for field in one.fields), *one.branches, *items)
            known = counts[id(one)] = 1 + sum(count(other, depth + 1) for other in inner)
            if known > COLUMNS_MAX:
                raise InvalidSchema(f"it has more than {COLUMNS_MAX} columns")
        return known

    return count(of, 0)


def column_reader(of: AvroType, depth: int = 0) -> tuple[pa.DataType, Read]:
    """Return a type's Arrow type, and what reads it. Raises ``InvalidSchema``."""
    if depth > DEPTH_MAX:
        raise InvalidSchema("it contains itself, or nests too deeply for columns")
    makers: dict[str, Callable[[AvroType, int], tuple[pa.DataType, Read]]] = {
        "int": _number,
        "long": _number,
        "float": _float,
        "double": _float,
        "boolean": _boolean,
        "null": _null,
        "string": _bytes,
        "bytes": _bytes,
        "fixed": _bytes,
        "enum": _enum,
        "union": _union,
        "array": _list,
        "map": _list,
    }
    return makers.get(of.kind, _record)(of, depth)


def _record(of: AvroType, depth: int) -> tuple[pa.DataType, Read]:
    readers = [(one.name, *column_reader(one.type, depth + 1)) for one in of.fields]
    fields = [pa.field(name, kind) for name, kind, _ in readers]

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        columns = [read_field(cursors, rows) for _, _, read_field in readers]
        if not columns:
            return pa.array([{}] * len(rows), pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=fields)

    return pa.struct(fields), read


def _union(of: AvroType, depth: int) -> tuple[pa.DataType, Read]:
    others = [one for one in of.branches if one.kind != "null"]
    if len(others) > 1 or not others:
        names = ", ".join(one.full_name or one.kind for one in of.branches)
        raise InvalidSchema(f"a column has values of one type and null, not of {names[:200]}")
    index = of.branches.index(others[0])
    kind, read_other = column_reader(others[0], depth + 1)

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        branches = cursors.longs(rows)
        cursors.fail(rows, (branches < 0) | (branches >= len(of.branches)))
        is_there = branches == index
        found = read_other(cursors, rows[is_there])
        if is_there.all():
            return found
        return spread(found, is_there)

    return kind, read


def _number(of: AvroType, _: int) -> tuple[pa.DataType, Read]:
    kind = _LOGICAL.get((of.kind, str(of.properties.get("logicalType"))), _NUMBERS[of.kind])
    is_int = of.kind == "int"

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        found = cursors.longs(rows)
        if not is_int:
            return numbers(found, kind)
        small = found.astype(np.int32)
        cursors.fail(rows, small != found)
        return numbers(small, kind)

    return kind, read


def _float(of: AvroType, _: int) -> tuple[pa.DataType, Read]:
    kind = _NUMBERS[of.kind]
    size = 4 if of.kind == "float" else 8
    dtype = np.dtype("<f4" if size == 4 else "<f8")

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        starts, sizes = cursors.spans(rows, np.full(len(rows), size, np.int64))
        places = np.where(sizes == size, starts, 0)[:, None] + np.arange(size)
        raw = cursors.data[np.minimum(places, len(cursors.data) - 1)]
        return numbers(np.ascontiguousarray(raw).view(dtype).reshape(-1), kind)

    return kind, read


def _boolean(_: AvroType, __: int) -> tuple[pa.DataType, Read]:
    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        found = cursors.bytes_at(rows)
        cursors.fail(rows, found > 1)
        bits = np.packbits(found == 1, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(rows), [None, pa.py_buffer(bits)])

    return pa.bool_(), read


def _null(_: AvroType, __: int) -> tuple[pa.DataType, Read]:
    return pa.null(), lambda _, rows: pa.nulls(len(rows))


def _bytes(of: AvroType, _: int) -> tuple[pa.DataType, Read]:
    is_text = of.kind == "string"
    decimal = decimal_type(of)

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        is_fixed = of.kind == "fixed"
        sizes = np.full(len(rows), of.size, np.int64) if is_fixed else cursors.longs(rows)
        starts, sizes = cursors.spans(rows, sizes)
        found = gathered(cursors.data, starts, sizes)
        if is_text:
            return _checked_text(found, cursors, rows)
        if decimal is None:
            return found
        values = [int.from_bytes(one, "big", signed=True) for one in found.to_pylist()]
        return _decimals(values, decimal, cursors, rows)

    return decimal or (pa.string() if is_text else pa.binary()), read


def _enum(of: AvroType, _: int) -> tuple[pa.DataType, Read]:
    symbols = pa.array(of.symbols, pa.string())

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        found = cursors.longs(rows)
        is_wrong = (found < 0) | (found >= len(of.symbols))
        cursors.fail(rows, is_wrong)
        if not len(of.symbols):
            return pa.nulls(len(rows), pa.string())
        return symbols.take(numbers(np.where(is_wrong, 0, found), pa.int64()))

    return pa.string(), read


def _list(of: AvroType, depth: int) -> tuple[pa.DataType, Read]:
    """Return what reads arrays, and maps: their items have a name before them."""
    assert of.items is not None
    item_type, read_item = column_reader(of.items, depth + 1)
    is_map = of.kind == "map"
    steps = column_count(of.items) + is_map
    _, read_name = _bytes(AvroType("string"), 0)
    kind = pa.map_(pa.string(), item_type) if is_map else pa.list_(item_type)

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        count = len(rows)
        totals, owners = np.zeros(count, np.int64), list[Longs]()
        names, items = list[pa.Array](), list[pa.Array]()
        left = np.zeros(count, np.int64)  # items of the current block
        active = np.arange(count)
        while len(active):
            begun = active[left[active] == 0]
            if len(begun):
                active = active[~_begin_blocks(cursors, rows, begun, left, active)]
                if not len(active):
                    break
            if is_map:
                names.append(read_name(cursors, rows[active]))
            items.append(read_item(cursors, rows[active]))
            owners.append(active)
            totals[active] += 1
            left[active] -= 1
            cursors.fail(rows[active], totals[active] > ITEMS_MAX)
            cursors.steps_left -= steps
            if cursors.steps_left < 0:
                cursors.fail(rows[active], np.ones(len(active), np.bool_))
            active = active[~cursors.is_bad[rows[active]]]
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *owners]), kind="stable")
        places = numbers(order, pa.int64())
        values = pa.concat_arrays([pa.array([], item_type), *items]).take(places)
        ends = np.zeros(count + 1, np.int32)
        np.cumsum(totals, out=ends[1:])
        offsets = numbers(ends, pa.int32())
        if not is_map:
            return pa.ListArray.from_arrays(offsets, values)
        keys = pa.concat_arrays([pa.array([], pa.string()), *names]).take(places)
        return pa.MapArray.from_arrays(offsets, keys, values)

    return kind, read


def _begin_blocks(cursors: Cursors, rows: Longs, begun: Longs, left: Longs, active: Longs) -> Flags:
    """Read the counts of the next blocks; return which of ``active`` have come to their end."""
    counts = cursors.longs(rows[begun])
    is_sized = counts < 0  # The block's size in bytes follows.
    if is_sized.any():
        cursors.longs(rows[begun[is_sized]])
        counts = np.abs(counts)
    cursors.fail(rows[begun], (counts < 0) | (counts > ITEMS_MAX))
    left[begun] = np.where(cursors.is_bad[rows[begun]], 0, counts)
    has_ended: Flags = left[active] == 0
    return has_ended


def _checked_text(found: pa.Array, cursors: Cursors, rows: Longs) -> pa.Array:
    """Return bytes as strings; those that are not UTF-8 are damaged."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_text(one) for one in found.to_pylist()]
        cursors.fail(rows, np.array([one is None for one in texts]))
        # Of damaged ones not null, which a map's names may not be.
        return pa.array([one or "" for one in texts], pa.string())


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _decimals(values: list[int], kind: pa.DataType, cursors: Cursors, rows: Longs) -> pa.Array:
    limit = 10**kind.precision
    is_wrong = [abs(one) >= limit for one in values]
    cursors.fail(rows, np.array(is_wrong, np.bool_))
    scaled = [
        None if wrong else scaled_decimal(value, kind)
        for value, wrong in zip(values, is_wrong, strict=True)
    ]
    return pa.array(scaled, kind)
