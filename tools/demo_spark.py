"""The demo's Spark side: read a topic from the object store and fingerprint it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tools.content import Content


def read_with_spark(metadata: str, objects: str, *, topic: str) -> Content:
    """Return the content of the topic's tiered segments, read by a local Spark."""
    from tools.local_spark import local_session

    spark = local_session("tidelog-demo")
    try:
        records = (
            spark.read.format("tidelog")
            .option("metadata", metadata)
            .option("objects", objects)
            .option("subscribe", topic)
            .load()
            .select("key", "value")
        )
        parts = records.mapInArrow(_fingerprint, "records long, bytes long, hash string").collect()
    finally:
        spark.stop()
    total = Content()
    for part in parts:
        total = total.merged(Content(part["records"], part["bytes"], int(part["hash"], 16)))
    return total


def _fingerprint(batches: Iterable[Any]) -> Iterator[Any]:
    """Fold one task's rows, in Spark's Python worker, into a single row."""
    import pyarrow as pa

    content = Content()
    for batch in batches:
        keys, values = (column.to_pylist() for column in batch.columns)
        for key, value in zip(keys, values, strict=True):
            content = content.with_record(key, value)
    row = {"records": content.record_count, "bytes": content.size_bytes, "hash": content.digest}
    yield pa.RecordBatch.from_pylist([row])
