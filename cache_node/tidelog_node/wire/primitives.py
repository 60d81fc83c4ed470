"""The Kafka protocol's primitive types, for the codecs that are written by hand.

Readers take a buffer and a position and return the value and the next position.
If bytes are missing or a length is invalid, they raise ``MalformedRequest``,
``struct.error`` or ``IndexError``. Parsers of requests catch ``PARSE_ERRORS``, which
holds all three. Writers append to a ``bytearray``.
Source: Kafka protocol guide, protocol primitive types; KIP-482 for the compact ones.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from tidelog_core.errors import ErrorCode, TidelogError, TooManyElements

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
UVARINT_BYTES_MAX = 5
TOPIC_ID_SIZE = 16  # bytes
ELEMENTS_UNBOUNDED = 1 << 40
# Of one struct. A frame full of them would block the loop for 0.2 s a megabyte.
TAGGED_FIELDS_MAX = 1000
# In characters. A string holds up to 32,767 bytes, and error texts quote what clients sent.
ERROR_TEXT_LENGTH_MAX = 1000


class MalformedRequest(TidelogError, ValueError):
    """The bytes are not a request of the API and version that they claim to be."""

    code = ErrorCode.invalid_request


PARSE_ERRORS = (MalformedRequest, struct.error, IndexError, ValueError, OverflowError)


@lru_cache(maxsize=256)
def request_header(id_length: int) -> struct.Struct:
    """Return the struct of API key, version, correlation id, client id length and client id.

    Unpacking the id with the numbers takes a tenth of the time of slicing it out afterwards.
    """
    return struct.Struct(f">hhih{id_length}s")


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits."""
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value, shift = byte & 0x7F, 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * UVARINT_BYTES_MAX:
            raise MalformedRequest("a varint is longer than five bytes")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_string(buffer: memoryview, position: int) -> tuple[bytes, int]:
    """Return the UTF-8 bytes of a string with a 16-bit length; null is malformed."""
    (length,) = INT16.unpack_from(buffer, position)
    position += 2
    end = position + length
    if length < 0 or end > len(buffer):
        raise MalformedRequest(f"a string of {length} bytes does not fit its request")
    return bytes(buffer[position:end]), end


def read_nullable_string(buffer: memoryview, position: int) -> tuple[bytes | None, int]:
    """Return the UTF-8 bytes of a string, ``None`` for any negative length, as in Kafka."""
    if INT16.unpack_from(buffer, position)[0] < 0:
        return None, position + 2
    return read_string(buffer, position)


def read_compact_nullable_string(buffer: memoryview, position: int) -> tuple[bytes | None, int]:
    """Return the UTF-8 bytes of a compact string, or ``None``."""
    length, position = read_uvarint(buffer, position)
    if length == 0:
        return None, position
    end = position + length - 1
    if end > len(buffer):
        raise MalformedRequest(f"a string of {length - 1} bytes does not fit its request")
    return bytes(buffer[position:end]), end


def read_compact_string(buffer: memoryview, position: int) -> tuple[bytes, int]:
    """Return the UTF-8 bytes of a compact string; null is malformed."""
    value, position = read_compact_nullable_string(buffer, position)
    if value is None:
        raise MalformedRequest("a string that must be there is null")
    return value, position


def read_topic(buffer: memoryview, position: int, *, is_id: bool) -> tuple[bytes, int]:
    """Return the bytes of a topic's id, or of its name as a compact string."""
    if is_id:
        end = position + TOPIC_ID_SIZE
        return bytes(buffer[position:end]), end
    return read_compact_string(buffer, position)


def read_array_length(buffer: memoryview, position: int) -> tuple[int, int]:
    """Return the length of an array that may not be null."""
    (length,) = INT32.unpack_from(buffer, position)
    position += 4
    if not 0 <= length <= len(buffer) - position:
        raise MalformedRequest(f"an array of {length} elements does not fit its request")
    return length, position


def read_compact_array_length(buffer: memoryview, position: int) -> tuple[int, int]:
    """Return the length of a compact array that may not be null."""
    length, position = read_uvarint(buffer, position)
    length -= 1
    if not 0 <= length <= len(buffer) - position:
        raise MalformedRequest(f"an array of {length} elements does not fit its request")
    return length, position


def read_tag_count(buffer: memoryview, position: int) -> tuple[int, int]:
    """Return the number of tagged fields of a struct."""
    count, position = read_uvarint(buffer, position)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedRequest(f"{count} tagged fields, allowed are {TAGGED_FIELDS_MAX}")
    return count, position


def spend(left: int, count: int) -> int:
    """Return the budget of elements left after ``count``. Raises ``TooManyElements``."""
    if count > left:
        raise TooManyElements("the request", left)
    return left - count


def skip_tagged_fields(buffer: memoryview, position: int) -> int:
    """Return the position after the tagged fields."""
    count, position = read_tag_count(buffer, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > len(buffer):
            raise MalformedRequest("a tagged field does not fit its request")
    return position


def cut_error_text(text: str) -> str:
    """Return an error's text, cut to at most ``ERROR_TEXT_LENGTH_MAX`` characters."""
    if len(text) <= ERROR_TEXT_LENGTH_MAX:
        return text
    return text[: ERROR_TEXT_LENGTH_MAX - 1] + "…"


def write_string(out: bytearray, value: bytes) -> None:
    """Append a string with a 16-bit length."""
    out += INT16.pack(len(value))
    out += value


def write_compact_nullable_string(out: bytearray, value: bytes | None) -> None:
    """Append a compact string, or null."""
    if value is None:
        out.append(0)
        return
    write_uvarint(out, len(value) + 1)
    out += value


def write_nullable_string(out: bytearray, value: bytes | None) -> None:
    """Append a string with a 16-bit length, or null."""
    if value is None:
        out += b"\xff\xff"
    else:
        write_string(out, value)


def array_length(count: int, *, is_flexible: bool) -> bytes:
    """Return the bytes before ``count`` elements; ``is_flexible``: in a flexible version."""
    if not is_flexible:
        return INT32.pack(count)
    encoded = bytearray()
    write_uvarint(encoded, count + 1)
    return bytes(encoded)
