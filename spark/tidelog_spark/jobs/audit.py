"""The job ``audit``, for ``spark-submit`` and ``tidelog job audit``.

spark-submit …/tidelog_spark/jobs/audit.py --metadata URL --objects URL [TOPIC]...
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from tidelog.cli.bucket import ClusterId
from tidelog.cli.failures import FAILED, UsageError
from tidelog.cli.options import Json
from tidelog.cli.output import print_json, print_table
from tidelog.cli.stores import DataDir, Metadata, Objects, locate_stores

from tidelog_spark.jobs.auditing import AuditReport, AuditRequest, audit
from tidelog_spark.jobs.command_line import run_job
from tidelog_spark.jobs.producers import EXPIRATION_MS

REPORT_FORMATS = ("parquet", "json")

_PARTITION_COLUMNS = (
    "topic string, partition int, start_offset long, end_offset long, segment_count long,"
    " size_bytes long, batch_count long, record_count long, problem_count long"
)
_PROBLEM_COLUMNS = (
    "topic string, partition int, check string, object string, offset long, problem string"
)


def audit_command(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Only these; all by default.")
    ] = None,
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="A bucket to audit by itself, without a metadata store.",
            show_default=False,
        ),
    ] = None,
    cluster_id: ClusterId = None,
    compacted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="A topic that was compacted once, so that offsets may be missing.",
            show_default=False,
        ),
    ] = None,
    producer_expiration_ms: Annotated[
        int,
        typer.Option(
            min=1, help="producer.id.expiration.ms: after so long a producer may begin anywhere."
        ),
    ] = EXPIRATION_MS,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where Spark adds the report, in the folders 'partitions' and 'problems'.",
            show_default=False,
        ),
    ] = None,
    report_format: Annotated[str, typer.Option(help="parquet or json.")] = "parquet",
    json: Json = False,
) -> None:
    """Check CRCs, offsets, hashes and producers' sequences over all of the tiered history.

    Exit status: 0 all is well, 1 something is not.
    """
    if report_format not in REPORT_FORMATS:
        raise UsageError(f"--report-format must be one of {', '.join(REPORT_FORMATS)}")
    if from_ is None and cluster_id is not None:
        raise UsageError("--cluster-id goes with --from")
    if from_ is None:
        locations = locate_stores(data_dir, metadata, objects, needs_objects=True)
        metadata, objects = locations.metadata, locations.objects
    else:
        metadata, objects = None, from_
    assert objects is not None
    request = AuditRequest(
        objects=objects,
        metadata=metadata,
        cluster_id=cluster_id,
        topics=tuple(topics or ()),
        compacted=tuple(compacted or ()),
        producer_expiration_ms=producer_expiration_ms,
    )
    spark = SparkSession.builder.appName("tidelog audit").getOrCreate()
    try:
        found = audit(spark, request)
        if report is not None:
            write_report(spark, found, report, format=report_format)
    finally:
        spark.stop()
    _print(found, is_json=json)
    if found.problems:
        raise typer.Exit(FAILED)


def write_report(spark: SparkSession, report: AuditReport, url: str, *, format: str) -> None:
    """Add the report's two tables to the folders below ``url``, with the time in each row."""
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


def _print(report: AuditReport, *, is_json: bool) -> None:
    if is_json:
        print_json(report.document())
        return
    if report.partitions:
        names = ("topic", "partition", "segment_count", "record_count", "problem_count")
        columns = [name.removesuffix("_count") for name in names]
        print_table(columns, [[getattr(row, name) for name in names] for row in report.partitions])
    for problem in report.problems:
        where = "" if problem.topic is None else f"{problem.topic}-{problem.partition}: "
        offset = "" if problem.offset is None else f" at offset {problem.offset}"
        print(f"{where}{problem.object}{offset}: {problem.problem}")
    count = len(report.problems)
    print(f"{count} problem{'s' * (count != 1)}" if count else "all is well")


if __name__ == "__main__":
    run_job("audit", audit_command)
