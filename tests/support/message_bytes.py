"""Random messages of any kio schema as bytes, whole or broken in the places that matter.

``random_message`` makes a message piece by piece, so that ``broken`` damages a length, a null, a tag
or a text and not just any byte. The encoder shares no code with the code under test: it uses kio's
classes alone.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Iterator, Sequence
from random import Random
from types import UnionType
from typing import Any, Literal, NamedTuple

from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map

Kind = Literal["fixed", "bytes", "text", "compact", "int16", "int32", "marker"]

HOSTILE_LENGTHS = (-2, -1, 0, 1, 2, 127, 128, 32_767, 32_768, 2**31 - 1, 2**32 - 2, 2**34)
TEXTS = ("", "a", "aé世🐍", "é" * 40, "a" * 127, "a" * 128)
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
    """The bytes of one element; a length or the null of a struct is a piece too."""

    kind: Kind
    data: bytes


def all_schemas() -> list[Any]:
    """Return every message that kio has in all its versions, except request headers."""
    return [
        load_entity_schema(name, version, kind)
        for name, versions in schema_name_map.items()
        if name != "request_header"  # its client id is encoded like no other field
        for version, kinds in versions.items()
        for kind in kinds
    ]


def random_message(
    schema: Any,
    random: Random,
    *,
    strangers: Random | None = None,
    texts: Sequence[str] = TEXTS,
    numbers: Sequence[int] = (0, 1),
    nulls: float = 0.2,
    null_at: int | None = None,
) -> list[Piece]:
    """Return a valid message; with ``strangers``, unknown tagged fields are added.

    The same ``random`` gives the same message with and without them. A nullable value is null
    with probability ``nulls``. With ``null_at``, that one of the values that have a length is
    null even if it may not be. Raises ``ValueError`` if there are fewer such values.
    """
    maker = _Maker(random, strangers, texts, numbers, nulls, null_at)
    pieces = list(maker.struct(schema))
    if null_at is not None and maker.nullable_count <= null_at:
        raise ValueError(f"the message has {maker.nullable_count} values that could be null")
    return pieces


def joined(pieces: list[Piece]) -> bytes:
    """Return the bytes of a message."""
    return b"".join(piece.data for piece in pieces)


def broken(pieces: list[Piece], random: Random) -> bytes:
    """Return the message after random damage to its pieces and bytes; it may still be valid."""
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


_WITH_LENGTH = ("string", "bytes", "records")
_CONTENTS = ("fixed", "bytes", "text")


def _other_length(piece: Piece, random: Random) -> Piece:
    if piece.kind in _CONTENTS:
        return piece
    if piece.kind == "compact" and random.random() < 0.1:
        return Piece("compact", b"\xff" * random.randint(1, 12) + b"\x01")
    return _length(piece.kind, random.choice(HOSTILE_LENGTHS))


def _length(kind: Kind, length: int) -> Piece:
    """Return the length, clamped to the range of its encoding; -1 is null."""
    match kind:
        case "compact":
            return Piece(kind, varint(max(length + 1, 0)))
        case "int16":
            return Piece(kind, struct.pack(">h", max(-(2**15), min(length, 2**15 - 1))))
        case "marker":
            return Piece(kind, struct.pack(">b", max(-(2**7), min(length, 2**7 - 1))))
        case _:
            return Piece(kind, struct.pack(">i", max(-(2**31), min(length, 2**31 - 1))))


class _Maker:
    """Makes pieces of one message."""

    def __init__(
        self,
        random: Random,
        strangers: Random | None,
        texts: Sequence[str],
        numbers: Sequence[int],
        nulls: float,
        null_at: int | None,
    ) -> None:
        self._random = random
        self._strangers = strangers
        self._texts = texts
        self._numbers = numbers
        self._nulls = nulls
        self._null_at = null_at
        self.nullable_count = 0

    def struct(self, schema: Any) -> Iterator[Piece]:
        tagged: list[tuple[int, list[Piece]]] = []
        for field in dataclasses.fields(schema):
            value = self._field(schema, field)
            if "tag" not in field.metadata:
                yield from value
            else:
                # Made in any case, so that the same random numbers make the same message.
                pieces = list(value)
                if self._random.random() < 0.5:
                    tagged.append((field.metadata["tag"], pieces))
        if schema.__flexible__:
            yield from self._tagged([*tagged, *self._unknown()])

    def _unknown(self) -> Iterator[tuple[int, list[Piece]]]:
        if self._strangers is not None:
            for tag in self._strangers.sample(UNKNOWN_TAGS, self._strangers.choice((0, 1, 2))):
                content = self._strangers.randbytes(self._strangers.choice((0, 3, 200)))
                yield tag, [Piece("bytes", content)]

    def _tagged(self, fields: list[tuple[int, list[Piece]]]) -> Iterator[Piece]:
        yield _length("compact", len(fields) - 1)
        for tag, pieces in sorted(fields, key=lambda each: each[0]):
            yield Piece("fixed", varint(tag))
            yield _length("compact", len(joined(pieces)) - 1)
            yield from pieces

    def _field(self, schema: Any, field: Any) -> Iterator[Piece]:
        hint, is_flexible = field.type, schema.__flexible__
        kind = field.metadata.get("kafka_type", "")
        is_nullable = typing.get_origin(hint) in (typing.Union, UnionType)
        if is_nullable:
            hint = next(each for each in typing.get_args(hint) if each is not type(None))
        # A tagged field that is null is not sent; kio refuses one that is.
        is_nullable = is_nullable and "tag" not in field.metadata
        is_null = is_nullable and self._random.random() < self._nulls
        if typing.get_origin(hint) is tuple or is_nullable or kind in _WITH_LENGTH:
            is_null = is_null or self.nullable_count == self._null_at
            self.nullable_count += 1
        if typing.get_origin(hint) is tuple:
            element = typing.get_args(hint)[0]
            count = -1 if is_null else self._random.randint(0, _ELEMENTS_MAX)
            yield _length("compact" if is_flexible else "int32", count)
            for _ in range(count):
                yield from self._element(element, kind, is_flexible=is_flexible)
        elif dataclasses.is_dataclass(hint):
            if is_nullable:
                yield _length("marker", -1 if is_null else 1)
            if not is_null:
                yield from self.struct(hint)
        elif is_null and kind in _WITH_LENGTH:
            yield _length(_length_kind(kind, is_flexible=is_flexible), -1)
        elif is_null and kind == "datetime_i64":
            yield Piece("fixed", b"\xff" * 8)
        else:
            yield from self._element(hint, kind, is_flexible=is_flexible)

    def _element(self, hint: Any, kind: str, *, is_flexible: bool) -> Iterator[Piece]:
        random = self._random
        if dataclasses.is_dataclass(hint):
            yield from self.struct(hint)
            return
        match kind:
            case "string":
                data = random.choice(self._texts).encode()
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
                value = random.choice((low, high, random.randint(low, high), *self._numbers))
                yield Piece("fixed", struct.pack(">" + code, max(low, min(value, high))))


def _length_kind(kind: str, *, is_flexible: bool) -> Kind:
    if is_flexible:
        return "compact"
    return "int16" if kind == "string" else "int32"
