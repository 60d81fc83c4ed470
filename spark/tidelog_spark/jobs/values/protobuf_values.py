"""Decodes Protobuf values by a descriptor set: the fields of a message become columns.

The set is written by ``protoc --include_imports --descriptor_set_out=FILE``. A field with
presence is null if it is not set; other fields have their default. Enums become the names
of their values, unknown numbers become text. Of a ``oneof``, only the field that is set
is not null. ``google.protobuf.Timestamp`` becomes a timestamp, and the wrapper types
become their content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from tidelog_core.errors import InvalidConfig

from tidelog_spark.jobs.values.value_decoder import (
    Decoded,
    UnreadableValue,
    decode_each,
    require_columns,
    unframed,
)

DEPTH_MAX = 32  # of nested messages; a message may contain itself
_VARINT_SIZE_MAX = 5
_INDEXES_MAX = 64  # of a message's path in its file, that is, its nesting

_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),  # tables have no unsigned numbers
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_TIMESTAMP = "google.protobuf.Timestamp"

Reader = Callable[[Any], object]


class ProtobufValues:
    """Reads messages of one type."""

    def __init__(self, descriptor_set: bytes, message: str, *, is_framed: bool) -> None:
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
            for file in files.file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(message)
        except (DecodeError, KeyError, TypeError) as error:
            raise InvalidConfig(
                [f"the descriptor set has no message {message!r}: {error}"]
            ) from None
        self._class = message_factory.GetMessageClass(descriptor)
        struct, self._read_message = message_reader(descriptor, message)
        self._struct = struct
        self.fields = tuple(struct)
        require_columns(self.fields)
        self._is_framed = is_framed

    def decode(self, values: pa.Array) -> Decoded:
        """Return the messages' fields as columns."""
        errors = (DecodeError, UnreadableValue)
        return decode_each(values, self._read, self._struct, errors)

    def _read(self, value: bytes) -> Mapping[str, object]:
        content = _without_indexes(unframed(value)) if self._is_framed else value
        found = self._read_message(self._class.FromString(content))
        assert isinstance(found, dict)
        return found


def _without_indexes(content: bytes) -> bytes:
    """Return the bytes after the message's path in its file, in Confluent's wire format."""
    count, at = _varint(content, 0)
    if count > _INDEXES_MAX:
        raise UnreadableValue(f"its message is said to be nested {count} deep")
    for _ in range(count):
        _, at = _varint(content, at)
    return content[at:]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(_VARINT_SIZE_MAX):
        if at + number >= len(content):
            break
        byte = content[at + number]
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + number + 1
    raise UnreadableValue("the place of its message is cut off")


def message_reader(descriptor: Descriptor, where: str) -> tuple[pa.StructType, Reader]:
    """Return a message's struct type, and a function that reads it into a dictionary.

    Raises ``InvalidConfig``.
    """
    return _message(descriptor, where, DEPTH_MAX)


def _message(descriptor: Descriptor, where: str, depth: int) -> tuple[pa.StructType, Reader]:
    """Return a message's struct type, and a function that reads it into a dictionary."""
    if depth == 0:
        raise InvalidConfig([f"the message {where} is nested too deep, or in itself"])
    columns, readers = [], []
    for field in descriptor.fields:
        arrow, read = _field(field, f"{where}.{field.name}", depth - 1)
        columns.append(pa.field(field.name, arrow))
        readers.append((field.name, read, field.has_presence))

    def read_message(message: Message) -> object:
        return {
            name: None
            if has_presence and not message.HasField(name)
            else read(getattr(message, name))
            for name, read, has_presence in readers
        }

    return pa.struct(columns), read_message


def _field(field: FieldDescriptor, where: str, depth: int) -> tuple[pa.DataType, Reader]:
    of = field.message_type
    if of is not None and of.GetOptions().map_entry:
        key_type, read_key = _single(of.fields_by_name["key"], where, depth)
        value_type, read_value = _single(of.fields_by_name["value"], where, depth)
        return pa.map_(key_type, value_type), lambda entries: [
            (read_key(key), read_value(entries[key])) for key in entries
        ]
    arrow, read = _single(field, where, depth)
    if field.is_repeated:
        return pa.list_(arrow), lambda values: [read(value) for value in values]
    return arrow, read


def _single(field: FieldDescriptor, where: str, depth: int) -> tuple[pa.DataType, Reader]:
    if field.message_type is not None:
        return _known_message(field.message_type, where, depth)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return pa.string(), lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string(), _same
    return _SCALARS[field.cpp_type], _same


def _known_message(of: Descriptor, where: str, depth: int) -> tuple[pa.DataType, Reader]:
    if of.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC"), lambda value: value.ToMicroseconds()
    if of.full_name in _WRAPPERS:
        arrow, read = _single(of.fields_by_name["value"], where, depth)
        return arrow, lambda wrapper: read(wrapper.value)
    return _message(of, where, depth)


def _same(value: object) -> object:
    return value
