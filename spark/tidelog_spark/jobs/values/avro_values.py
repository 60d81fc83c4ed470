"""Decodes Avro values: the fields of a record become columns.

Values are encoded with the given schema, without a container. With Confluent's framing
the id before each value is skipped: the given schema must then be the one they were
written with, or the one they were written with is given besides, and Avro resolves the two. Avro
types become the Arrow types that Avro's specification names; a union
may consist of one type and null.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException
from tidelog_core.errors import InvalidConfig

from tidelog_spark.jobs.values.value_decoder import (
    Decoded,
    UnreadableValue,
    decode_each,
    require_columns,
    unframed,
)

DEPTH_MAX = 32  # of a schema, which may contain itself
_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL_TYPES = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
# The reader's exceptions for bytes that do not match the schema: it has no error class.
_UNREADABLE = (
    UnreadableValue,
    fastavro.read.SchemaResolutionError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    StopIteration,
    TypeError,
    ValueError,
    MemoryError,
)


class AvroValues:
    """Reads records of one schema."""

    def __init__(self, schema: bytes, *, is_framed: bool, written: bytes | None = None) -> None:
        """``written`` is the schema that values were written with, if it is another one."""
        try:
            parsed = json.loads(schema)
            self._schema = fastavro.parse_schema(_without_uuids(parsed))
            self._written = self._schema
            if written is not None and written != schema:
                self._written = fastavro.parse_schema(_without_uuids(json.loads(written)))
                _has_bytes(self._written, {}, {})
        except (ValueError, SchemaParseException, KeyError, TypeError) as error:
            raise InvalidConfig([f"the Avro schema cannot be used: {error}"]) from None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise InvalidConfig(["the Avro schema must be of a record"])
        self._struct = _TypeReader().type_of(parsed, "the value", DEPTH_MAX)
        self.fields = tuple(self._struct)
        require_columns(self.fields)
        self._is_framed = is_framed

    def decode(self, values: pa.Array) -> Decoded:
        """Return the records' fields as columns."""
        return decode_each(values, self._read, self._struct, _UNREADABLE)

    def _read(self, value: bytes) -> Mapping[str, object]:
        stream = io.BytesIO(unframed(value) if self._is_framed else value)
        is_resolved = self._written is not self._schema
        found = fastavro.schemaless_reader(
            stream, self._written, self._schema if is_resolved else None
        )
        if stream.tell() != len(stream.getbuffer()):
            raise UnreadableValue("bytes follow the record")
        if not isinstance(found, dict):
            raise UnreadableValue("it is no record")
        return found


def _has_bytes(schema: Any, named: dict[str, Any], known: dict[str, bool | None]) -> bool:
    """Return whether each value of a parsed schema takes a byte or more.

    ``known`` has the answers for named types, ``None`` while one is looked at. Raises
    ``InvalidConfig`` for schemas by which a small value keeps fastavro busy for ever, or exhausts
    its stack: records within themselves, and arrays of items without bytes.
    """
    if isinstance(schema, list):
        for one in schema:
            _has_bytes(one, named, known)
        return True  # the number of the branch
    if isinstance(schema, str):
        if schema not in named:
            return schema != "null"
        schema = named[schema]
    kind = schema["type"]
    if kind in ("record", "error"):
        name = schema["name"]
        if name not in known:
            named[name], known[name] = schema, None
            each = [_has_bytes(one["type"], named, known) for one in schema["fields"]]
            known[name] = any(each)
        found = known[name]
        if found is None:
            raise InvalidConfig([f"the Avro record {name} contains itself"])
        return found
    if kind in ("enum", "fixed"):
        named[schema["name"]] = schema
        return bool(kind == "enum" or schema["size"] > 0)
    if kind == "array" and not _has_bytes(schema["items"], named, known):
        raise InvalidConfig(["the Avro schema has an array whose items take no bytes"])
    if kind == "map":
        _has_bytes(schema["values"], named, known)
    return kind in ("array", "map") or _has_bytes(kind, named, known)


def _without_uuids(schema: object) -> object:
    """Return the schema with UUIDs as strings, as they are encoded."""
    if isinstance(schema, list):
        return [_without_uuids(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_uuids(value)
        for name, value in schema.items()
        if not (name == "logicalType" and value == "uuid")
    }


class _TypeReader:
    """Converts Avro types to Arrow types; remembers named ones."""

    def __init__(self) -> None:
        self._named: dict[str, object] = {}

    def type_of(self, schema: object, where: str, depth: int) -> pa.DataType:
        """Return the Arrow type. Raises ``InvalidConfig`` if there is none."""
        if depth == 0:
            raise InvalidConfig([f"the Avro schema of {where} is nested too deep, or in itself"])
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) != 1:
                raise InvalidConfig([f"{where} is a union of several types; no column has it"])
            return self.type_of(others[0], where, depth - 1)
        if isinstance(schema, str):
            if schema in _TYPES:
                return _TYPES[schema]
            if schema in self._named:
                return self.type_of(self._named[schema], where, depth - 1)
            raise InvalidConfig([f"{where} has the type {schema!r}; no column has it"])
        assert isinstance(schema, dict)
        return self._complex(schema, where, depth)

    def _complex(self, schema: dict[str, object], where: str, depth: int) -> pa.DataType:
        if "name" in schema:
            self._remember(schema)
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if logical in _LOGICAL_TYPES:
            return _LOGICAL_TYPES[str(logical)]
        match kind:
            case "record":
                fields = schema["fields"]
                assert isinstance(fields, list)
                found = pa.struct(
                    [
                        (
                            one["name"],
                            self.type_of(one["type"], f"{where}.{one['name']}", depth - 1),
                        )
                        for one in fields
                    ]
                )
            case "array":
                found = pa.list_(self.type_of(schema["items"], f"{where}[]", depth - 1))
            case "map":
                values = self.type_of(schema["values"], f"{where}[]", depth - 1)
                found = pa.map_(pa.string(), values)
            case "fixed":
                found = pa.binary()  # Delta has none of a fixed size
            case _:
                found = self.type_of(kind, where, depth - 1)
        return found

    def _remember(self, schema: dict[str, object]) -> None:
        name, space = str(schema["name"]), schema.get("namespace")
        self._named[name] = schema
        if space and "." not in name:
            self._named[f"{space}.{name}"] = schema
