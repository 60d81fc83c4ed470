"""The frame around values of a registry's serializers. No I/O.

Layout: a byte 0, the schema's id as an int32, big-endian, then the payload. Or a byte 1, the
schema's guid in 16 bytes, then the payload. Before a payload of Protobuf comes the message's place
in its file: the number of indexes and the indexes, each as a zigzag varint; a single 0 means
the first message.

All that comes before the payload may be in a header of the record instead, ``__key_schema_id`` or
``__value_schema_id``. The key or the value is the payload alone then. Source: Confluent's wire
format, ``SchemaId`` and ``DualSchemaIdDeserializer`` of its serializers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog_core.schemas.model import SchemaType

MAGIC, GUID_MAGIC = 0, 1
HEAD = struct.Struct(">bi")
GUID_HEAD_SIZE = 17
KEY_HEADER, VALUE_HEADER = "__key_schema_id", "__value_schema_id"
INDEXES_MAX = 64  # of a message's place, that is, how deep it is nested
VARINT_BYTES_MAX = 5
# The longest header: a guid, and the place of the most deeply nested message.
HEADER_BYTES_MAX = GUID_HEAD_SIZE + (1 + INDEXES_MAX) * VARINT_BYTES_MAX


class UnreadableValue(ValueError):
    """The bytes, or the JSON text, do not fit the schema. The message says why."""


class SchemaFrame(NamedTuple):
    """A key or a value that names its schema."""

    schema: int | str  # its id, or its guid
    head: bytes | None  # what follows that in the header; None: there is no header
    rest: bytes | memoryview

    def payload(self, schema_type: str) -> bytes:
        """Return the payload, for a ``SchemaType.PROTOBUF`` with the place of its message.

        Raises ``UnreadableValue``.
        """
        if self.head is None:
            return bytes(self.rest)
        if schema_type == SchemaType.PROTOBUF:
            _, left = split_indexes(self.head)
        else:
            left = self.head
        if left:
            raise UnreadableValue(f"its header has {len(left)} bytes after the schema's id")
        return self.head + self.rest


def schema_header(headers: Iterable[tuple[str, bytes | None]], name: str) -> bytes | None:
    """Return the last header of a name, ``None`` if there is none."""
    found = None
    for key, value in headers:
        if key == name:
            found = value
    return found


def split_named(data: bytes | memoryview, header: bytes | None) -> SchemaFrame:
    """Return the schema that the header names, else the value. Raises ``UnreadableValue``."""
    if header is not None and len(header) > HEADER_BYTES_MAX:
        raise UnreadableValue(f"{len(header)} bytes are too many, allowed are {HEADER_BYTES_MAX}")
    named = data if header is None else header
    if len(named) and named[0] == GUID_MAGIC:
        if len(named) < GUID_HEAD_SIZE:
            raise UnreadableValue(f"{len(named)} bytes have no room for a schema's guid")
        schema: int | str = str(UUID(bytes=bytes(named[1:GUID_HEAD_SIZE])))
        rest = named[GUID_HEAD_SIZE:]
    else:
        schema, rest = split_frame(named)
    if header is None:
        return SchemaFrame(schema, None, rest)
    return SchemaFrame(schema, bytes(rest), data)


def split_frame(data: bytes | memoryview) -> tuple[int, bytes | memoryview]:
    """Return the schema's id and the payload. Raises ``UnreadableValue``."""
    if len(data) < HEAD.size:
        raise UnreadableValue(f"{len(data)} bytes have no room for a schema's id")
    magic, schema_id = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise UnreadableValue(f"it begins with the byte {data[0]}, not with {MAGIC}")
    if schema_id < 0:
        raise UnreadableValue(f"{schema_id} is no id of a schema")
    return schema_id, data[HEAD.size :]


def framed(schema_id: int, payload: bytes) -> bytes:
    """Return the payload in its frame."""
    return HEAD.pack(MAGIC, schema_id) + payload


def split_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the place of a Protobuf message in its file, and the message.

    Raises ``UnreadableValue``.
    """
    count, at = _varint(payload, 0)
    if count == 0:
        return (0,), payload[at:]
    if not 0 < count <= INDEXES_MAX:
        raise UnreadableValue(f"its message is said to be nested {count} deep")
    indexes = []
    for _ in range(count):
        index, at = _varint(payload, at)
        indexes.append(index)
    return tuple(indexes), payload[at:]


def joined_indexes(indexes: Sequence[int]) -> bytes:
    """Return the place of a Protobuf message as it is written before the message."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(zigzag_varint(number) for number in (len(indexes), *indexes))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(VARINT_BYTES_MAX):
        if at + number >= len(data):
            break
        byte = data[at + number]
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + number + 1
    raise UnreadableValue("the place of its message is cut off")


def zigzag_varint(number: int) -> bytes:
    """Return a signed number of 64 bits as Protobuf and Avro write it."""
    rest, parts = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)
