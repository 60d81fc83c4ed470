"""The job ``export``, for ``spark-submit`` and ``tidelog job export``.

spark-submit …/tidelog_cli/spark_jobs/export.py --metadata URL --objects URL --to URL TOPIC...
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from tidelog_spark.jobs.erasure.erasing import apply_erasures as erase_rows
from tidelog_spark.jobs.export.exporting import ExportResult, export
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.tables.export_table import ExportTable, TimePartitions
from tidelog_spark.jobs.tables.table_lease import TableLease
from tidelog_spark.jobs.tables.table_places import check_location, table_url
from tidelog_spark.jobs.task_runner import SparkTasks

from tidelog_cli.failures import UsageError
from tidelog_cli.options import Json, require_choice
from tidelog_cli.output import print_json
from tidelog_cli.spark_jobs.command_line import require_topics, run_job, spark_session
from tidelog_cli.storage.export_options import (
    LATEST_NAME,
    ApplyErasures,
    BadRecords,
    Catalog,
    CatalogFile,
    ExpireSnapshots,
    Framing,
    Headers,
    Isolation,
    Message,
    PartitionBy,
    RecordOptions,
    SchemaFile,
    SchemaVersion,
    SkipLost,
    Subject,
    ValueFormat,
    catalog_properties,
    erase_request,
    require_packages,
)
from tidelog_cli.storage.exported_erasures import erasable_of, erasure_document, report_erased
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores

TABLE_FORMATS = ("parquet", "iceberg", "delta")


def export_command(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to export.")],
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    table_format: Annotated[str, typer.Option(help="parquet, iceberg or delta.")] = "parquet",
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The folder of Parquet files, or of the Delta table: a URL, or a path here.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAMESPACE.NAME", help="The Iceberg table to write to.")
    ] = None,
    catalog: Catalog = None,
    catalog_file: CatalogFile = None,
    partition_by: PartitionBy = "day",
    value_format: ValueFormat = "raw",
    schema: SchemaFile = None,
    subject: Subject = None,
    schema_version: SchemaVersion = LATEST_NAME,
    message: Message = "",
    framing: Framing = "none",
    bad_records: BadRecords = "fail",
    headers: Headers = False,
    isolation: Isolation = "read_committed",
    skip_lost: SkipLost = False,
    max_offsets: Annotated[
        int | None, typer.Option(min=1, help="Largest number of offsets per partition in this run.")
    ] = None,
    apply_erasures: ApplyErasures = False,
    expire_snapshots: ExpireSnapshots = False,
    receipt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="With --apply-erasures: write the receipts of this run as JSON.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Export new records to Parquet files, an Iceberg or a Delta table, each once.

    Only tiered records are exported; a run continues at the end of the last committed one.
    With --apply-erasures the exit status is 1 while the table does not follow an erasure
    completely; run the command again.
    """
    if not apply_erasures and (expire_snapshots or receipt is not None):
        raise UsageError("--expire-snapshots and --receipt need --apply-erasures")
    require_choice("--table-format", table_format, TABLE_FORMATS)
    require_packages("export", table_format, value_format)
    locations = locate_stores(data_dir, metadata, objects)
    request = RecordOptions(
        partition_by=partition_by,
        value_format=value_format,
        schema=schema,
        subject=subject,
        schema_version=schema_version,
        message=message,
        framing=framing,
        bad_records=bad_records,
        headers=headers,
        isolation=isolation,
        skip_lost=skip_lost,
        max_offsets=max_offsets,
    ).request(topics, locations)
    target = _table(
        table_format,
        request.partitions,
        to=to,
        table=table,
        catalog=catalog or [],
        catalog_file=catalog_file,
    )
    # Before Spark starts, so that an invalid schema or location fails at once.
    request.decoder.open()
    if to is not None:
        check_location(table_url(to), request.objects)
    require_topics(locations.metadata, request.topics)
    with spark_session("export") as spark:
        runner = SparkTasks(spark)
        erased = None
        with TableLease() as lease:
            # An Iceberg table may have a schedule, whose commits would come before this one.
            result = export(
                runner, request, target, lease=lease if table_format == "iceberg" else None
            )
            if apply_erasures:
                wanted = erase_request(request, expires=expire_snapshots)
                erased = erase_rows(runner, wanted, erasable_of(target))
    if json:
        print_json({**_document(result), **erasure_document(erased)})
    else:
        print(f"{result.row_count} rows exported in {result.file_count} files")
    if erased is not None:
        report_erased(erased, receipt, is_json=json)


def _table(
    table_format: str,
    partitions: TimePartitions,
    *,
    to: str | None,
    table: str | None,
    catalog: Sequence[str],
    catalog_file: Path | None,
) -> ExportTable:
    if table_format == "iceberg":
        from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog

        if table is None:
            raise UsageError("--table-format iceberg needs --table")
        opened = open_catalog(catalog_properties(catalog, catalog_file))
        return IcebergTable(opened, table, partitions)
    if to is None:
        raise UsageError(f"--table-format {table_format} needs --to")
    # A variable of the environment may name the file for other commands.
    if table is not None or catalog:
        raise UsageError("--table and --catalog need --table-format iceberg")
    if table_format == "delta":
        from tidelog_spark.jobs.formats.delta_table import DeltaLakeTable

        return DeltaLakeTable(table_url(to), partitions)
    return ParquetTable(table_url(to))


def _document(result: ExportResult) -> dict[str, object]:
    return {
        "run_id": result.run_id,
        "rows": result.row_count,
        "bytes": result.size_bytes,
        "files": result.file_count,
        "partitions": [
            {
                "topic": one.name.topic,
                "partition": one.name.partition,
                "start_offset": one.start,
                "end_offset": one.end,
            }
            for one in result.ranges
        ],
    }


if __name__ == "__main__":
    run_job("export", export_command)
