"""``tidelog job iceberg`` keeps an Iceberg table up to date with topics, without Spark.

A run is an export (``tidelog_spark.jobs.exporting``) whose tasks run in this process. The table's
next offsets are in the commit that appends the rows, so a run may be killed anywhere, or run
twice at once: each record is in the table once.
"""

from __future__ import annotations

import time
from contextlib import closing
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.exported_erasures import erasable_of, report_erased
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import Json, parse_settings, require_choice
from tidelog_cli.output import note
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog_spark.jobs.erasing import EraseRequest
    from tidelog_spark.jobs.export_table import ExportTable
    from tidelog_spark.jobs.exporting import ExportRequest

OFFSETS_PER_COMMIT = 1_000_000  # of a partition; a backlog is committed in several steps
FAILURES_MAX = 20  # runs in a row that fail, until the command gives up
PARTITIONINGS = ("none", "day", "hour")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def iceberg(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics of the table.")],
    *,
    table: Annotated[str, typer.Option(metavar="NAMESPACE.NAME", help="The Iceberg table.")],
    catalog: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE",
            help="Property of the Iceberg catalog, as for pyiceberg; may be repeated.",
        ),
    ],
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Run again after this time, as 30s, 5m or 1h, until it is stopped.",
            show_default="one run",
        ),
    ] = None,
    partition_by: Annotated[
        str, typer.Option(help="Partition by none, day or hour of the record's timestamp (UTC).")
    ] = "day",
    tail: Annotated[
        bool,
        typer.Option(
            "--tail", help="Of diskless topics, append what is acknowledged and not tiered, too."
        ),
    ] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Append headers too.")] = False,
    apply_erasures: Annotated[
        bool,
        typer.Option(
            "--apply-erasures", help="Erase the rows of keys that were erased from the topics."
        ),
    ] = False,
    expire_snapshots: Annotated[
        bool,
        typer.Option(
            "--expire-snapshots",
            help="With --apply-erasures: give up older snapshots that still have these rows.",
        ),
    ] = False,
    max_offsets: Annotated[
        int, typer.Option(min=1, help="Largest number of offsets per partition in a commit.")
    ] = OFFSETS_PER_COMMIT,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    json: Json = False,
) -> None:
    """Append new records to an Iceberg table, each once, now or again and again.

    Runs in this process, without Spark and Java, beside running nodes or without them. It can be
    stopped or killed at any time and started again, also twice at once. The table is created by the
    first run; DuckDB, Spark, Trino and pyiceberg read it. With --every, failures that may pass (a
    catalog or bucket that is away, another run's commit) are noted, and the next run goes on.
    """
    from tidelog_spark.jobs.erasing import EraseRequest
    from tidelog_spark.jobs.export_table import TimePartitions
    from tidelog_spark.jobs.exporting import ExportRequest
    from tidelog_spark.jobs.iceberg_table import IcebergTable, open_catalog

    require_choice("--partition-by", partition_by, PARTITIONINGS)
    if expire_snapshots and not apply_erasures:
        raise UsageError("--expire-snapshots needs --apply-erasures")
    pause_seconds = None if every is None else parse_time(every)
    locations = locate_stores(data_dir, metadata, objects)
    partitions = TimePartitions(partition_by)
    request = ExportRequest(
        metadata=locations.metadata,
        objects=locations.objects,
        topics=tuple(dict.fromkeys(topics)),
        partitions=partitions,
        include_headers=headers,
        offsets_per_partition_max=max_offsets,
        include_tail=tail,
    )
    erasing = None
    if apply_erasures:
        erasing = EraseRequest(
            metadata=locations.metadata,
            objects=locations.objects,
            topics=request.topics,
            expires=expire_snapshots,
        )
    properties = parse_settings("--catalog", catalog)

    def run() -> None:
        with closing(open_catalog(properties)) as opened:
            target = IcebergTable(opened, table, partitions)
            run_once(target, request, erasing, is_json=json)

    if pause_seconds is None:
        run()
    else:
        run_again_and_again(run, pause_seconds)


def run_once(
    table: ExportTable, request: ExportRequest, erasing: EraseRequest | None, *, is_json: bool
) -> None:
    """Append until there is nothing new, in commits of bounded size; then follow erasures."""
    from tidelog_spark.jobs.erasing import apply_erasures
    from tidelog_spark.jobs.exporting import export
    from tidelog_spark.jobs.task_runner import LocalTasks

    runner = LocalTasks()
    while (result := export(runner, request, table)).ranges:
        if is_json:
            print(dumps({"run_id": result.run_id, "rows": result.row_count}), flush=True)
        else:
            print(f"{result.row_count} rows appended in {result.file_count} files", flush=True)
    if erasing is not None:
        erased = apply_erasures(runner, erasing, erasable_of(table))
        report_erased(erased, None, is_json=is_json)


def run_again_and_again(run: Callable[[], None], pause_seconds: float) -> None:
    """Run until stopped; the next run starts so long after the start of the one before.

    Raises the error of a run that cannot pass by itself, and ``CommandFailed`` after
    ``FAILURES_MAX`` failed runs in a row.
    """
    from tidelog_core.errors import OutcomeUnknown, TidelogError
    from tidelog_spark.jobs.export_table import ExportConflict

    failed_count = 0
    while True:
        begun = time.monotonic()
        try:
            run()
            failed_count = 0
        except typer.Exit:
            failed_count = 0  # An erasure is not complete yet, which was noted.
        except BrokenPipeError:
            raise  # Nobody reads the output any more.
        except (TidelogError, OSError) as error:
            # An OSError is one of the files' store, such as no answer from S3.
            if isinstance(error, TidelogError) and not (
                error.retriable or isinstance(error, ExportConflict | OutcomeUnknown)
            ):
                raise
            failed_count += 1
            if failed_count >= FAILURES_MAX:
                raise CommandFailed(f"{failed_count} runs in a row have failed: {error}") from None
            note(f"{error}; the next run goes on")
        time.sleep(max(0.0, begun + pause_seconds - time.monotonic()))


def parse_time(text: str) -> float:
    """Return the seconds of a time like 30s, 5m or 1h. Raises ``UsageError``."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal() or int(number) == 0:
        raise UsageError(f"--every {text!r} must be a number with s, m, h or d, such as 5m")
    return int(number) * _UNITS[unit]
