"""The columns of a read: those of Spark's Kafka source, in its order and types.

Source: the schema table of Spark's Kafka integration guide.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)


def spark_schema(*, include_headers: bool) -> StructType:
    """Return ``arrow_schema`` of the SDK as Spark types. All are nullable, as Spark requires."""
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
