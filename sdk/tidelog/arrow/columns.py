"""The columns of records as Arrow: those of Spark's Kafka source, in its order and types.

Source: the schema table of Spark's Kafka integration guide.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

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


@cache
def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Return the schema of record batches."""
    if include_headers:
        return pa.schema([*_FIELDS, pa.field("headers", HEADERS_TYPE)])
    return pa.schema(_FIELDS)
