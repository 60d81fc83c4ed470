"""Fits structs into the columns of another version of their schema.

Fields are found by their names, numbers are widened, and a field that the structs lack is null or
has the default of Avro.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from tidelog_core.schemas.avro.types import NO_DEFAULT, AvroField, AvroType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.avro_writing import write_avro
from tidelog_core.schemas.values.framing import UnreadableValue

from tidelog.arrow.values.arrays import numbers
from tidelog.arrow.values.avro_columns import AvroColumns
from tidelog.arrow.values.payloads import Payloads

DEFAULT_SIZE_MAX = 1_000  # of one default: bytes, and values in it; each record gets a copy


def fitted(found: pa.Array, kind: pa.DataType, of: AvroType | None) -> pa.Array:
    """Return structs as another type; ``of`` is that type's schema, for defaults.

    Raises ``ArrowException`` for values that do not fit, and ``InvalidSchema``.
    """
    if not (pa.types.is_struct(kind) and pa.types.is_struct(found.type)):
        return found if found.type == kind else found.cast(kind)
    if of is not None and of.kind == "union":
        of = next((one for one in of.branches if one.kind != "null"), None)
    fields = {one.name: one for one in of.fields} if of is not None else {}
    columns = []
    for field in kind:
        index = found.type.get_field_index(field.name)
        known = fields.get(field.name)
        if index >= 0:
            inner = found.field(index)
            columns.append(fitted(inner, field.type, None if known is None else known.type))
            continue
        if known is None or known.default is NO_DEFAULT:
            columns.append(pa.nulls(len(found), field.type))
        else:
            columns.append(_defaults(known, len(found)))
    mask = found.is_null() if found.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _defaults(field: AvroField, count: int) -> pa.Array:
    """Return a column that has a field's default only. Raises ``InvalidSchema``."""
    record = AvroType("record", fields=(field,))
    try:
        payload = write_avro(record, {})
    except UnreadableValue as error:
        raise InvalidSchema(f"the default of {field.name} is wrong: {error}") from None
    found, problems = AvroColumns(record).read(Payloads.of(pa.array([payload], pa.binary())))
    if problems:
        raise InvalidSchema(f"the default of {field.name} is wrong: {problems[0]}")
    default = found.field(0)
    if max(default.nbytes, _value_count(default)) > DEFAULT_SIZE_MAX:
        raise InvalidSchema(f"the default of {field.name} is too large for a column")
    return default.take(numbers(np.zeros(count, np.int64), pa.int64()))


def _value_count(column: pa.Array) -> int:
    """Return the number of values in a column, with those in its lists and structs."""
    kind, count = column.type, len(column)
    if pa.types.is_struct(kind):
        count += sum(_value_count(column.field(number)) for number in range(kind.num_fields))
    elif pa.types.is_map(kind):
        count += _value_count(column.keys) + _value_count(column.items)
    elif pa.types.is_list(kind):
        count += _value_count(column.values)
    return count
