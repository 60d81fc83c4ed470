"""The columns of a read: those of Spark's Kafka source, in its order and types.

Source: the schema table of Spark's Kafka integration guide.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE))

_FIELDS = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP_TYPE),
    pa.field("timestampType", pa.int32()),
)


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Return the schema of the record batches that Spark receives."""
    if include_headers:
        return pa.schema([*_FIELDS, pa.field("headers", HEADERS_TYPE)])
    return pa.schema(_FIELDS)


def spark_schema(*, include_headers: bool) -> StructType:
    """Return the same columns as Spark types. All are nullable, as Spark requires."""
    columns = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if include_headers:
        header = StructType().add("key", StringType()).add("value", BinaryType())
        columns.add("headers", ArrayType(header))
    return columns
