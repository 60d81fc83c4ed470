"""``tidelog job``: work on what is tiered, done in this process or started in Spark.

The SDK does not import ``tidelog_spark``: it knows a Spark job by its module's name alone, and
starts it as a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import typer

from tidelog.cli.failures import CommandFailed, CommandGroup

SPARK_JOBS = "tidelog_spark.jobs"

job = typer.Typer(cls=CommandGroup, help="Work on what is tiered: here, or spread by Spark.")


def spark_job_command(
    name: str, arguments: Sequence[str], *, submit: Sequence[str] = ()
) -> list[str]:
    """Return the command line that runs the module ``tidelog_spark.jobs.<name>``.

    ``submit`` is a ``spark-submit`` with its own options, which is given the module's file;
    without it the job runs in a Spark of its own under this Python. Raises ``CommandFailed``
    where there is no such job here.
    """
    module = f"{SPARK_JOBS}.{name}"
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise CommandFailed("this needs Spark: pip install 'tidelog[spark]'")
    if submit:
        return [*submit, spec.origin, *arguments]
    return [sys.executable, "-m", module, *arguments]


def run_spark_job(name: str, arguments: Sequence[str], *, submit: Sequence[str] = ()) -> int:
    """Run the job to its end, its output on ours; return its exit status."""
    environment = dict(os.environ)
    if not submit:
        # Spark's workers would be whatever ``python3`` is first in the path.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    command = spark_job_command(name, arguments, submit=submit)
    return subprocess.run(command, env=environment, check=False).returncode
