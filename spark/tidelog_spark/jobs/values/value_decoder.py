"""The interface of value decoders, and helpers that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa
from tidelog_core.errors import ErrorCode, InvalidConfig, TidelogError

_CONFLUENT_MAGIC = 0
_CONFLUENT_SIZE = 5  # magic byte and schema id, big-endian


class UnreadableValue(TidelogError):
    """A record's value does not match the schema."""

    code = ErrorCode.invalid_record


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns of decoded values, and the problems of undecodable ones."""

    columns: tuple[pa.Array, ...]  # of the decoder's fields; null where a value is bad or null
    problems: Mapping[int, str]  # by row


class ValueDecoder(Protocol):
    """Decodes values of one schema. Not thread-safe."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns of decoded values; all are nullable."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode binary values, which may be null. Never raises for a value."""


@runtime_checkable
class HeaderValueDecoder(Protocol):
    """Decodes values whose schemas may be named in headers of their records."""

    def decode_with(self, values: pa.Array, headers: pa.Array) -> Decoded:
        """Decode binary values, which may be null. Never raises for a value."""


def decode_each(
    values: pa.Array,
    read: Callable[[bytes], Mapping[str, object]],
    struct: pa.StructType,
    errors: tuple[type[Exception], ...],
) -> Decoded:
    """Decode values one by one with ``read``, which raises one of ``errors``."""
    rows: list[Mapping[str, object] | None] = []
    problems: dict[int, str] = {}
    for number, value in enumerate(values.to_pylist()):
        row = None
        if value is not None:
            try:
                row = read(value)
            except errors as error:
                problems[number] = describe(error)
        rows.append(row)
    try:
        table = pa.array(rows, struct)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        # A value does not fit its column, such as a time outside of Arrow's range.
        for number, row in enumerate(rows):
            try:
                pa.array([row], struct)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                problems[number], rows[number] = describe(error), None
        table = pa.array(rows, struct)
    return Decoded(columns_of(table), problems)


def columns_of(table: pa.StructArray) -> tuple[pa.Array, ...]:
    """Return the fields of structs as columns, null where a struct is."""
    return tuple(table.flatten())


def framed_id(value: bytes) -> int:
    """Return the schema's id in Confluent's wire format. Raises ``UnreadableValue``."""
    unframed(value)
    return int.from_bytes(value[1:_CONFLUENT_SIZE], "big")


def unframed(value: bytes) -> bytes:
    """Return the bytes after the schema id in Confluent's wire format.

    Raises ``UnreadableValue``. Source: Confluent Schema Registry, wire format.
    """
    if len(value) < _CONFLUENT_SIZE or value[0] != _CONFLUENT_MAGIC:
        raise UnreadableValue("it does not begin with a schema's id, as Confluent's format does")
    return value[_CONFLUENT_SIZE:]


def describe(error: Exception) -> str:
    """Return the error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:500]


def require_columns(fields: Sequence[pa.Field]) -> None:
    """Raise ``InvalidConfig`` for a schema without columns."""
    if not fields:
        raise InvalidConfig(["the schema has no fields, so there is nothing to export"])
