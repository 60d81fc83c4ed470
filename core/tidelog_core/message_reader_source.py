"""Generates the source of a message's reader: one function, from the message's schema class.

kio's classes declare how a message is encoded: field order, Kafka types, nullable and tagged
fields. One function decodes all of it, nested structs included, so decoding costs little more
than creating the objects:

    def read(data, p, left):
        size = len(data)
        o1 = new(class2)             # the object, perhaps of a newer version's class
        v5, v6 = unpack7(data, p)    # a run of fixed-size fields, and the length of the next field
        p += 5
        set4(o1, v5)
        ...
        return o1, p, left

With ``has_views`` the data is a memoryview, and so are the fields of records: none is copied.

``p`` is the position, ``left`` the number of array elements that may still follow. Lengths are
not trusted: an array is decoded only if the remaining bytes could hold all its elements. The
function's errors do not name the field. Each line decodes one field, and ``fields`` maps lines
to fields.

Source: the Kafka protocol guide, primitive types; KIP-482 (compact types, tagged fields), KIP-893
(nullable structs); Kafka's MessageDataGenerator for refused values.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from types import UnionType
from typing import Any, NamedTuple

from tidelog_core.wire_messages import defaults_of

STRING_SIZE_BYTES_MAX = 0x7FFF  # Kafka's, for compact strings too

_AS_IT_IS = "{}"
# The struct code of a field of fixed size, and the expression of its value.
_FIXED: dict[str, tuple[str, str]] = {
    "bool": ("?", _AS_IT_IS),
    "int8": ("b", _AS_IT_IS),
    "int16": ("h", _AS_IT_IS),
    "uint16": ("H", _AS_IT_IS),
    "int32": ("i", _AS_IT_IS),
    "int64": ("q", _AS_IT_IS),
    "float64": ("d", _AS_IT_IS),
    "error_code": ("h", "error_codes.get({}, unknown_server_error)"),
    "timedelta_i32": ("i", "timedelta(milliseconds={})"),
    "timedelta_i64": ("q", "timedelta(milliseconds={})"),
    "datetime_i64": ("q", "time_of({})"),
    "uuid": ("16s", "None if {0} == no_uuid else UUID(bytes={0})"),
}
_LENGTH_CODES = {"string": "h", "bytes": "i", "records": "i"}
_NULLABLE_TIME = "None if {0} == -1 else time_of({0})"


class ReaderSource(NamedTuple):
    """A function's source, the names that it uses, and the field that each line is for."""

    text: str
    names: dict[str, object]
    fields: tuple[str, ...]


class _Shape(NamedTuple):
    """The encoding of a field."""

    kind: str  # a Kafka type, or "struct"
    struct: Any  # the class of a struct
    is_array: bool
    is_nullable: bool


def source_of(schema: type[Any], target: type[Any], *, has_views: bool = False) -> ReaderSource:
    """Return the source of a function that decodes ``schema`` and creates a ``target``.

    ``target`` is another version of the same message, or the schema itself. Fields that it
    lacks are skipped; fields that only it has get their defaults.
    """
    source = _Source(has_views=has_views)
    source.emit("def read(data, p, left):")
    with source.indented(), source.field(schema.__name__):
        source.emit("size = len(data)")
        made = _read_struct(source, schema, target)
        source.flush()
        source.emit(f"return {made}, p, left")
    return ReaderSource("\n".join(source.lines), source.names, tuple(source.fields))


