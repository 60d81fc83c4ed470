"""The columns of the rows that are written, as by Spark's Kafka sink, and ``timestamp``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)
from tidelog.errors import InvalidConfig

from tidelog_spark.sink.options import SinkOptions


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise ``InvalidConfig`` with all reasons why the columns cannot become records."""
    kinds = {field.name: field.dataType for field in schema}
    names = [field.name for field in schema]
    problems = [f"there are several columns {name!r}" for name in _COLUMNS if names.count(name) > 1]
    # Spark takes the names for the same; here such a column would be ignored, and its values lost.
    in_other_case = {
        name.lower(): name for name in kinds if name not in _COLUMNS and name.lower() in _COLUMNS
    }
    problems += [
        f"column {name!r} must be named {right!r}" for right, name in in_other_case.items()
    ]
    problems += [
        f"column {name!r} is {kinds[name].simpleString()}; it must be {allowed}"
        for name, (allowed, is_right) in _COLUMNS.items()
        if name in kinds and not is_right(kinds[name])
    ]
    there = kinds.keys() | in_other_case.keys()
    if "value" not in there:
        problems.append("column 'value' is missing: add it, with the records' values")
    if "topic" not in there and options.batches.topic is None:
        problems.append("give the option 'topic', or a column 'topic' with every row's topic")
    if problems:
        raise InvalidConfig(problems)


def _is_binary(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType]
    return fields == [("key", StringType), ("value", BinaryType)]


_COLUMNS: Mapping[str, tuple[str, Callable[[DataType], bool]]] = {
    "topic": ("string", lambda kind: isinstance(kind, StringType)),
    "partition": ("int", lambda kind: isinstance(kind, IntegerType)),
    "key": ("string or binary", _is_binary),
    "value": ("string or binary", _is_binary),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
    "timestamp": ("timestamp", lambda kind: isinstance(kind, TimestampType)),
}
