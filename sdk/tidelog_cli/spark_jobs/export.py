"""The job ``export``, for ``spark-submit`` and ``tidelog job export``.

spark-submit …/tidelog_cli/spark_jobs/export.py --metadata URL --objects URL --to URL TOPIC...
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tidelog_core.schemas.model import ID_MAX
from tidelog_spark.jobs.bucket_schemas import LATEST, read_schemas
from tidelog_spark.jobs.decoding import FRAMINGS, DecoderSpec
from tidelog_spark.jobs.erasing import EraseRequest
from tidelog_spark.jobs.erasing import apply_erasures as erase_rows
from tidelog_spark.jobs.export_table import ExportTable, TimePartitions
from tidelog_spark.jobs.exporting import ExportRequest, ExportResult, export
from tidelog_spark.jobs.parquet_table import ParquetTable
from tidelog_spark.jobs.task_runner import SparkTasks

from tidelog_cli.exported_erasures import erasable_of, erasure_document, report_erased
from tidelog_cli.failures import UsageError
from tidelog_cli.options import Json, parse_settings, require_choice
from tidelog_cli.output import print_json
from tidelog_cli.spark_jobs.command_line import require_topics, run_job, spark_session
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores

TABLE_FORMATS = ("parquet", "iceberg", "delta")
BAD_RECORDS = ("fail", "column")
LATEST_NAME = "latest"
ISOLATIONS = ("read_committed", "read_uncommitted")


def export_command(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to export.")],
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    table_format: Annotated[str, typer.Option(help="parquet, iceberg or delta.")] = "parquet",
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The folder of Parquet files, or of the Delta table."),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAMESPACE.NAME", help="The Iceberg table to write to.")
    ] = None,
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Property of the Iceberg catalog, as for pyiceberg; may be repeated.",
        ),
    ] = None,
    partition_by: Annotated[
        str, typer.Option(help="Partition by none, day or hour of the record's timestamp (UTC).")
    ] = "day",
    value_format: Annotated[
        str,
        typer.Option(
            help="raw, json, avro, protobuf, or registry: by the schemas of the registry, which are"
            " read from the bucket."
        ),
    ] = "raw",
    schema: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSON Schema, Avro schema, or Protobuf's descriptor set.",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="The registry's subject that gives the columns; TOPIC-value by default."),
    ] = None,
    schema_version: Annotated[
        str, typer.Option(help="The version of the subject that gives the columns.")
    ] = "latest",
    message: Annotated[str, typer.Option(help="Protobuf's full name of the message.")] = "",
    framing: Annotated[
        str, typer.Option(help="none, or confluent: a schema id precedes each value.")
    ] = "none",
    bad_records: Annotated[
        str,
        typer.Option(help="fail, or column: keep undecodable values in a column with the reason."),
    ] = "fail",
    headers: Annotated[bool, typer.Option("--headers", help="Export headers too.")] = False,
    isolation: Annotated[str, typer.Option(help="Whether to export aborted transactions.")] = (
        "read_committed"
    ),
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="Continue if retention deleted records before the export."
        ),
    ] = False,
    max_offsets: Annotated[
        int | None, typer.Option(min=1, help="Largest number of offsets per partition in this run.")
    ] = None,
    apply_erasures: Annotated[
        bool,
        typer.Option(
            "--apply-erasures", help="Then erase the rows of keys that were erased from the topics."
        ),
    ] = False,
    expire_snapshots: Annotated[
        bool,
        typer.Option(
            "--expire-snapshots",
            help="With --apply-erasures: give up older snapshots that still have these rows, and"
            " delete their files.",
        ),
    ] = False,
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
    for name, given, known in (
        ("table-format", table_format, TABLE_FORMATS),
        ("partition-by", partition_by, tuple(one.value for one in TimePartitions)),
        ("bad-records", bad_records, BAD_RECORDS),
        ("isolation", isolation, ISOLATIONS),
    ):
        require_choice(f"--{name}", given, known)
    by_registry = value_format == "registry"
    if value_format in ("json", "avro", "protobuf") and schema is None:
        raise UsageError(
            f"--value-format {value_format} needs --schema; for schemas of the registry give"
            " --value-format registry"
        )
    if by_registry and schema is not None:
        raise UsageError(
            "--value-format registry reads schemas from the bucket: leave out --schema"
        )
    if not by_registry and (subject is not None or schema_version != LATEST_NAME):
        raise UsageError("--subject and --schema-version need --value-format registry")
    if by_registry and subject is None and len(set(topics)) > 1:
        raise UsageError("the topics' values need one subject for the columns: give --subject")
    locations = locate_stores(data_dir, metadata, objects)
    require_choice("--framing", framing, FRAMINGS)
    registry = None
    if by_registry:
        registry = read_schemas(
            locations.metadata,
            locations.objects,
            subject=subject or f"{topics[0]}-value",
            version=_version(schema_version),
        )
    partitions = TimePartitions(partition_by)
    target = _table(table_format, partitions, to=to, table=table, catalog=catalog or [])
    request = ExportRequest(
        metadata=locations.metadata,
        objects=locations.objects,
        topics=tuple(dict.fromkeys(topics)),
        decoder=DecoderSpec(
            format=value_format,
            schema=b"" if schema is None else schema.read_bytes(),
            message=message,
            framing=framing,
            registry=registry,
        ),
        partitions=partitions,
        include_headers=headers,
        keeps_bad_records=bad_records == "column",
        is_read_committed=isolation == "read_committed",
        fail_on_data_loss=not skip_lost,
        offsets_per_partition_max=max_offsets,
    )
    # Before Spark starts, so that an invalid schema fails at once.
    request.decoder.open()
    require_topics(locations.metadata, request.topics)
    with spark_session("export") as spark:
        runner = SparkTasks(spark)
        result = export(runner, request, target)
        erased = None
        if apply_erasures:
            wanted = EraseRequest(
                metadata=locations.metadata,
                objects=locations.objects,
                topics=request.topics,
                expires=expire_snapshots,
            )
            erased = erase_rows(runner, wanted, erasable_of(target))
    if json:
        print_json({**_document(result), **erasure_document(erased)})
    else:
        print(f"{result.row_count} rows exported in {result.file_count} files")
    if erased is not None:
        report_erased(erased, receipt, is_json=json)


def _version(text: str) -> int:
    if text == LATEST_NAME:
        return LATEST
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= ID_MAX):
        raise UsageError(f"--schema-version {text!r} must be latest, or a version's number")
    return int(text)


def _table(
    table_format: str,
    partitions: TimePartitions,
    *,
    to: str | None,
    table: str | None,
    catalog: list[str],
) -> ExportTable:
    if table_format == "iceberg":
        return _iceberg(table, catalog, partitions)
    if to is None:
        raise UsageError(f"--table-format {table_format} needs --to")
    if table is not None or catalog:
        raise UsageError("--table and --catalog need --table-format iceberg")
    if table_format == "delta":
        from tidelog_spark.jobs.delta_table import DeltaLakeTable

        return DeltaLakeTable(to, partitions)
    return ParquetTable(to)


def _iceberg(table: str | None, properties: list[str], partitions: TimePartitions) -> ExportTable:
    from tidelog_spark.jobs.iceberg_table import IcebergTable, open_catalog

    if table is None or not properties:
        raise UsageError("--table-format iceberg needs --table and --catalog")
    catalog = open_catalog(parse_settings("--catalog", properties))
    return IcebergTable(catalog, table, partitions)


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
