"""Protobuf messages as Arrow columns: a message's fields become those of a struct.

A field with presence is null if it is not set, others have their default. Enums become the names of
their values. Each message is parsed by itself, by Protobuf's own library; the columns are filled
field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from tidelog_core.schemas.model import Reference
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.framing import UnreadableValue, split_indexes
from tidelog_core.schemas.values.protobuf_messages import ProtobufMessages

from tidelog.arrow.values.payloads import Payloads
from tidelog.arrow.values.protobuf_cost import MessageCosts

DEPTH_MAX = 32
COLUMNS_MAX = 10_000  # of a message, with those within it, which may be there in any number
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}

Fill = Callable[[Sequence[Any]], pa.Array]
"""Makes a column of values, of which some may be None."""


class ProtobufColumns:
    """Reads messages of the first type of a file as structs."""

    def __init__(self, text: str, known: Sequence[tuple[Reference, str]]) -> None:
        """Raises ``InvalidSchema`` if no columns can have the messages."""
        self._messages = ProtobufMessages(text, known)
        try:
            descriptor = self._messages.class_at((0,)).DESCRIPTOR
        except UnreadableValue as error:
            raise InvalidSchema(str(error)) from None
        _require_few_columns(descriptor)
        self.type, self._fill = _message(descriptor, DEPTH_MAX)
        self._costs = MessageCosts()
        self._descriptor = descriptor
        self.cost = self._costs.cost(descriptor)

    def bytes_of(self, payload: bytes) -> float:
        """Return what a message takes as columns; 0 for one that cannot be read."""
        try:
            _, data = split_indexes(payload)
        except UnreadableValue:
            return 0.0
        return self._costs.bytes_of(self._descriptor, data)

    def read(self, values: Payloads) -> tuple[pa.Array, dict[int, str]]:
        """Return the structs, null for values that do not fit, and what is wrong with those."""
        found: list[Any] = []
        problems: dict[int, str] = {}
        for number in range(len(values.starts)):
            message = None
            try:
                indexes, data = split_indexes(values.payload(number))
                if indexes != (0,):
                    raise UnreadableValue(
                        f"it is another message: {self._messages.name_at(indexes)}"
                    )
                message = self._messages.parse(indexes, data)
            except UnreadableValue as error:
                problems[number] = str(error)
            found.append(message)
        return self._fill(found), problems


def _require_few_columns(descriptor: Any) -> None:
    """Raise ``InvalidSchema`` if there are too many, or if they nest too deeply."""
    counts: dict[str, int] = {}

    def count(of: Any, depth: int) -> int:
        if depth == 0:
            raise InvalidSchema("it contains itself, or nests too deeply for columns")
        known = counts.get(of.full_name)
        if known is None:
            inner = [one.message_type for one in of.fields if one.message_type is not None]
            below = depth if of.GetOptions().map_entry else depth - 1
            known = len(of.fields) + sum(count(one, below) for one in inner)
            if known > COLUMNS_MAX:
                raise InvalidSchema(f"it has more than {COLUMNS_MAX} columns")
            counts[of.full_name] = known
        return known

    count(descriptor, DEPTH_MAX)


def _message(descriptor: Any, depth: int) -> tuple[pa.DataType, Fill]:
    if depth == 0:
        raise InvalidSchema("it contains itself, or nests too deeply for columns")
    readers = [(one, *_field(one, depth - 1)) for one in descriptor.fields]
    fields = [pa.field(one.name, kind) for one, kind, _ in readers]

    def fill(found: Sequence[Any]) -> pa.Array:
        columns = [fill_field(_values(found, one)) for one, _, fill_field in readers]
        mask = pa.array([one is None for one in found], pa.bool_())
        if not columns:
            return pa.array([None if one is None else {} for one in found], pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)

    return pa.struct(fields), fill


def _values(found: Sequence[Any], field: Any) -> list[Any]:
    name = field.name
    if field.has_presence:
        return [
            getattr(one, name) if one is not None and one.HasField(name) else None for one in found
        ]
    return [None if one is None else getattr(one, name) for one in found]


def _field(field: Any, depth: int) -> tuple[pa.DataType, Fill]:
    of = field.message_type
    if of is not None and of.GetOptions().map_entry:
        key_kind, fill_keys = _single(of.fields_by_name["key"], depth)
        kind, fill_values = _single(of.fields_by_name["value"], depth)

        def fill_map(found: Sequence[Any]) -> pa.Array:
            keys = [key for one in found if one is not None for key in one]
            values = [one[key] for one in found if one is not None for key in one]
            return pa.MapArray.from_arrays(_ends(found), fill_keys(keys), fill_values(values))

        return pa.map_(key_kind, kind), fill_map
    kind, fill_one = _single(field, depth)
    if not field.is_repeated:
        return kind, fill_one

    def fill_list(found: Sequence[Any]) -> pa.Array:
        values = [value for one in found if one is not None for value in one]
        return pa.ListArray.from_arrays(_ends(found), fill_one(values))

    return pa.list_(kind), fill_list


def _single(field: Any, depth: int) -> tuple[pa.DataType, Fill]:
    if field.message_type is not None:
        return _message(field.message_type, depth)
    if field.enum_type is not None:
        names = {one.number: one.name for one in reversed(field.enum_type.values)}

        def fill_enum(found: Sequence[Any]) -> pa.Array:
            texts = [None if one is None else names.get(one, str(one)) for one in found]
            return pa.array(texts, pa.string())

        return pa.string(), fill_enum
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        kind = pa.binary() if is_bytes else pa.string()
    else:
        kind = _SCALARS[field.cpp_type]
    return kind, lambda found: pa.array(found, kind)


def _ends(found: Sequence[Any]) -> pa.Array:
    ends = [0]
    for one in found:
        ends.append(ends[-1] + (0 if one is None else len(one)))
    return pa.array(ends, pa.int32())
