"""JSON values as Arrow columns: an object's properties, by a JSON Schema.

Properties that the schema does not name are left out; strings of the format ``date-time`` stay
strings. Each value is parsed by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from tidelog_core.schemas.avro.parsing import load_json
from tidelog_core.schemas.parsed import InvalidSchema
from tidelog_core.schemas.values.codecs import load_value
from tidelog_core.schemas.values.framing import UnreadableValue

from tidelog.arrow.payloads import Payloads

DEPTH_MAX = 32
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
        self.type = _type_of(load_json(text), "the value", DEPTH_MAX)
        if not pa.types.is_struct(self.type):
            raise InvalidSchema("columns need a schema of an object")

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


def _type_of(schema: Any, where: str, depth: int) -> pa.DataType:
    if depth == 0:
        raise InvalidSchema(f"{where} nests too deeply for columns")
    if not isinstance(schema, Mapping):
        raise InvalidSchema(f"{where} has no type")
    kinds = schema.get("type")
    names = [one for one in (kinds if isinstance(kinds, list) else [kinds]) if one != "null"]
    kind = names[0] if len(names) == 1 else None
    if kind == "object":
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            raise InvalidSchema(f"{where} has no properties, so that it has no columns")
        return pa.struct(
            [
                pa.field(name, _type_of(one, f"{where}.{name}", depth - 1))
                for name, one in properties.items()
            ]
        )
    if kind == "array":
        return pa.list_(_type_of(schema.get("items"), f"{where}[]", depth - 1))
    if kind not in _SCALARS:
        raise InvalidSchema(f"{where} has the type {str(kinds)[:50]}, which no column has")
    return _SCALARS[str(kind)]
