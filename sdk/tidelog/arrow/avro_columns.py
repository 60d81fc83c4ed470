"""Avro values as Arrow columns: a field of all values at a time, by numpy.

Theory of operation. Every value has a cursor, its place in the bytes. A part of the schema is read
of all values at once: numbers of several bytes in as many rounds, the branches of a union with the
cursors of its values alone, the items of arrays in as many rounds as the longest has items. A value
that is damaged gets a mark, and its cursor moves no more: it cannot read another value's bytes,
because every step is within its own end. Values with longer arrays than ``ITEMS_MAX`` get it too,
and those that have more items when ``STEPS_MAX`` is used up: steps for few values cost too much.
Marked values are read again, one by one, by core's reader. So nothing is done in Python for all
others.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.avro_reading import reader_of
from tidelog_core.schemas.values.framing import UnreadableValue

from tidelog.arrow.avro_cost import cost_of_avro
from tidelog.arrow.column_budget import ColumnCounter
from tidelog.arrow.payloads import Payloads

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]
DEPTH_MAX = 32  # of a schema; one that contains itself has no columns
COLUMNS_MAX = 10_000  # of a schema: a short one may have records within each other in any number
ITEMS_MAX = 64  # of one array or map of a value that is read with the others
# Columns of items that are read of a run of values, beside one for each value: about 0.4 s.
STEPS_MAX = 20_000
GATHERED_BYTES_MAX = 1 << 20  # at a time: each takes 24 bytes more meanwhile
_VARINT_BYTES = 10
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


class Cursors:
    """The places in the bytes that reading has come to, one for each value."""

    def __init__(self, data: NDArray[np.uint8], starts: Longs, ends: Longs) -> None:
        """``data`` must not be empty."""
        self.data = data
        self.at = starts.copy()
        self.ends = ends
        self.is_bad: Flags = np.zeros(len(starts), np.bool_)
        self.steps_left = STEPS_MAX + len(starts)

    def bytes_at(self, rows: Longs) -> NDArray[np.int64]:
        """Return the next byte of these values, and pass it; damaged values have 0."""
        at = self.at[rows]
        is_over = at >= self.ends[rows]
        found = self.data[np.where(is_over, 0, at)].astype(np.int64)
        self._fail(rows, is_over)
        self.at[rows] = np.where(is_over, at, at + 1)
        return np.where(is_over, 0, found)

    def longs(self, rows: Longs) -> Longs:
        """Return the next numbers, zigzag varints of up to 64 bits."""
        found = self.bytes_at(rows)
        left = np.flatnonzero(found > 0x7F)
        found &= 0x7F
        for number in range(1, _VARINT_BYTES):
            if not len(left):
                break
            more = self.bytes_at(rows[left])
            if number == _VARINT_BYTES - 1:
                self._fail(rows[left], more > 1)
            found[left] |= (more & 0x7F) << (7 * number)
            left = left[more > 0x7F]
        # The shift to the right is one without a sign.
        return ((found >> 1) & np.int64(0x7FFF_FFFF_FFFF_FFFF)) ^ -(found & 1)

    def spans(self, rows: Longs, sizes: Longs) -> tuple[Longs, Longs]:
        """Pass so many bytes; return where they start, and how many they are."""
        at = self.at[rows]
        is_wrong = (sizes < 0) | (sizes > self.ends[rows] - at)
        self._fail(rows, is_wrong)
        sizes = np.where(is_wrong, 0, sizes)
        self.at[rows] = at + sizes
        return at, sizes

    def fail(self, rows: Longs, is_wrong: Flags) -> None:
        """Mark the values for which it is true."""
        self._fail(rows, is_wrong)

    def _fail(self, rows: Longs, is_wrong: Flags) -> None:
        if is_wrong.any():
            wrong = rows[is_wrong]
            self.is_bad[wrong] = True
            self.at[wrong] = self.ends[wrong]


Read = Callable[[Cursors, Longs], pa.Array]


class AvroColumns:
    """Reads values of one schema, which must be a record, as structs."""

    def __init__(self, of: AvroType) -> None:
        """Raises ``InvalidSchema`` if no columns can have the values."""
        if not of.is_record:
            raise InvalidSchema(f"columns need a record, the schema is {of.kind}")
        _column_count(of)
        self.type, self._read = _reader(of, 0)
        self.cost = cost_of_avro(of)
        self._counter = ColumnCounter(self.type)
        self._of = of
        self._read_one = reader_of(of)

    def bytes_of(self, payload: bytes) -> float:
        """Return what a value takes as columns; 0 for one that cannot be read."""
        try:
            value = _plain(self._of, self._read_one(payload))
        except UnreadableValue:
            return 0.0
        return self._counter.bytes_of(value, _content_size(value))

    def read(self, values: Payloads) -> tuple[pa.Array, dict[int, str]]:
        """Return the structs, and what is wrong with values; of those any struct is returned."""
        data = values.data if len(values.data) else np.zeros(1, np.uint8)
        cursors = Cursors(data, values.starts, values.ends)
        found = self._read(cursors, np.arange(len(values.starts)))
        marked = np.flatnonzero(cursors.is_bad | (cursors.at != cursors.ends)).tolist()
        if not marked:
            return found, {}
        problems: dict[int, str] = {}
        kept: list[Any] = []
        for row in marked:
            try:
                kept.append(_plain(self._of, self._read_one(values.payload(row))))
            except UnreadableValue as error:
                problems[row] = str(error)
                kept.append(None)
        places = np.arange(len(found))
        places[marked] = len(found) + np.arange(len(marked))
        others = pa.array(kept, self.type)
        return pa.concat_arrays([found, others]).take(numbers(places, pa.int64())), problems


def _column_count(of: AvroType) -> int:
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


def _reader(of: AvroType, depth: int) -> tuple[pa.DataType, Read]:
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
    readers = [(one.name, *_reader(one.type, depth + 1)) for one in of.fields]
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
    kind, read_other = _reader(others[0], depth + 1)

    def read(cursors: Cursors, rows: Longs) -> pa.Array:
        branches = cursors.longs(rows)
        cursors.fail(rows, (branches < 0) | (branches >= len(of.branches)))
        is_there = branches == index
        found = read_other(cursors, rows[is_there])
        if is_there.all():
            return found
        return _spread(found, is_there)

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
    decimal = _decimal(of)

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
    item_type, read_item = _reader(of.items, depth + 1)
    is_map = of.kind == "map"
    steps = _column_count(of.items) + is_map
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


def _plain(of: AvroType, value: Any) -> Any:  # noqa: PLR0911
    """Return a value of Avro's JSON as ``pa.array`` takes it."""
    if value is None:
        return None
    match of.kind:
        case "union":
            (branch,) = (one for one in of.branches if one.kind != "null")
            return _plain(branch, next(iter(value.values())))
        case "record" | "error":
            return {one.name: _plain(one.type, value[one.name]) for one in of.fields}
        case "array":
            assert of.items is not None
            return [_plain(of.items, one) for one in value]
        case "map":
            assert of.items is not None
            return [(name, _plain(of.items, one)) for name, one in value.items()]
        case "bytes" | "fixed":
            data = value.encode("latin-1")
            decimal = _decimal(of)
            return (
                data
                if decimal is None
                else _scaled(int.from_bytes(data, "big", signed=True), decimal)
            )
        case "float" | "double":
            return float(value)
    return value


