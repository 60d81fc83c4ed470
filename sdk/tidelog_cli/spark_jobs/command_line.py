"""Runs a job's module as a command, under ``spark-submit`` or ``tidelog job``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from pyspark.sql import SparkSession

from tidelog_cli.failures import EXIT_STATUS, CommandGroup


def run_job(name: str, command: Callable[..., Any]) -> None:
    """Run the command with this process's arguments, and exit with its status.

    Fails like the commands of ``tidelog``: one line on stderr, and an exit status. Spark
    reports a status other than 0 as a failed application.
    """
    jobs = typer.Typer(
        cls=CommandGroup,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    jobs.command(name, epilog=EXIT_STATUS)(command)
    # The callback makes the single command part of a group, which reports failures.
    jobs.callback()(_no_options)
    jobs([name, *sys.argv[1:]], prog_name="tidelog job")


@contextmanager
def spark_session(name: str) -> Iterator[SparkSession]:
    """Yield a session that ends with the block; the application has the job's name."""
    spark = SparkSession.builder.appName(f"tidelog {name}").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _no_options() -> None:
    pass
