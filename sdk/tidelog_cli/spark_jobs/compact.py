"""The job ``compact``, for ``spark-submit`` and ``tidelog job compact --spark``.

spark-submit …/tidelog_cli/spark_jobs/compact.py --metadata URL --objects URL [--topic TOPIC]...
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from tidelog_spark.jobs.compacting import SPLIT_BYTES, compact_all

from tidelog_cli.options import Json
from tidelog_cli.spark_jobs.command_line import run_job, spark_session
from tidelog_cli.storage.job_compact import Force, Partitions, Topics, report_outcome, targets_of
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores


def compact_command(
    *,
    topics: Topics = None,
    partitions: Partitions = None,
    force: Force = False,
    split_bytes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Split a larger partition into tasks of about this size.",
        ),
    ] = SPLIT_BYTES,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    json: Json = False,
) -> None:
    """Compact the tiered segments of topics with cleanup.policy=compact."""
    locations = locate_stores(data_dir, metadata, objects)
    targets = asyncio.run(targets_of(locations, topics or (), partitions or ()))
    with spark_session("compact") as spark:
        results = compact_all(spark, targets, is_forced=force, split_bytes=split_bytes)
    report_outcome(
        [result.report for result in results if result.report is not None],
        [result.problem for result in results if result.problem is not None],
        is_json=json,
    )


if __name__ == "__main__":
    run_job("compact", compact_command)