def _content_size(value: Any) -> int:
    """Return the size of all texts and bytes in a value: an enum's are not its own."""
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            size += len(one)
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return size


def numbers(found: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return the numbers as a column. ``pa.array`` would load pandas, in a third of a second."""
    return pa.Array.from_buffers(
        kind, len(found), [None, pa.py_buffer(np.ascontiguousarray(found))]
    )


def gathered(data: NDArray[np.uint8], starts: Longs, sizes: Longs) -> pa.Array:
    """Return the spans of bytes as a binary column."""
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    content = np.empty(ends[-1], np.uint8)
    first = 0
    while first < len(starts):
        limit = ends[first] + GATHERED_BYTES_MAX
        end = max(int(np.searchsorted(ends, limit, side="right")) - 1, first + 1)
        begin, stop = ends[first], ends[end]
        if end == first + 1:
            content[begin:stop] = data[starts[first] : starts[first] + sizes[first]]
        else:
            shifts = np.repeat(starts[first:end] - ends[first:end], sizes[first:end])
            content[begin:stop] = data[np.arange(begin, stop) + shifts]
        first = end
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def _spread(found: pa.Array, is_there: Flags) -> pa.Array:
    """Return the values at the places where they are, and null at the others."""
    places = np.cumsum(is_there) - 1
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    indexes = pa.Array.from_buffers(
        pa.int64(), len(places), [validity, pa.py_buffer(places.astype(np.int64))]
    )
    return found.take(indexes)


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


def _decimal(of: AvroType) -> pa.DataType | None:
    """Return the Arrow type of a decimal, ``None`` for other bytes."""
    if of.properties.get("logicalType") != "decimal" or of.kind == "string":
        return None
    precision, scale = of.properties.get("precision"), of.properties.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return None
    if not (1 <= precision <= 76 and 0 <= scale <= precision):
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _decimals(values: list[int], kind: pa.DataType, cursors: Cursors, rows: Longs) -> pa.Array:
    limit = 10**kind.precision
    is_wrong = [abs(one) >= limit for one in values]
    cursors.fail(rows, np.array(is_wrong, np.bool_))
    scaled = [
        None if wrong else _scaled(value, kind)
        for value, wrong in zip(values, is_wrong, strict=True)
    ]
    return pa.array(scaled, kind)


def _scaled(value: int, kind: pa.DataType) -> Decimal:
    if abs(value) >= 10**kind.precision:
        raise UnreadableValue(f"a decimal has more than {kind.precision} digits")
    return Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -kind.scale))
