"""The job ``backfill``, for ``spark-submit`` and ``tidelog job backfill``.

spark-submit …/tidelog_cli/spark_jobs/backfill.py TOPIC --path URL --key EXPRESSION
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

import typer
from pyspark.errors import AnalysisException, ParseException, PySparkException, PythonException
from tidelog.settings.names import SECURITY_PREFIXES
from tidelog_spark.jobs.backfilling import (
    BackfillReport,
    BackfillRequest,
    backfill,
    check_backfill,
)

from tidelog_cli.clients import opened_admin
from tidelog_cli.connecting import connection
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_pair
from tidelog_cli.output import print_json
from tidelog_cli.spark_jobs.command_line import run_job, spark_session

_SECURITY = tuple(f"kafka.{prefix}" for prefix in SECURITY_PREFIXES)
_SERVERS = "kafka.bootstrap.servers"


def _option(help: str, *names: str, metavar: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(
        *names, metavar=metavar, help=help, show_default=False
    )
    return info


def backfill_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write the rows to.")],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    path: Annotated[str | None, _option("Location of the table's files.", metavar="URL")] = None,
    format: Annotated[str, typer.Option(help="The format of --path.")] = "parquet",
    read_option: Annotated[
        list[str] | None, _option("An option for reading --path.", metavar="NAME=VALUE")
    ] = None,
    table: Annotated[str | None, _option("A table of Spark's catalog.", metavar="NAME")] = None,
    query: Annotated[str | None, _option("A query of Spark's.", "--sql", metavar="SQL")] = None,
    where: Annotated[str | None, _option("Filter for rows.", metavar="SQL")] = None,
    key: Annotated[
        str | None, _option("Expression for the key; no key by default.", metavar="SQL")
    ] = None,
    value: Annotated[
        str | None,
        _option("Expression for the value; the whole row as JSON by default.", metavar="SQL"),
    ] = None,
    headers: Annotated[
        str | None,
        _option("Expression for the headers: an array of structs of key and value.", metavar="SQL"),
    ] = None,
    timestamp: Annotated[
        str | None,
        _option("Expression for the timestamp; the time of writing by default.", metavar="SQL"),
    ] = None,
    partition: Annotated[
        str | None,
        _option("Expression for the partition; chosen by the key by default.", metavar="SQL"),
    ] = None,
    order_by: Annotated[
        list[str] | None, _option("Expression that orders the records of one key.", metavar="SQL")
    ] = None,
    sink_option: Annotated[
        list[str] | None,
        _option("An option of the sink, like kafka.compression.type=zstd.", metavar="NAME=VALUE"),
    ] = None,
    id: Annotated[
        str | None,
        _option("The backfill's id; derived from the other options by default.", metavar="NAME"),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Write a table into a topic, each row once; a second run continues the first.

    Run the same command again to write the missing rows. Give another --id to write all rows
    again.
    """
    request = BackfillRequest(
        topic=topic,
        path=path,
        format=format,
        read_options=dict(parse_pair("--read-option", each) for each in read_option or ()),
        table=table,
        query=query,
        where=where,
        key=key,
        value=value,
        headers=headers,
        timestamp=timestamp,
        partition=partition,
        order_by=tuple(order_by or ()),
    )
    given = dict(parse_pair("--sink-option", each) for each in sink_option or ())
    sink = {**sink_address(bootstrap, given), **given}
    # Before Spark starts, so that a wrong option or address fails at once.
    check_backfill(request, sink)
    if not _has_any(given, *_SECURITY, _SERVERS):
        asyncio.run(_reach(bootstrap))
    with spark_session("backfill") as spark:
        try:
            report = backfill(spark, request, sink, backfill_id=id, task_count=tasks)
        except (AnalysisException, ParseException) as error:
            raise UsageError(_reason(error)) from None
        except PythonException as error:
            raise CommandFailed(_reason(error)) from None
    _print(report, is_json=json)


def sink_address(bootstrap: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the sink's options for the nodes; a login among those given is a whole."""
    found = connection()
    login = {} if _has_any(given, *_SECURITY) else found.kafka_options()
    return {_SERVERS: bootstrap or found.bootstrap_servers, **login}


def _has_any(given: Mapping[str, str], *prefixes: str) -> bool:
    """Return whether an option begins so, in letters of any case, as the sink takes it."""
    return any(name.lower().startswith(prefixes) for name in given)


async def _reach(bootstrap: str) -> None:
    """Connect once. Raises ``CommandFailed``, ``ConnectionFailed``."""
    async with opened_admin(bootstrap):
        pass


def _reason(error: PySparkException) -> str:
    """Return the line with the cause: the last of a task's traceback if it has one."""
    lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("SQLSTATE")]
    if not any("Traceback (most recent call last)" in line for line in lines):
        return lines[0]
    return next(line for line in reversed(lines) if line and not line[0].isspace())


def _print(report: BackfillReport, *, is_json: bool) -> None:
    if is_json:
        print_json(report.document())
        return
    print(f"{report.row_count} rows written to {report.topic} ({report.backfill_id})")
    if report.tasks_found_written:
        found = f"{report.tasks_found_written} of {report.task_count} tasks"
        print(f"{found} had been written before")


if __name__ == "__main__":
    run_job("backfill", backfill_command)
