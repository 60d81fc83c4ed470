"""Random messages of any kio schema as bytes, whole or broken in the places that matter.

``random_message`` makes a message piece by piece, so that what is broken afterwards is a length, a
null, a tag or a text, and not just any byte. The encoder here shares nothing with the code under
test: it goes by kio's classes alone.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Iterator
from random import Random
from types import UnionType
from typing import Any, Literal, NamedTuple

from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map

Kind = Literal["fixed", "bytes", "text", "compact", "int16", "int32", "marker"]

HOSTILE_LENGTHS = (-2, -1, 0, 1, 2, 127, 128, 32_767, 32_768, 2**31 - 1, 2**32 - 2, 2**34)
UNKNOWN_TAGS = (7, 127, 128, 9999, 2**31)
_ELEMENTS_MAX = 3
_ERRORS = [int(code) for code in ErrorCode]
_FIXED = {
    "int8": ("b", -128, 127),
    "int16": ("h", -(2**15), 2**15 - 1),
    "uint16": ("H", 0, 2**16 - 1),
    "int32": ("i", -(2**31), 2**31 - 1),
    "int64": ("q", -(2**63), 2**63 - 1),
    "timedelta_i32": ("i", -(2**31), 2**31 - 1),
    "timedelta_i64": ("q", -(2**45), 2**45),
    "datetime_i64": ("q", 0, 2**42),  # later, kio rounds
}


class Piece(NamedTuple):
    """Bytes that mean one thing; a length and the null of a struct are pieces of their own."""

    kind: Kind
    data: bytes


def all_schemas() -> list[Any]:
    """Return every message that kio has, in all its versions, headers of requests apart."""
    return [
        load_entity_schema(name, version, kind)
        for name, versions in schema_name_map.items()
        if name != "request_header"  # its client id is encoded like no other field
        for version, kinds in versions.items()
        for kind in kinds
    ]


def random_message(schema: Any, random: Random, *, strangers: Random | None = None) -> list[Piece]:
    """Return a valid message; with ``strangers``, tagged fields that nobody knows among it.

    The same ``random`` gives the same message with and without them.
    """
    return list(_struct(schema, random, strangers))


def joined(pieces: list[Piece]) -> bytes:
    """Return the bytes of a message."""
    return b"".join(piece.data for piece in pieces)


def broken(pieces: list[Piece], random: Random) -> bytes:
    """Return the message with one to three things wrong, or nearly so."""
    pieces = list(pieces)
    for _ in range(random.randint(1, 3)):
        if not pieces:
            break
        at = random.randrange(len(pieces))
        match random.randrange(4):
            case 0:
                lengths = [i for i, each in enumerate(pieces) if each.kind not in _CONTENTS]
                at = random.choice(lengths) if lengths else at
                pieces[at] = _other_length(pieces[at], random)
            case 1:
                del pieces[at]
            case 2:
                pieces[at:at] = pieces[random.randrange(len(pieces)) :][:3]
            case 3:
                pieces[at] = Piece(pieces[at].kind, random.randbytes(random.randrange(9)))
    data = bytearray(joined(pieces))
    if data and random.random() < 0.3:
        del data[random.randrange(len(data)) :]
    if data and random.random() < 0.3:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def with_length(pieces: list[Piece], at: int, length: int) -> bytes:
    """Return the message with another length at a piece that is one."""
    return joined([*pieces[:at], _length(pieces[at].kind, length), *pieces[at + 1 :]])


def varint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


_CONTENTS = ("fixed", "bytes", "text")


def _other_length(piece: Piece, random: Random) -> Piece:
    if piece.kind in _CONTENTS:
        return piece
    if piece.kind == "compact" and random.random() < 0.1:
        return Piece("compact", b"\xff" * random.randint(1, 12) + b"\x01")
    return _length(piece.kind, random.choice(HOSTILE_LENGTHS))


def _length(kind: Kind, length: int) -> Piece:
    """Return the length as near as its encoding comes to it; -1 is null."""
    match kind:
        case "compact":
            return Piece(kind, varint(max(length + 1, 0)))
        case "int16":
            return Piece(kind, struct.pack(">h", max(-(2**15), min(length, 2**15 - 1))))
        case "marker":
            return Piece(kind, struct.pack(">b", max(-(2**7), min(length, 2**7 - 1))))
        case _:
            return Piece(kind, struct.pack(">i", max(-(2**31), min(length, 2**31 - 1))))


def _struct(schema: Any, random: Random, strangers: Random | None) -> Iterator[Piece]:
    tagged: list[tuple[int, list[Piece]]] = []
    for field in dataclasses.fields(schema):
        value = _field(schema, field, random, strangers)
        if "tag" not in field.metadata:
            yield from value
        else:
            # Made in any case, so that the same random numbers make the same message.
            pieces = list(value)
            if random.random() < 0.5:
                tagged.append((field.metadata["tag"], pieces))
    if schema.__flexible__:
        if strangers is not None:
            for tag in strangers.sample(UNKNOWN_TAGS, strangers.choice((0, 1, 2))):
                content = strangers.randbytes(strangers.choice((0, 3, 200)))
                tagged.append((tag, [Piece("bytes", content)]))
        yield _length("compact", len(tagged) - 1)
        for tag, pieces in sorted(tagged, key=lambda each: each[0]):
            yield Piece("fixed", varint(tag))
            yield _length("compact", len(joined(pieces)) - 1)
            yield from pieces


def _field(schema: Any, field: Any, random: Random, strangers: Random | None) -> Iterator[Piece]:
    hint, is_flexible, kind = field.type, schema.__flexible__, field.metadata.get("kafka_type", "")
    is_nullable = typing.get_origin(hint) in (typing.Union, UnionType)
    if is_nullable:
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    is_null = is_nullable and random.random() < 0.2
    # A tagged field that is null is not sent; kio refuses one that is.
    is_null = is_null and "tag" not in field.metadata
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        count = -1 if is_null else random.randint(0, _ELEMENTS_MAX)
        yield _length("compact" if is_flexible else "int32", count)
        for _ in range(count):
            yield from _element(element, kind, random, strangers, is_flexible=is_flexible)
    elif dataclasses.is_dataclass(hint):
        if is_nullable:
            yield _length("marker", -1 if is_null else 1)
        if not is_null:
            yield from _struct(hint, random, strangers)
    elif is_null and kind in ("string", "bytes", "records"):
        yield _length(_length_kind(kind, is_flexible=is_flexible), -1)
    elif is_null and kind == "datetime_i64":
        yield Piece("fixed", b"\xff" * 8)
    else:
        yield from _element(hint, kind, random, strangers, is_flexible=is_flexible)


def _element(
    hint: Any, kind: str, random: Random, strangers: Random | None, *, is_flexible: bool
) -> Iterator[Piece]:
    if dataclasses.is_dataclass(hint):
        yield from _struct(hint, random, strangers)
        return
    match kind:
        case "string":
            data = "".join(random.choices("aé世🐍", k=random.choice((0, 1, 5, 40)))).encode()
            yield _length(_length_kind(kind, is_flexible=is_flexible), len(data))
            yield Piece("text", data)
        case "bytes" | "records":
            data = random.randbytes(random.choice((0, 1, 5, 200)))
            yield _length(_length_kind(kind, is_flexible=is_flexible), len(data))
            yield Piece("bytes", data)
        case "bool":
            yield Piece("fixed", bytes([random.randrange(2)]))
        case "uuid":
            yield Piece("fixed", random.choice((bytes(16), random.randbytes(16))))
        case "error_code":
            yield Piece("fixed", struct.pack(">h", random.choice(_ERRORS)))
        case "float64":
            yield Piece("fixed", struct.pack(">d", random.uniform(-1e9, 1e9)))
        case _:
            code, low, high = _FIXED[kind]
            value = random.choice((low, high, 0, 1, random.randint(low, high)))
            yield Piece("fixed", struct.pack(">" + code, max(value, low)))


def _length_kind(kind: str, *, is_flexible: bool) -> Kind:
    if is_flexible:
        return "compact"
    return "int16" if kind == "string" else "int32"
