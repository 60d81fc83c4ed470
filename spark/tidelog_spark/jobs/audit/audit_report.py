"""The report of an audit as two tables, to which every audit appends."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from tidelog_spark.jobs.audit.auditing import AuditReport

_PARTITION_COLUMNS = (
    "topic string, partition int, start_offset long, end_offset long, segment_count long,"
    " size_bytes long, batch_count long, record_count long, problem_count long"
)
_PROBLEM_COLUMNS = (
    "topic string, partition int, check string, object string, offset long, problem string"
)


def write_report(spark: SparkSession, report: AuditReport, url: str, *, format: str) -> None:
    """Append the report's two tables below ``url``, with the time in each row."""
    now = datetime.now(UTC)
    for name, rows, columns in (
        ("partitions", report.partitions, _PARTITION_COLUMNS),
        ("problems", report.problems, _PROBLEM_COLUMNS),
    ):
        values = [(now, *row) for row in map(_values, rows)]
        table = spark.createDataFrame(values, f"audited_at timestamp, {columns}")
        table.coalesce(1).write.mode("append").format(format).save(f"{url}/{name}")


def _values(row: object) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in row.__slots__)  # type: ignore[attr-defined]
