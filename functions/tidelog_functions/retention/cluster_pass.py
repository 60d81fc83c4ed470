"""A resumable pass of retention over all partitions and deleted topics.

    topic/<name>/<partition, 10 digits>     a partition
    topic-deleted/<topic id>                the remains of a topic

A pass near its time limit stores the last key up to which all steps are done; the next
schedule continues after it, and a pass that reaches the end clears it. That needs neither
a permission to invoke itself nor a queue, and cannot run away: the work takes as many
schedules as necessary, and none starts over before the end was reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tidelog_core.batched import batched
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import DeletedTopic, Topic

from tidelog_functions.cluster_reader import ClusterReader, read_progress, write_progress
from tidelog_functions.invocation import OutOfTime
from tidelog_functions.retention.partition import Done, PartitionRetention

logger = logging.getLogger(__name__)

FUNCTION = "retention"
PARTITIONS_AT_ONCE = 16


@dataclass(slots=True)
class PassResult:
    """The results of a pass."""

    done: Done = field(default_factory=Done)
    partition_count: int = 0  # checked, including deleted topics
    chain_object_deleted_count: int = 0  # of sealed chains of diskless topics
    is_finished: bool = True
    failed: dict[str, TidelogError] = field(default_factory=dict)


Step = tuple[str, Callable[[], Awaitable[Done]]]


async def apply_to_all(reader: ClusterReader, retention: PartitionRetention) -> PassResult:
    """Apply retention to all partitions, or to as many as the time limit allows.

    A partition with a problem is reported and does not stop others.
    """
    result = PassResult()
    topics = await reader.topics()
    result.failed.update(topics.failed)
    before = await read_progress(retention.store, FUNCTION)
    steps = [step for step in _steps(retention, topics.live, topics.deleted) if step[0] > before]
    reached = before
    for some in batched(steps, PARTITIONS_AT_ONCE):
        await apply_steps(some, result)
        if not result.is_finished:
            break
        reached = some[-1][0]
    resumes_after = "" if result.is_finished else reached
    if resumes_after != before:
        await write_progress(retention.store, FUNCTION, resumes_after)
    return result


async def apply_steps(steps: list[Step], result: PassResult) -> None:
    """Run the steps concurrently, and add their results to ``result``."""
    outcomes = await asyncio.gather(*(_attempt(run) for _, run in steps))
    for (key, _), outcome in zip(steps, outcomes, strict=True):
        if isinstance(outcome, OutOfTime):
            result.is_finished = False
        elif isinstance(outcome, TidelogError):
            result.failed[key] = outcome
            problem = f"{type(outcome).__name__}: {outcome}"
            logger.error("retention failed", extra={"step": key, "reason": problem})
        else:
            result.partition_count += 1
            result.done += outcome


def partition_step(
    retention: PartitionRetention, topic: Topic, partition: int, *, is_event: bool = False
) -> Step:
    """Return the step of one partition."""
    key = f"topic/{topic.name}/{partition:010d}"
    return key, lambda: retention.apply(topic, partition, is_event=is_event)


def deleted_topic_step(retention: PartitionRetention, tombstone: DeletedTopic) -> Step:
    """Return the step of one deleted topic."""
    return f"topic-deleted/{tombstone.topic_id}", lambda: retention.clean(tombstone)


def _steps(
    retention: PartitionRetention,
    live: tuple[Topic, ...],
    deleted: tuple[DeletedTopic, ...],
) -> list[Step]:
    steps = [
        partition_step(retention, topic, partition)
        for topic in live
        for partition in range(topic.partition_count)
    ]
    steps += [deleted_topic_step(retention, tombstone) for tombstone in deleted]
    return sorted(steps, key=lambda step: step[0])


async def _attempt(run: Callable[[], Awaitable[Done]]) -> Done | TidelogError:
    try:
        return await run()
    except TidelogError as error:
        return error
