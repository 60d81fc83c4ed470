"""Which columns of a user's table become records, and whether their types can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from tidelog.arrow.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from tidelog.errors import InvalidRequest

Table: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader


def columns_to_send(table: Table, *, key: str | None, value: str) -> Iterator[pa.RecordBatch]:
    """Return the table's batches with the columns of a record, named as ``poll_arrow`` names them.

    ``key`` and ``value`` are the names of these columns; without ``key`` it is the column
    ``key``, if there is one. ``partition``, ``headers`` and ``timestamp`` are taken if they are
    there. Raises ``InvalidRequest`` with every wrong column.
    """
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
        allowed, is_right, _ = _COLUMNS[target]
        if not is_right(kind := schema.field(name).type):
            problems.append(f"column {name!r} is {kind}; a record's {target} is {allowed}")
    if problems:
        raise InvalidRequest("; ".join(problems))
    return _converted(_batches(table), found)


def _batches(table: Table) -> Iterable[pa.RecordBatch]:
    if isinstance(table, pa.RecordBatch):
        return (table,)
    batches: Iterable[pa.RecordBatch] = (
        table if isinstance(table, pa.RecordBatchReader) else table.to_batches()
    )
    return batches


def _converted(
    batches: Iterable[pa.RecordBatch], found: dict[str, str]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        arrays = []
        for target, name in found.items():
            _, _, kind = _COLUMNS[target]
            column = batch.column(name)
            arrays.append(column if kind is None else column.cast(kind))
        yield pa.RecordBatch.from_arrays(arrays, names=list(found))


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
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
