"""Spark jobs as commands. Their options are their own: everything is handed on to them."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from tidelog.cli.jobs import run_spark_job

# ``--help`` too is the job's to answer.
HANDED_ON: dict[str, object] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}

Submit = Annotated[
    str,
    typer.Option(
        envvar="TIDELOG_SPARK_SUBMIT",
        metavar="COMMAND",
        help="spark-submit with its options; without it the job runs in a Spark of its own.",
    ),
]


def audit(context: typer.Context, *, submit: Submit = "") -> None:
    """Check CRCs, offsets, hashes and producers' sequences over all of the tiered history."""
    raise typer.Exit(run_spark_job("audit", context.args, submit=shlex.split(submit)))


def export(context: typer.Context, *, submit: Submit = "") -> None:
    """Bring Parquet files, an Iceberg or a Delta table up to date, each record once."""
    raise typer.Exit(run_spark_job("export", context.args, submit=shlex.split(submit)))


def backfill(context: typer.Context, *, submit: Submit = "") -> None:
    """Write a table into a topic, each row once; interrupted, go on where it was."""
    raise typer.Exit(run_spark_job("backfill", context.args, submit=shlex.split(submit)))
