"""Decodes JSON values by a JSON Schema: an object's properties become columns.

Arrow parses many values at once, each in an envelope with its number, so that an invalid
JSON text cannot shift those after it:

    {"v":[value,{"<random name>":number}]}

A text that ends the array, or adds to it, leaves ``v`` with other elements than these two. If a
value is invalid, the halves are parsed, and so on until it is isolated. Properties that the schema
does not name are ignored, required ones must exist. Strings of the format ``date-time`` become
timestamps, those of other formats stay strings.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from tidelog_core.errors import InvalidConfig

from tidelog_spark.jobs.values.value_decoder import (
    Decoded,
    UnreadableValue,
    columns_of,
    describe,
    require_columns,
    unframed,
)

DEPTH_MAX = 32  # of a schema
_PAIR = "v"
_BLOCK_SIZE_BYTES = 16 << 20
_SCALARS = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_TIMESTAMP = pa.timestamp("us", "UTC")


class JsonValues:
    """Reads JSON objects of one schema."""

    def __init__(self, schema: bytes, *, is_framed: bool) -> None:
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise InvalidConfig([f"the JSON Schema is not valid JSON: {error}"]) from None
        if not isinstance(parsed, dict) or parsed.get("type") != "object":
            raise InvalidConfig(['the JSON Schema must be of "type": "object"'])
        self._struct = _type_of(parsed, "value", DEPTH_MAX)
        self._required = list(parsed.get("required", ()))
        absent = [name for name in self._required if self._struct.get_field_index(name) < 0]
        if absent:
            raise InvalidConfig([f"the JSON Schema requires {', '.join(absent)}, not described"])
        self.fields = tuple(self._struct)
        require_columns(self.fields)
        self._is_framed = is_framed
        # No text can have it, so none can pass for the end of an envelope.
        self._number = secrets.token_hex(8)
        element = pa.struct([*self._struct, pa.field(self._number, pa.int64())])
        self._envelope = pa.schema([pa.field(_PAIR, pa.list_(element))])

    def decode(self, values: pa.Array) -> Decoded:
        """Return the properties as columns."""
        texts: list[bytes] = []
        rows: list[int] = []
        problems: dict[int, str] = {}
        for number, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                text = unframed(value) if self._is_framed else value
            except UnreadableValue as error:
                problems[number] = describe(error)
                continue
            # A line break in a text is whitespace; within a string it is not valid anyway.
            texts.append(text.replace(b"\n", b" ").replace(b"\r", b" "))
            rows.append(number)
        parts = self._parse(texts, rows, problems)
        found = pa.concat_arrays([pa.array([], self._struct), *(part for _, part in parts)])
        places = np.full(len(values), -1, np.int64)
        at = 0
        for part_rows, part in parts:
            places[part_rows] = np.arange(at, at + len(part))
            at += len(part)
        table = found.take(pa.array(places, mask=places < 0))
        self._require(table, places, problems)
        if problems:
            places[list(problems)] = -1
            table = found.take(pa.array(places, mask=places < 0))
        return Decoded(columns_of(table), problems)

    def _parse(
        self, texts: list[bytes], rows: list[int], problems: dict[int, str]
    ) -> list[tuple[list[int], pa.StructArray]]:
        """Return the parsed structs with their rows."""
        if not texts:
            return []
        try:
            return [(rows, self._parse_all(texts))]
        except (pa.ArrowException, UnreadableValue) as error:
            if len(texts) == 1:
                problems[rows[0]] = describe(error)
                return []
        half = len(texts) // 2
        return self._parse(texts[:half], rows[:half], problems) + self._parse(
            texts[half:], rows[half:], problems
        )

    def _parse_all(self, texts: list[bytes]) -> pa.StructArray:
        name = self._number.encode()
        lines = [b'{"v":[%b,{"%b":%d}]}' % (text, name, at) for at, text in enumerate(texts)]
        longest = max(map(len, lines)) + 1
        table = pyarrow.json.read_json(
            io.BytesIO(b"\n".join(lines)),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=max(_BLOCK_SIZE_BYTES, longest)
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=self._envelope, unexpected_field_behavior="ignore"
            ),
        )
        pairs = pa.concat_arrays(table.column(_PAIR).chunks)
        sizes = pc.list_value_length(pairs).to_numpy(zero_copy_only=False)
        if not np.array_equal(sizes, np.full(len(texts), 2)):
            raise UnreadableValue("it is not one JSON object")
        elements = pairs.flatten()
        first = np.arange(0, len(elements), 2)
        numbers = elements.field(self._number).take(pa.array(first + 1))
        found = elements.take(pa.array(first))
        if found.null_count or not numbers.equals(pa.array(np.arange(len(texts)))):
            raise UnreadableValue("it is not one JSON object")
        columns = [found.field(field.name) for field in self._struct]
        return pa.StructArray.from_arrays(columns, fields=list(self._struct))

    def _require(self, table: pa.StructArray, places: np.ndarray, problems: dict[int, str]) -> None:
        for name in self._required:
            is_null = table.field(name).is_null().to_numpy(zero_copy_only=False)
            for number in np.flatnonzero(is_null & (places >= 0)).tolist():
                problems.setdefault(number, f"the required property {name!r} is not there")


def _type_of(schema: Mapping[str, object], where: str, depth: int) -> pa.DataType:
    """Return the Arrow type of a JSON Schema. Raises ``InvalidConfig`` if there is none."""
    if depth == 0:
        raise InvalidConfig([f"the JSON Schema of {where} is nested too deep"])
    kinds = schema.get("type")
    names = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    kind = names[0] if len(names) == 1 else None
    if kind == "object":
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise InvalidConfig([f"the JSON Schema of {where} has no properties"])
        return pa.struct(
            [
                pa.field(name, _type_of(of, f"{where}.{name}", depth - 1))
                for name, of in properties.items()
            ]
        )
    if kind == "array":
        items = schema.get("items")
        if not isinstance(items, dict):
            raise InvalidConfig([f"the JSON Schema of {where} does not say what its items are"])
        return pa.list_(_type_of(items, f"{where}[]", depth - 1))
    if kind == "string" and schema.get("format") == "date-time":
        return _TIMESTAMP
    if kind in _SCALARS:
        return _SCALARS[str(kind)]
    raise InvalidConfig([f"the JSON Schema of {where} has type {kinds!r}; no column has it"])
