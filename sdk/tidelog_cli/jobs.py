"""``tidelog job``: work on tiered data, in this process or in Spark.

A Spark job is a program in ``tidelog_cli.spark_jobs`` with its own options: its command
starts it and passes all arguments on.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated

import typer

from tidelog_cli.failures import CommandFailed, CommandGroup

SPARK_JOBS = "tidelog_cli.spark_jobs"
# The job also answers ``--help``.
_HANDED_ON: dict[str, object] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}

Submit = Annotated[
    str,
    typer.Option(
        envvar="TIDELOG_SPARK_SUBMIT",
        metavar="COMMAND",
        help="spark-submit with its options; by default the job starts its own local Spark.",
    ),
]

job = typer.Typer(cls=CommandGroup, help="Work on tiered data, in this process or in Spark.")


def run_spark_job(name: str, arguments: Sequence[str], *, submit: str) -> int:
    """Run the job to its end, with our stdout and stderr; return its exit status."""
    environment = dict(os.environ)
    if not submit:
        # Spark's workers would use the first ``python3`` in the path.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    command = spark_job_command(name, arguments, submit=submit)
    return subprocess.run(command, env=environment, check=False).returncode


def spark_job_command(name: str, arguments: Sequence[str], *, submit: str = "") -> list[str]:
    """Return the command line that runs the module ``tidelog_cli.spark_jobs.<name>``.

    ``submit`` is a ``spark-submit`` with its options, which gets the module's file; without it
    the job starts its own Spark under this Python. Raises ``CommandFailed`` if Spark is not
    installed.
    """
    if find_spec("pyspark") is None:
        raise CommandFailed("this needs Spark: pip install 'tidelog[spark]'")
    module = f"{SPARK_JOBS}.{name}"
    if not submit:
        return [sys.executable, "-m", module, *arguments]
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return [*shlex.split(submit), spec.origin, *arguments]


def _add_spark_job(name: str, summary: str) -> None:
    def run(context: typer.Context, *, submit: Submit = "") -> None:
        raise typer.Exit(run_spark_job(name, context.args, submit=submit))

    job.command(name, help=summary, context_settings=_HANDED_ON)(run)


_add_spark_job(
    "audit", "Check CRCs, offsets, hashes and producers' sequences of all tiered segments."
)
_add_spark_job("activity", "Show who did what, from the events of the audit topic.")
_add_spark_job(
    "export", "Export new records to Parquet files, an Iceberg or a Delta table, each once."
)
_add_spark_job(
    "backfill", "Write a table into a topic, each row once; a second run continues the first."
)
