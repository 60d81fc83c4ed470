"""The job ``activity``, for ``spark-submit`` and ``tidelog job activity``.

spark-submit …/tidelog_cli/spark_jobs/activity.py --metadata URL --objects URL --topic orders
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from tidelog_core.audit.events import AuditKind
from tidelog_spark.jobs.activity import COLUMNS, ActivityRequest, activity

from tidelog_cli.failures import UsageError
from tidelog_cli.options import Json, require_choice
from tidelog_cli.output import print_json, print_table
from tidelog_cli.spark_jobs.command_line import run_job, spark_session
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores


def activity_command(
    *,
    topic: Annotated[
        str | None, typer.Option(help="Only what was done to this topic.", show_default=False)
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="PRINCIPAL", help="Only what this user did: User:alice.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="authenticate, management, denied, produce, consume or loss.", show_default=False
        ),
    ] = None,
    operation: Annotated[
        str | None,
        typer.Option(help="Such as Fetch, DeleteTopics or Write.", show_default=False),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="2026-03-01, or with a time; in UTC."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Exclusive; as --from.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where to write the rows as Parquet, too.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show who did what, from the tiered events of the audit topic."""
    if kind is not None:
        require_choice("--kind", kind, [one.value for one in AuditKind])
    if user is not None and ":" not in user:
        raise UsageError(f"--user must be a principal such as User:{user}, not {user!r}")
    from_ms, until_ms = _parse_time("--from", from_), _parse_time("--until", until)
    if from_ms is not None and until_ms is not None and until_ms <= from_ms:
        raise UsageError(f"--until {until} must be after --from {from_}")
    stores = locate_stores(data_dir, metadata, objects)
    request = ActivityRequest(
        metadata=stores.metadata,
        objects=stores.objects,
        from_ms=from_ms,
        until_ms=until_ms,
        kind=kind,
        operation=operation,
        user=user,
        resource_type=None if topic is None else "Topic",
        resource=topic,
    )
    with spark_session("activity") as spark:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        found = activity(spark, request)
        if report is not None:
            found.write.parquet(report)
            found = spark.read.parquet(report)
        rows = [row.asDict() for row in found.collect()]
    documents = [{name: _shown(row[name]) for name in COLUMNS} for row in rows]
    if json:
        print_json(documents)
    elif documents:
        print_table(COLUMNS, [[one[name] for name in COLUMNS] for one in documents])
    else:
        print("nothing was recorded")


def _shown(value: object) -> object:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def _parse_time(option: str, text: str | None) -> int | None:
    """Return the time in milliseconds. Raises ``UsageError``."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} must be a time such as 2026-03-01 or 2026-03-01T12:00:00, not {text!r}"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


if __name__ == "__main__":
    run_job("activity", activity_command)
