"""Runs a job's module as a command, under ``spark-submit`` or ``tidelog job``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from tidelog_core.metadata.stored_cluster import select_topics

from tidelog_cli.failures import EXIT_STATUS, CommandFailed, CommandGroup
from tidelog_cli.help_names import Commands
from tidelog_cli.options import choose_cluster
from tidelog_cli.storage.jobs import JAVA_VERSION
from tidelog_cli.stores import opened_metadata


def run_job(name: str, command: Callable[..., Any]) -> None:
    """Run the command with this process's arguments, and exit with its status.

    Fails like the commands of ``tidelog``: one line on stderr, and an exit status. Spark
    reports a status other than 0 as a failed application.
    """
    program_of(name, command)([name, *sys.argv[1:]], prog_name="tidelog job")


def program_of(name: str, command: Callable[..., Any]) -> Commands:
    """Return the program whose only command is the job."""
    jobs = Commands(
        cls=CommandGroup,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    jobs.command(name, epilog=EXIT_STATUS)(command)
    # The callback makes the single command part of a group, which reports failures.
    jobs.callback()(choose_cluster)
    return jobs


@contextmanager
def spark_session(name: str) -> Iterator[SparkSession]:
    """Yield a session that ends with the block; the application has the job's name."""
    try:
        spark = SparkSession.builder.appName(f"tidelog {name}").getOrCreate()
    except PySparkRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise CommandFailed(
            f"Spark does not start: {reason}; it needs Java {JAVA_VERSION} or later"
        ) from None
    try:
        yield spark
    finally:
        spark.stop()


def require_topics(metadata: str, topics: Sequence[str]) -> None:
    """Raise ``UnknownTopicOrPartition`` for a name without a topic, before Spark starts."""

    async def check() -> None:
        async with opened_metadata(metadata) as (_, image):
            select_topics(image, topics)

    asyncio.run(check())
