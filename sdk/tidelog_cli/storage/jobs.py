"""``tidelog job``: work on tiered data, in this process or in Spark.

A Spark job is a program in ``tidelog_cli.spark_jobs`` with its own options: its command
starts it and passes all arguments on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.failures import CommandFailed, CommandGroup
from tidelog_cli.help_names import Commands
from tidelog_cli.options import chosen

SPARK_JOBS = "tidelog_cli.spark_jobs"
JAVA_VERSION = 17
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # Spark's scripts give them to the JVM
LOG4J = "log4j2.configurationFile"
QUIET_LOG = Path(__file__).parents[1] / "spark_jobs" / "log4j2.properties"  # errors only
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

job = Commands(cls=CommandGroup, help="Work on tiered data, in this process or in Spark.")


def run_spark_job(name: str, arguments: Sequence[str], *, submit: str) -> int:
    """Run the job to its end, with our stdout and stderr; return its exit status."""
    environment = dict(os.environ)
    given = chosen()
    if given.context is not None:
        environment["TIDELOG_CONTEXT"] = given.context
    if given.command_config is not None:
        environment["TIDELOG_COMMAND_CONFIG"] = str(given.command_config)
    if not submit:
        # Spark's workers would use the first ``python3`` in the path.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        require_java(environment)
        options = environment.get(SUBMIT_OPTIONS, "")
        if LOG4J not in options:
            environment[SUBMIT_OPTIONS] = f"{options} -D{LOG4J}={QUIET_LOG.as_uri()}".strip()
    command = spark_job_command(name, arguments, submit=submit)
    return subprocess.run(command, env=environment, check=False).returncode


def require_java(environment: Mapping[str, str]) -> None:
    """Raise ``CommandFailed`` if there is no Java for Spark."""
    home = environment.get("JAVA_HOME")
    if home is None and shutil.which("java", path=environment.get("PATH")) is None:
        raise CommandFailed(
            f"this needs Java {JAVA_VERSION} or later: install it, or set JAVA_HOME"
        )
    if home is not None and shutil.which("java", path=str(Path(home) / "bin")) is None:
        raise CommandFailed(f"JAVA_HOME={home} has no bin/java: Spark needs Java {JAVA_VERSION}")


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


def is_spark_job(command: object) -> bool:
    """Return whether a command hands its options on to a job's program."""
    return getattr(command, "context_settings", None) == _HANDED_ON


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
