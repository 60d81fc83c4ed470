"""JSON values as Arrow columns: an object's properties, by a JSON Schema.

Properties that the schema does not name are left out; strings of the format ``date-time`` stay
strings. Each value is parsed by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from tidelog_core.schemas.avro.parsing import load_json
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.codecs import load_value
from tidelog_core.schemas.values.framing import UnreadableValue

from tidelog.arrow.values.column_budget import ColumnCounter, cost_of_json
from tidelog.arrow.values.payloads import Payloads

DEPTH_MAX = 32
COLUMNS_MAX = 10_000  # of a schema
_SCALARS = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


class JsonColumns:
    """Reads objects of one schema as structs."""

    def __init__(self, text: str) -> None:
        """Raises ``InvalidSchema`` if no columns can have the values."""
        columns = _Columns()
        self.type = columns.type_of(load_json(text), "the value", DEPTH_MAX)
        if not pa.types.is_struct(self.type):
            raise InvalidSchema("columns need a schema of an object")
        self.cost = cost_of_json(self.type)
        self._counter = ColumnCounter(self.type)

    def bytes_of(self, payload: bytes) -> float:
        """Return what a value takes as columns; 0 for one that cannot be read."""
        try:
            return self._counter.bytes_of(load_value(payload), len(payload))
        except UnreadableValue:
            return 0.0

    def read(self, values: Payloads) -> tuple[pa.Array, dict[int, str]]:
        """Return the structs, null for values that do not fit, and what is wrong with those."""
        rows: list[Any] = []
        problems: dict[int, str] = {}
        for number in range(len(values.starts)):
            try:
                found = load_value(values.payload(number))
                rows.append(_require_object(found))
            except UnreadableValue as error:
                problems[number] = str(error)
                rows.append(None)
        return structs(rows, self.type, problems)


def structs(
    rows: list[Any], kind: pa.DataType, problems: dict[int, str]
) -> tuple[pa.Array, dict[int, str]]:
    """Return the rows as structs; those that do not fit become null, and problems."""
    try:
        return pa.array(rows, kind), problems
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for number, row in enumerate(rows):
            try:
                pa.array([row], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                problems[number], rows[number] = " ".join(str(error).split())[:300], None
        return pa.array(rows, kind), problems


def _require_object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise UnreadableValue("it is no JSON object")
    return value


class _Columns:
    """Finds the columns of a schema, and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def type_of(self, schema: Any, where: str, depth: int) -> pa.DataType:
        """Return the type of the values. Raises ``InvalidSchema``."""
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise InvalidSchema(f"it has more than {COLUMNS_MAX} columns")
        if depth == 0:
            raise InvalidSchema(f"{where} nests too deeply for columns")
        if not isinstance(schema, Mapping):
            raise InvalidSchema(f"{where} has no type")
        kinds = schema.get("type")
        names = [one for one in (kinds if isinstance(kinds, list) else [kinds]) if one != "null"]
        kind = names[0] if len(names) == 1 else None
        if kind == "object":
            return self._struct(schema.get("properties"), where, depth)
        if kind == "array":
            return pa.list_(self.type_of(schema.get("items"), f"{where}[]", depth - 1))
        if kind not in _SCALARS:
            raise InvalidSchema(f"{where} has the type {str(kinds)[:50]}, which no column has")
        return _SCALARS[str(kind)]

    def _struct(self, properties: Any, where: str, depth: int) -> pa.DataType:
        if not isinstance(properties, Mapping) or not properties:
            raise InvalidSchema(f"{where} has no properties, so that it has no columns")
        return pa.struct(
            [
                pa.field(name, self.type_of(one, f"{where}.{name}", depth - 1))
                for name, one in properties.items()
            ]
        )
