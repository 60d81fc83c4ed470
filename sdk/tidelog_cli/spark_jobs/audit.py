"""The job ``audit``, for ``spark-submit`` and ``tidelog job audit``.

spark-submit …/tidelog_cli/spark_jobs/audit.py --metadata URL --objects URL [TOPIC]...
"""

from __future__ import annotations

from typing import Annotated

import typer
from tidelog_spark.jobs.audit.audit_report import write_report
from tidelog_spark.jobs.audit.auditing import AuditReport, AuditRequest, audit
from tidelog_spark.jobs.audit.producers import EXPIRATION_MS

from tidelog_cli.failures import FAILED, UsageError
from tidelog_cli.named_arguments import OnlyTopics
from tidelog_cli.options import Json, require_choice
from tidelog_cli.output import counted, note, print_json, print_table, show_reading
from tidelog_cli.spark_jobs.command_line import require_topics, run_job, spark_session
from tidelog_cli.stores import ClusterId, DataDir, FromBucket, Metadata, Objects, locate_stores

REPORT_FORMATS = ("parquet", "json")


def audit_command(
    topics: OnlyTopics = None,
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    from_: FromBucket = None,
    cluster_id: ClusterId = None,
    compacted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="A topic that was compacted before, so offsets may be missing.",
            show_default=False,
        ),
    ] = None,
    producer_expiration_ms: Annotated[
        int,
        typer.Option(
            min=1, help="producer.id.expiration.ms: older producers may start at any sequence."
        ),
    ] = EXPIRATION_MS,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where to append the report, in the folders 'partitions' and 'problems'.",
            show_default=False,
        ),
    ] = None,
    report_format: Annotated[str, typer.Option(help="parquet or json.")] = "parquet",
    json: Json = False,
) -> None:
    """Check CRCs, offsets, hashes and producers' sequences of all tiered segments.

    Exit status: 0 no problems, 1 problems found.
    """
    require_choice("--report-format", report_format, REPORT_FORMATS)
    if from_ is None and cluster_id is not None:
        raise UsageError("--cluster-id needs --from")
    if from_ is None:
        locations = locate_stores(data_dir, metadata, objects)
        metadata, bucket = locations.metadata, locations.objects
        require_topics(metadata, [*(topics or ()), *(compacted or ())])
    else:
        metadata, bucket = None, from_
    request = AuditRequest(
        objects=bucket,
        metadata=metadata,
        cluster_id=cluster_id,
        topics=tuple(topics or ()),
        compacted=tuple(compacted or ()),
        producer_expiration_ms=producer_expiration_ms,
    )
    with spark_session("audit") as spark:
        found = audit(spark, request, show_reading=show_reading)
        if report is not None:
            write_report(spark, found, report, format=report_format)
    for text in found.notes:
        note(text)
    _print(found, is_json=json)
    if found.problems:
        raise typer.Exit(FAILED)


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
    print(counted(count, "problem") if count else "all is well")


if __name__ == "__main__":
    run_job("audit", audit_command)
