"""``tidelog job iceberg`` keeps an Iceberg table up to date with topics, without Spark.

A run is an export (``tidelog_spark.jobs.export.exporting``) whose tasks run in this process. The
table's next offsets are in the commit that appends the rows, so a run may be killed anywhere, or
run twice at once: each record is in the table once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from json import dumps
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import Json
from tidelog_cli.output import note
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
from tidelog_cli.storage.exported_erasures import erasable_of, report_erased
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores

if TYPE_CHECKING:
    from tidelog_spark.jobs.erasure.erasing import EraseRequest, EraseResult
    from tidelog_spark.jobs.export.exporting import ExportRequest, ExportResult
    from tidelog_spark.jobs.tables.export_table import ExportTable
    from tidelog_spark.jobs.tables.table_lease import TableLease

CONFLICTS_MAX = 3  # in a row; then the run has failed
OFFSETS_PER_COMMIT = 1_000_000  # of a partition; a backlog is committed in several steps
FAILURES_MAX = 20  # runs in a row that fail, until the command gives up
# After a failed run. The pauses of 20 failures are 75 minutes together.
BACKOFF_SECONDS_MIN = 5.0
BACKOFF_SECONDS_MAX = 300.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

T = TypeVar("T")


def iceberg(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics of the table.")],
    *,
    table: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE.NAME", help="The Iceberg table.", show_default=False),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Instead of --table: each topic has a table of its name in this namespace, with"
            " _ for dots.",
            show_default=False,
        ),
    ] = None,
    catalog: Catalog = None,
    catalog_file: CatalogFile = None,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Run again after this time, as 30s, 5m or 1h, until it is stopped.",
            show_default="one run",
        ),
    ] = None,
    partition_by: PartitionBy = "day",
    value_format: ValueFormat = "raw",
    schema: SchemaFile = None,
    subject: Subject = None,
    schema_version: SchemaVersion = LATEST_NAME,
    message: Message = "",
    framing: Framing = "none",
    bad_records: BadRecords = "fail",
    tail: Annotated[
        bool,
        typer.Option(
            "--tail", help="Of diskless topics, append what is acknowledged and not tiered, too."
        ),
    ] = False,
    headers: Headers = False,
    isolation: Isolation = "read_committed",
    skip_lost: SkipLost = False,
    apply_erasures: ApplyErasures = False,
    expire_snapshots: ExpireSnapshots = False,
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
    stopped or killed at any time and started again, also twice at once: a run that finds another
    one at work on the table says so, leaves the table to it, and ends well. The table is created by
    the first run; DuckDB, Spark, Trino and pyiceberg read it. With --every, failures that may pass
    (a catalog or bucket that is away, another run's commit) are noted, and the run is tried again
    after pauses that grow to five minutes.
    """
    if expire_snapshots and not apply_erasures:
        raise UsageError("--expire-snapshots needs --apply-erasures")
    require_packages("iceberg", "iceberg", value_format)
    pause_seconds = None if every is None else parse_time(every)
    tables = tables_of(topics, table, namespace)
    options = RecordOptions(
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
        tail=tail,
    )
    locations = locate_stores(data_dir, metadata, objects)
    requests = {name: options.request(of, locations) for name, of in tables.items()}
    for request in requests.values():
        request.decoder.open()  # An invalid schema fails at once.
    properties = catalog_properties(catalog or [], catalog_file)

    from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
    from tidelog_spark.jobs.tables.table_lease import TableLease

    def run() -> None:
        with closing(open_catalog(properties)) as opened:

            def bring_up_to_date(name: str) -> None:
                request = requests[name]
                erasing = None
                if apply_erasures:
                    erasing = erase_request(request, expires=expire_snapshots)
                target = IcebergTable(opened, name, request.partitions)
                with TableLease() as lease:
                    run_once(target, request, erasing, lease, is_json=json)

            run_each(tuple(requests), bring_up_to_date)

    if pause_seconds is None:
        run()
    else:
        run_again_and_again(run, pause_seconds)


def tables_of(
    topics: Sequence[str], table: str | None, namespace: str | None
) -> dict[str, list[str]]:
    """Return the topics of each table. Raises ``UsageError``."""
    if (table is None) == (namespace is None):
        raise UsageError("give --table, or --namespace for a table of each topic")
    if table is not None:
        return {table: list(topics)}
    found: dict[str, list[str]] = {}
    for topic in dict.fromkeys(topics):
        name = f"{namespace}.{topic.replace('.', '_')}"
        if name in found:
            raise UsageError(f"{found[name][0]} and {topic} would have one table, {name}")
        found[name] = [topic]
    return found