class _Source:
    """The lines of the source. Fields of fixed size are gathered until a line needs ``p``."""

    def __init__(self, *, has_views: bool) -> None:
        self.has_views = has_views
        self.lines: list[str] = []
        self.fields: list[str] = []
        self.names: dict[str, object] = {}
        self._depth = 0
        self._path: list[str] = []
        self._variable_count = 0
        self._codes = ""  # of the gathered fields
        self._gathered: list[str] = []  # their variables
        self._gathered_from = ""
        self._waiting: list[tuple[str, str]] = []  # lines behind them, with the field

    def emit(self, line: str) -> None:
        """Add a line; it may use the gathered fields, but not ``p``."""
        if self._codes:
            self._waiting.append((line, ".".join(self._path)))
        else:
            self._put(line, ".".join(self._path))

    def gather(self, code: str) -> str:
        """Return the variable that gets the next field of fixed size."""
        if not self._codes:
            self._gathered_from = ".".join(self._path)
        variable = self.variable("v")
        self._codes += code
        self._gathered.append(variable)
        return variable

    def flush(self) -> None:
        """Emit the reading of the gathered fields: later lines may then use ``p``."""
        if not self._codes:
            return
        unpack = struct.Struct(">" + self._codes)
        variables = ", ".join(self._gathered)
        if self._codes == "B":
            self._put(f"{variables} = data[p]", self._gathered_from)
        else:
            name = self.name("unpack", unpack.unpack_from)
            self._put(f"{variables}, = {name}(data, p)", self._gathered_from)
        self._put(f"p += {unpack.size}", self._gathered_from)
        for line, field in self._waiting:
            self._put(line, field)
        self._codes, self._gathered, self._waiting = "", [], []

    def variable(self, prefix: str) -> str:
        """Return a name that nothing has."""
        self._variable_count += 1
        return f"{prefix}{self._variable_count}"

    def name(self, prefix: str, value: object) -> str:
        """Return a name for a value that the function uses."""
        name = self.variable(prefix)
        self.names[name] = value
        return name

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Put lines one level deeper; fields gathered there are read there."""
        self.flush()
        self._depth += 1
        yield
        self.flush()
        self._depth -= 1

    @contextmanager
    def field(self, name: str) -> Iterator[None]:
        """Make lines belong to a field."""
        self._path.append(name)
        yield
        self._path.pop()

    def _put(self, line: str, field: str) -> None:
        self.lines.append(" " * self._depth + line)
        self.fields.append(field)


def _read_struct(source: _Source, schema: type[Any], target: type[Any]) -> str:
    """Emit the reading of a struct; return the variable that holds a ``target`` then."""
    made = source.variable("o")
    source.emit(f"{made} = new({source.name('class', target)})")
    hints = typing.get_type_hints(target)
    fields = dataclasses.fields(schema)
    tagged = {each.metadata["tag"]: each for each in fields if "tag" in each.metadata}
    read = {each.name for each in fields} - {each.name for each in tagged.values()}
    for name, default in defaults_of(target).items():
        if name not in read:
            _set(source, made, target, name, source.name("default", default))
    for each in fields:
        if each.name in read:
            with source.field(each.name):
                hint = hints.get(each.name)
                value = _read_field(source, each, hint, is_flexible=schema.__flexible__)
                if each.name in hints:
                    _set(source, made, target, each.name, value)
    if schema.__flexible__:
        _read_tagged(source, tagged, made, target, hints)
    return made


def _set(source: _Source, made: str, target: type[Any], name: str, value: str) -> None:
    # By its slot: the class is frozen, and its own __init__ costs twice as much.
    source.emit(f"{source.name('set', getattr(target, name).__set__)}({made}, {value})")


def _read_field(source: _Source, field: Any, hint: Any, *, is_flexible: bool) -> str:
    """Emit the reading of a field; return an expression of its value.

    ``hint`` is the type of the target's field, if it has one.
    """
    shape = _shape_of(field.type, field.metadata.get("kafka_type", ""))
    target = _shape_of(hint, "").struct or shape.struct
    if shape.is_array:
        return _read_array(source, shape, target, is_flexible=is_flexible)
    if shape.struct is not None and shape.is_nullable:
        assert "tag" not in field.metadata, "tagged, a null would be another byte"
        return _read_nullable_struct(source, shape.struct, target)
    return _read_element(source, shape, target, is_flexible=is_flexible)


def _read_element(source: _Source, shape: _Shape, target: Any, *, is_flexible: bool) -> str:
    if shape.struct is not None:
        return _read_struct(source, shape.struct, target)
    if shape.kind in _LENGTH_CODES:
        return _read_bytes(source, shape, is_flexible=is_flexible)
    code, expression = _FIXED[shape.kind]
    if shape.kind == "datetime_i64" and shape.is_nullable:
        expression = _NULLABLE_TIME
    return expression.format(source.gather(code))


def _read_bytes(source: _Source, shape: _Shape, *, is_flexible: bool) -> str:
    value = source.variable("v")
    length = _read_length(source, _LENGTH_CODES[shape.kind], is_flexible=is_flexible)
    with _unless_null(source, shape, value, length):
        if shape.kind == "string" and is_flexible:
            limit = STRING_SIZE_BYTES_MAX
            source.emit(f"if {length} > {limit}: raise too_long({length}, {limit})")
        source.emit(f"e = p + {length}")
        source.emit(f"if e > size: raise too_long({length}, size - p)")
        source.emit(f"{value} = {_content(source, shape.kind)}")
        source.emit("p = e")
    return value


def _content(source: _Source, kind: str) -> str:
    """Return the expression of the bytes from ``p`` to ``e`` as a field has them."""
    if source.has_views and kind != "records":
        return "str(data[p:e], 'utf-8')" if kind == "string" else "bytes(data[p:e])"
    return "data[p:e].decode()" if kind == "string" else "data[p:e]"


def _read_array(source: _Source, shape: _Shape, target: Any, *, is_flexible: bool) -> str:
    value = source.variable("v")
    element = shape._replace(is_array=False, is_nullable=False)
    length = _read_length(source, "i", is_flexible=is_flexible)
    with _unless_null(source, shape, value, length):
        size_min = _size_bytes_min(element, is_flexible=is_flexible)
        assert size_min > 0, "nothing would bound the array"
        source.emit(f"if {length} * {size_min} > size - p: raise too_many({length}, size - p)")
        _spend(source, length)
        code, expression = _FIXED.get(element.kind, ("", ""))
        if expression == _AS_IT_IS:
            source.emit(f"{value} = numbers(data, p, {length}, '{code}')")
            source.emit(f"p += {length} * {size_min}")
        else:
            items = source.variable("items")
            source.emit(f"{items} = []")
            source.emit(f"for _ in range({length}):")
            with source.indented():
                made = _read_element(source, element, target, is_flexible=is_flexible)
                source.emit(f"{items}.append({made})")
            source.emit(f"{value} = tuple({items})")
    return value


def _read_nullable_struct(source: _Source, schema: Any, target: Any) -> str:
    value = source.variable("v")
    marker = source.gather("b")
    source.emit(f"if {marker} < 0:")
    with source.indented():
        source.emit(f"{value} = None")
    source.emit("else:")
    with source.indented():
        source.emit(f"{value} = {_read_struct(source, schema, target)}")
    return value


def _read_tagged(
    source: _Source, tagged: dict[int, Any], made: str, target: type[Any], hints: dict[str, Any]
) -> None:
    """Emit the reading of the known tagged fields, and the skipping of unknown ones."""
    count, tag, end = source.gather("B"), source.variable("tag"), source.variable("end")
    source.emit(f"if {count}:")
    with source.indented():
        source.emit(f"if {count} > 127: {count}, p = varint(data, p - 1)")
        source.emit(f"if {count} * 2 > size - p: raise too_many({count}, size - p)")
        _spend(source, count)
        source.emit(f"for _ in range({count}):")
        with source.indented():
            source.emit(f"{tag}, p = varint(data, p)")
            source.emit(f"{end}, p = varint(data, p)")
            source.emit(f"if {end} > size - p: raise too_long({end}, size - p)")
            source.emit(f"{end} += p")
            for number, each in tagged.items():
                source.emit(f"if {tag} == {number}:")
                with source.indented(), source.field(each.name):
                    value = _read_field(source, each, hints.get(each.name), is_flexible=True)
                    if each.name in hints:
                        _set(source, made, target, each.name, value)
                    source.flush()
                    source.emit(f"if p != {end}: raise Fault('has another size than its tag says')")
            source.emit(f"p = {end}")


def _spend(source: _Source, count: str) -> None:
    source.emit(f"left -= {count}")
    source.emit("if left < 0: raise OutOfBudget")


def _read_length(source: _Source, code: str, *, is_flexible: bool) -> str:
    """Emit the reading of a length; return its variable, below zero for null."""
    if not is_flexible:
        length = source.gather(code)
        source.flush()
        return length
    length = source.gather("B")
    source.flush()
    source.emit(f"if {length} > 127: {length}, p = varint(data, p - 1)")
    source.emit(f"{length} -= 1")
    return length


@contextmanager
def _unless_null(source: _Source, shape: _Shape, value: str, length: str) -> Iterator[None]:
    if not shape.is_nullable:
        source.emit(f"if {length} < 0: raise Fault('is null')")
        yield
        return
    source.emit(f"if {length} < 0:")
    with source.indented():
        source.emit(f"{value} = None")
    source.emit("else:")
    with source.indented():
        yield


def _shape_of(hint: Any, kind: str) -> _Shape:
    is_nullable = is_array = False
    if typing.get_origin(hint) in (typing.Union, UnionType):
        is_nullable = True
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        is_array, hint = True, typing.get_args(hint)[0]
    return _Shape(kind, hint if dataclasses.is_dataclass(hint) else None, is_array, is_nullable)


def _size_bytes_min(shape: _Shape, *, is_flexible: bool) -> int:
    """Return the least bytes that a value takes, elements of arrays apart."""
    if shape.is_array or shape.kind in _LENGTH_CODES:
        code = "B" if is_flexible else _LENGTH_CODES.get("" if shape.is_array else shape.kind, "i")
        return struct.calcsize(code)
    if shape.struct is None:
        return struct.calcsize(_FIXED[shape.kind][0])
    if shape.is_nullable:
        return 1
    fields = [
        _shape_of(field.type, field.metadata.get("kafka_type", ""))
        for field in dataclasses.fields(shape.struct)
        if "tag" not in field.metadata
    ]
    flexible = bool(shape.struct.__flexible__)
    return flexible + sum(_size_bytes_min(field, is_flexible=flexible) for field in fields)
