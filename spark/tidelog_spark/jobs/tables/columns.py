"""The columns of a table that gets records of a newer or an older schema. No I/O.

Columns can only be added. A table whose format has schema evolution (Iceberg) also takes fields
that are added within structs, and numbers that have become wider: int to long, float to double.
Source: Iceberg table spec, schema evolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_spark.jobs.tables.export_table import ColumnConflict, SchemaConflict

_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def merged_schema(table: pa.Schema, wanted: pa.Schema, *, evolves: bool = False) -> pa.Schema:
    """Return the table's columns and the new ones.

    A column that is no longer exported stays, and is null. ``evolves``: types of columns may
    change as Iceberg's do. Raises ``ColumnConflict`` with every column whose type differs, and with
    every new one whose name differs from another's in case only.
    """
    problems: list[str] = []
    fields = []
    for field in table:
        if field.name in wanted.names:
            exported = wanted.field(field.name).type
            merged = _merged(field.type, exported) if evolves else None
            if merged is None and field.type != exported:
                problems.append(
                    f"column {field.name!r} is {field.type} in the table and {exported} in the"
                    " export"
                )
            field = field.with_type(merged or field.type)  # noqa: PLW2901
        fields.append(field)
    new = [field.with_nullable(True) for field in wanted if field.name not in table.names]
    problems += _alike([*fields, *new], known=table)
    if problems:
        raise ColumnConflict(problems)
    return pa.schema([*fields, *new])


def require_distinct(schema: pa.Schema) -> None:
    """Raise ``SchemaConflict`` if a new table would have names that differ in case only."""
    problems = list(_alike(schema, known=()))
    if problems:
        raise SchemaConflict(problems)


def _alike(fields: Iterable[pa.Field], known: Iterable[pa.Field], path: str = "") -> Iterator[str]:
    """Yield a problem for each name that engines take for another one, within structs, too.

    ``known`` are the fields that the table has already: it stays as it is.
    """
    types = {field.name: field.type for field in known}
    names: dict[str, list[str]] = {}
    for field in fields:
        names.setdefault(field.name.lower(), []).append(field.name)
        inner = _inner(types[field.name]) if field.name in types else ()
        yield from _alike(_inner(field.type), inner, f"{path}{field.name}.")
    for alike in names.values():
        if len(alike) > 1 and not types.keys() >= {*alike}:
            both = " and ".join(repr(path + name) for name in alike)
            yield (
                f"columns {both} differ in case only, and engines such as Spark cannot read a"
                " table with both: give the field the name that the table has, or another one"
            )


def _inner(of: pa.DataType) -> Iterable[pa.Field]:
    """Return the fields of a struct, or of a list's structs."""
    while pa.types.is_list(of):
        of = of.value_type
    return list(of) if pa.types.is_struct(of) else ()


def fitted(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return the column in a type that ``merged_schema`` has made of its own."""
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted):
        names = [field.name for field in column.type]
        columns = [
            fitted(pc.struct_field(column, names.index(field.name)), field.type)
            if field.name in names
            else pa.nulls(len(column), field.type)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=column.is_null())
    if pa.types.is_list(wanted):
        # Without the elements of a slice's neighbours, and of lists that are null.
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
        elements = fitted(column.flatten(), wanted.value_type)
        return pa.ListArray.from_arrays(offsets, elements, type=wanted, mask=column.is_null())
    return column.cast(wanted)


def _merged(table: pa.DataType, exported: pa.DataType) -> pa.DataType | None:
    """Return the type that has the values of both, ``None`` if there is none."""
    if table == exported or (exported, table) in _WIDER:
        return table
    if (table, exported) in _WIDER:
        return exported
    if pa.types.is_struct(table) and pa.types.is_struct(exported):
        return _merged_struct(table, exported)
    if pa.types.is_list(table) and pa.types.is_list(exported):
        of = _merged(table.value_type, exported.value_type)
        return None if of is None else pa.list_(of)
    return None


def _merged_struct(table: pa.StructType, exported: pa.StructType) -> pa.StructType | None:
    added = {field.name: field for field in exported}
    fields = []
    for field in table:
        other = added.pop(field.name, None)
        merged = field.type if other is None else _merged(field.type, other.type)
        if merged is None:
            return None
        fields.append(field.with_type(merged))
    return pa.struct([*fields, *(field.with_nullable(True) for field in added.values())])
