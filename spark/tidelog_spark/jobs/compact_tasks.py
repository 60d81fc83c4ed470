"""Compacts the parts of one large partition in Spark tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark import SparkContext
from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.tier_compaction.partition_tier import PartitionTier, PreparedGroup
from tidelog_core.tier_compaction.spread import (
    MapPart,
    RewritePart,
    RewritePlan,
    map_part,
    rewrite_part,
)
from tidelog_core.tier_compaction.swap import PartitionClaimed
from tidelog_core.tier_compaction.targets import RewriteTarget

P = TypeVar("P")
R = TypeVar("R")


class PartFailed(TidelogError):
    """A task failed with an error that a retry would meet again."""

    code = ErrorCode.unknown_server_error


@dataclass(frozen=True, slots=True)
class PartResult(Generic[R]):
    """The result of a task."""

    value: R | None  # None if there is a problem
    problem: str = ""
    is_claimed: bool = False  # the problem: another process has claimed the partition


class SparkWorkers:
    """Runs the parts as tasks. Shared data is broadcast, and removed afterwards.

    Tidelog's errors are returned as results, so that Spark does not retry them; Spark does
    retry the tasks of a lost executor.
    """

    def __init__(self, context: SparkContext, target: RewriteTarget, part_count: int) -> None:
        self._context = context
        self._target = target
        self._part_count = part_count

    @property
    def part_count(self) -> int:
        """Return the number of parts."""
        return self._part_count

    async def map(self, parts: Sequence[MapPart]) -> list[OffsetMap]:
        """Return ``map_part`` of each part."""
        return await self._collect(parts, lambda: map_part)

    async def rewrite(
        self, plan: RewritePlan, parts: Sequence[RewritePart]
    ) -> list[list[PreparedGroup]]:
        """Return ``rewrite_part`` of each part."""
        shared = self._context.broadcast(plan)

        def work() -> Callable[[PartitionTier, RewritePart], Awaitable[list[PreparedGroup]]]:
            return lambda tier, part: rewrite_part(tier, shared.value, part)

        try:
            return await self._collect(parts, work)
        finally:
            shared.destroy()

    async def _collect(
        self,
        parts: Sequence[P],
        work: Callable[[], Callable[[PartitionTier, P], Awaitable[R]]],
    ) -> list[R]:
        """Return the results in order. Raises ``PartitionClaimed``, ``PartFailed``."""
        if not parts:
            return []
        target = self._target
        tasks = self._context.parallelize(list(parts), len(parts)).map(
            lambda part: run_part(target, part, work())
        )
        # The driver's loop keeps running, which renews the claim.
        found: list[PartResult[R]] = await asyncio.to_thread(tasks.collect)
        if any(result.is_claimed for result in found):
            raise PartitionClaimed(target.topic.topic_id, target.partition)
        problem = next((result.problem for result in found if result.problem), None)
        if problem is not None:
            raise PartFailed(problem)
        return [result.value for result in found if result.value is not None]


def run_part(
    target: RewriteTarget, part: P, work: Callable[[PartitionTier, P], Awaitable[R]]
) -> PartResult[R]:
    """Run one part, in a task."""

    async def run() -> R:
        async with target.opened() as tier:
            return await work(tier, part)

    try:
        return PartResult(asyncio.run(run()))
    except TidelogError as error:
        problem = f"{type(error).__name__}: {error}"
        return PartResult(None, problem, isinstance(error, PartitionClaimed))
