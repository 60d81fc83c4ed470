"""Which columns of a user's table become records, and whether their types can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arrow.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from tidelog.errors import InvalidRequest, InvalidRow

Table: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader
_TABLES = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
ROWS_AT_ONCE = 65_536


class ArrowStreamable(Protocol):
    """A table of another library, such as a ``DataFrame`` of pandas or polars.

    Source: Arrow's PyCapsule interface.
    """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as a stream."""


def columns_to_send(
    given: Table | ArrowStreamable, *, key: str | None, value: str
) -> Iterator[pa.RecordBatch]:
    """Return the table's batches with the columns of a record, named as ``poll_arrow`` names them.

    ``key`` and ``value`` are the names of these columns; without ``key`` it is the column
    ``key``, if there is one. ``partition``, ``headers`` and ``timestamp`` are taken if they are
    there. Raises ``InvalidRequest`` with every wrong column.
    """
    table = _table(given)
    schema = table.schema
    names = {"value": value, "key": "key" if key is None else key}
    names |= {name: name for name in ("partition", "headers", "timestamp")}
    problems = [
        f"there is no column {name!r}"
        for name in (value, *(() if key is None else (key,)))
        if name not in schema.names
    ]
    found = {target: name for target, name in names.items() if name in schema.names}
    for target, name in found.items():
        if schema.names.count(name) > 1:
            problems.append(f"there are several columns {name!r}")
            continue
        allowed, is_right, _ = _COLUMNS[target]
        if not is_right(kind := schema.field(name).type):
            problems.append(f"column {name!r} is {kind}; a record's {target} is {allowed}")
    if problems:
        raise InvalidRequest("; ".join(problems))
    return _converted(_batches(table), found)


def _table(given: Table | ArrowStreamable) -> Table:
    if isinstance(given, _TABLES):
        return given
    if hasattr(given, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(given)
    raise InvalidRequest(
        "table must be a Table, RecordBatch or RecordBatchReader of pyarrow, or a DataFrame that"
        f" Arrow can read, is of type {type(given).__name__}"
    )


def _batches(table: Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows, not too many at once: the loop runs again after each few of these."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    batches: Iterable[pa.RecordBatch] = (
        table if isinstance(table, pa.RecordBatchReader) else table.to_batches()
    )
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            yield batch.slice(start, ROWS_AT_ONCE)


def _converted(
    batches: Iterable[pa.RecordBatch], found: dict[str, str]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        arrays = []
        for target, name in found.items():
            _, _, kind = _COLUMNS[target]
            column = batch.column(name)
            if column.type in _VIEWS:
                column = column.cast(_VIEWS[column.type])
            arrays.append(column if kind is None else _cast(column, kind, name))
        yield pa.RecordBatch.from_arrays(arrays, names=list(found))


# Polars has these, and what builds batches has not.
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return the column with the type. Raises ``InvalidRow`` for a value that it cannot have.

    Times lose what is below a microsecond: records have milliseconds.
    """
    try:
        return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
    except pa.ArrowInvalid as error:
        raise InvalidRow(f"a row of column {name!r} cannot be sent: {error}") from None


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in _VIEWS or any(
        (
            pa.types.is_binary(kind),
            pa.types.is_large_binary(kind),
            pa.types.is_string(kind),
            pa.types.is_large_string(kind),
        )
    )


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    pair = kind.value_type
    return bool(
        pa.types.is_struct(pair)
        and [field.name for field in pair] == ["key", "value"]
        and all(_is_bytes(field.type) for field in pair)
    )


# By the column of a record: what is allowed, whether a type is, and what it is cast to.
_COLUMNS: dict[str, tuple[str, Callable[[pa.DataType], bool], pa.DataType | None]] = {
    "key": ("binary or string", _is_bytes, None),
    "value": ("binary or string", _is_bytes, None),
    "partition": ("a whole number", pa.types.is_integer, pa.int32()),
    "headers": ("list<struct<key: string, value: binary>>", _is_headers, HEADERS_TYPE),
    "timestamp": ("a timestamp", pa.types.is_timestamp, TIMESTAMP_TYPE),
}
