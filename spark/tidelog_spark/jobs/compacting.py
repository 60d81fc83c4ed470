"""Compacts the tiered segments of many partitions in Spark.

Each partition is a task that does the same as ``tidelog job compact`` in one process. A
partition larger than ``--split-bytes`` takes several tasks: some map its keys, then some
rewrite its segments, and the driver swaps them in (``tidelog_core.tier_compaction.spread``). A
task that is retried, or runs twice, finds its own claim or its own swap, and either is
harmless: ``tidelog_core.tier_compaction.swap`` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from tidelog_core.errors import TidelogError
from tidelog_core.tier_compaction.compact import CompactionReport, compact_partition
from tidelog_core.tier_compaction.spread import Workers
from tidelog_core.tier_compaction.targets import RewriteTarget

from tidelog_spark.jobs.compact_tasks import SparkWorkers

PARTS_MAX = 1000  # tasks for one partition; their shared data is sent to each executor
SPLIT_BYTES = 1 << 30  # one segment: a task takes between seconds and minutes


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task; exactly one of the two is ``None``."""

    report: CompactionReport | None
    problem: str | None


def compact_all(
    spark: SparkSession,
    targets: Sequence[RewriteTarget],
    *,
    is_forced: bool,
    split_bytes: int = SPLIT_BYTES,
) -> list[TaskResult]:
    """Compact each partition in one or more tasks; return the results in order."""
    counts = [asyncio.run(_part_count(target, split_bytes)) for target in targets]
    small = [target for target, count in zip(targets, counts, strict=True) if count == 1]
    done: list[TaskResult] = []
    if small:
        tasks = spark.sparkContext.parallelize(small, len(small))
        done = tasks.map(lambda one: compact_in_task(one, is_forced=is_forced)).collect()
    of_small = iter(done)
    results = []
    for target, count in zip(targets, counts, strict=True):
        if count == 1:
            results.append(next(of_small))
            continue
        workers = SparkWorkers(spark.sparkContext, target, count)
        results.append(compact_in_task(target, is_forced=is_forced, workers=workers))
    return results


async def _part_count(target: RewriteTarget, split_bytes: int) -> int:
    """Return the partition's number of tasks; 1 if it cannot be read."""
    try:
        async with target.opened() as tier:
            size_bytes = sum(segment.size_bytes for segment in (await tier.live()).segments)
    except TidelogError:
        return 1  # Its task reports the problem.
    return max(1, min(-(-size_bytes // split_bytes), PARTS_MAX))


def compact_in_task(
    target: RewriteTarget, *, is_forced: bool, workers: Workers | None = None
) -> TaskResult:
    """Compact one partition. A problem is returned, and does not stop other partitions."""

    async def compact() -> CompactionReport:
        async with target.opened() as tier:
            return await compact_partition(tier, is_forced=is_forced, workers=workers)

    try:
        return TaskResult(asyncio.run(compact()), None)
    except TidelogError as error:
        return TaskResult(None, f"{target.name}: {type(error).__name__}: {error}")