def run_each(tables: Sequence[str], run: Callable[[str], None]) -> None:
    """Run for all tables, then raise an error of one that failed; one that lasts comes first."""
    from tidelog_core.errors import TidelogError

    failed: list[Exception] = []
    for name in tables:
        try:
            run(name)
        except BrokenPipeError:
            raise  # Nobody reads the output any more.
        except (TidelogError, OSError, typer.Exit) as error:
            failed.append(error)
            if len(tables) > 1 and not isinstance(error, typer.Exit):
                note(f"{name}: {error}")
    if failed:
        raise min(failed, key=lambda one: (may_pass(one), isinstance(one, typer.Exit)))


def may_pass(error: Exception) -> bool:
    """Return whether the next run may succeed without anybody's help."""
    from tidelog_core.errors import OutcomeUnknown, TidelogError
    from tidelog_spark.jobs.tables.export_table import ExportConflict

    if isinstance(error, TidelogError):
        return error.retriable or isinstance(error, ExportConflict | OutcomeUnknown)
    # An OSError is one of the files' store, such as no answer from S3. An exit says that an erasure
    # is not complete.
    return True


def run_once(
    table: ExportTable,
    request: ExportRequest,
    erasing: EraseRequest | None,
    lease: TableLease,
    *,
    is_json: bool,
) -> None:
    """Append until there is nothing new, in commits of bounded size; then follow erasures.

    Leaves the table to another run that is at work on it, and says so.
    """
    from tidelog_spark.jobs.erasure.erasing import apply_erasures
    from tidelog_spark.jobs.export.exporting import export
    from tidelog_spark.jobs.tables.export_table import TableBusy
    from tidelog_spark.jobs.task_runner import LocalTasks

    runner = LocalTasks()

    def append() -> ExportResult:
        return export(runner, request, table, lease=lease)

    def erase(of: EraseRequest) -> EraseResult:
        lease.take(table.location)
        return apply_erasures(runner, of, erasable_of(table))

    undone = "nothing is done"
    try:
        while (result := without_conflict(append)).ranges:
            undone = "the rest is not done"
            if is_json:
                print(dumps({"run_id": result.run_id, "rows": result.row_count}), flush=True)
            else:
                print(f"{result.row_count} rows appended in {result.file_count} files", flush=True)
        if erasing is not None:
            report_erased(without_conflict(partial(erase, erasing)), None, is_json=is_json)
    except TableBusy as busy:
        if is_json:
            print(dumps({"skipped": str(busy)}), flush=True)
        else:
            note(f"{undone}: {busy}")


def without_conflict(step: Callable[[], T]) -> T:
    """Return the step's result; repeat it while other commits to the table come first.

    Raises ``TableBusy`` at once, and ``ExportConflict`` after ``CONFLICTS_MAX`` attempts.
    """
    from tidelog_spark.jobs.tables.export_table import ExportConflict, TableBusy

    for _ in range(CONFLICTS_MAX - 1):
        try:
            return step()
        except TableBusy:
            raise
        except ExportConflict as conflict:
            note(f"{conflict}; once more")
    return step()


def run_again_and_again(
    run: Callable[[], None],
    pause_seconds: float,
    *,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Run until stopped; the next run starts so long after the start of the one before.

    After a failure that may pass, the pause is one that grows. Raises the error of a run that
    cannot pass by itself, and ``CommandFailed`` after ``FAILURES_MAX`` failed runs in a row.
    """
    from tidelog_core.errors import TidelogError

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
            if not may_pass(error):
                raise
            failed_count += 1
            if failed_count >= FAILURES_MAX:
                raise CommandFailed(f"{failed_count} runs in a row have failed: {error}") from None
            seconds = min(BACKOFF_SECONDS_MIN * 2 ** (failed_count - 1), BACKOFF_SECONDS_MAX)
            note(f"{error}; trying again in {seconds:.0f} s")
            wait(seconds)
            continue
        wait(max(0.0, begun + pause_seconds - time.monotonic()))


def parse_time(text: str) -> float:
    """Return the seconds of a time like 30s, 5m or 1h. Raises ``UsageError``."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal() or int(number) == 0:
        raise UsageError(f"--every {text!r} must be a number with s, m, h or d, such as 5m")
    return int(number) * _UNITS[unit]
