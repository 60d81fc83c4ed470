"""``handle`` applies retention, after an event of the bucket or by schedule.

After an event for an index object, retention is applied to its partition. The event often
arrives before its segment is COPY_FINISHED, so it counts only earlier segments; the
segment itself is counted by the next event or the schedule. In a partition with many
segments only the first ones are read (``due_segments``).

The schedule applies retention to every partition, completes deletions whose delay has
passed, removes the remains of deleted topics, and collects sealed chains of diskless topics. It
makes up for lost events, so no event has to arrive.

Events may be repeated, late and out of order: a call acts on the current metadata, and the
event only selects partitions. A call near its time limit stops between two steps, each of
which is durable: the next schedule continues there (``cluster_pass``). A pass with a failed
partition ends with ``PartitionsFailed`` after all others are done, so that Lambda retries it
and then sends it to the dead-letter queue.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from tidelog_core.batched import batched
from tidelog_core.clock import steady_clock_ms, wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import Topic
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.location import ObjectLocation, parse_object_location
from tidelog_core.objects.store import ObjectStore
from tidelog_core.retention.clock_watch import ClockWatch, store_witness
from tidelog_core.retention.deleted_topics import remove_lone_marks
from tidelog_core.retention.orphans import AgeLimits
from tidelog_core.tier.keys import SegmentKey, parse_segment_key

from tidelog_functions.cluster_reader import ClusterReader, problems_of
from tidelog_functions.costs import counted_stores
from tidelog_functions.events import ObjectCreated, Scheduled, UnknownEvent, parse_event
from tidelog_functions.invocation import (
    Context,
    FunctionSettings,
    OutOfTime,
    PartitionsFailed,
    TimeLimit,
    parse_function_settings,
)
from tidelog_functions.retention.cluster_pass import (
    PARTITIONS_AT_ONCE,
    PassResult,
    Step,
    apply_steps,
    apply_to_all,
    deleted_topic_step,
    partition_step,
)
from tidelog_functions.retention.partition import PartitionRetention
from tidelog_functions.scrub.chains import (
    DISKLESS_SETTING,
    ChainScrub,
    KnownTopics,
)
from tidelog_functions.scrub.scrub_run import ScrubRun
from tidelog_functions.scrub.settings import DOUBTFUL_AGE_MS, ORPHAN_AGE_MS, ScrubSettings

logger = logging.getLogger(__name__)

_COLLECTION_LIMITS = AgeLimits(orphan_age_ms=ORPHAN_AGE_MS, doubtful_age_ms=DOUBTFUL_AGE_MS)


def handle(event: object, context: Context) -> dict[str, object]:
    """Apply retention as the event requires; return the results, for the log and for tests.

    Raises ``UnknownEvent``, ``InvalidConfig``, ``PartitionsFailed`` and store errors that
    prevent any work.
    """
    events = parse_event(event)
    settings = parse_function_settings(os.environ)
    keys = index_keys(events, parse_object_location(settings.objects_url))
    is_scheduled = any(isinstance(one, Scheduled) for one in events)
    return asyncio.run(_run(settings, keys, is_scheduled, TimeLimit(context)))


def index_keys(
    events: Sequence[ObjectCreated | Scheduled], location: ObjectLocation
) -> list[SegmentKey]:
    """Return the index objects in the events, one per partition. No I/O.

    Other keys are skipped with a line in the log. Raises ``UnknownEvent`` for an event of
    another bucket.
    """
    found: dict[tuple[object, int], SegmentKey] = {}
    for event in events:
        if isinstance(event, Scheduled):
            continue
        if event.bucket != location.name:
            raise UnknownEvent(f"of bucket {event.bucket!r}, TIDELOG_OBJECTS is {location.name!r}")
        relative = location.relative(event.key)
        parsed = None if relative is None else parse_segment_key(relative)
        if parsed is None:
            logger.info("event of a foreign object ignored", extra={"key": event.key})
        elif parsed.is_index:
            found[parsed.topic_id, parsed.partition] = parsed
    return list(found.values())


async def _run(
    settings: FunctionSettings, keys: list[SegmentKey], is_scheduled: bool, limit: TimeLimit
) -> dict[str, object]:
    async with counted_stores(settings, "retention") as (store, objects):
        reader = ClusterReader(store, settings.node_config)
        heard = store_witness(store)
        result = await apply_retention(
            store,
            objects,
            reader,
            keys=keys,
            is_scheduled=is_scheduled,
            clock_ms=wall_clock_ms,
            may_expire=partial(_clock_of_process(settings.node_config).may_expire, heard),
            limit=limit,
        )
    problems = problems_of(result.failed.items())
    summary = _summary(result, problems)
    logger.info("retention applied", extra={"summary": summary})
    if problems:
        raise PartitionsFailed(problems)
    return summary


async def apply_retention(
    store: MetadataStore,
    objects: ObjectStore,
    reader: ClusterReader,
    *,
    keys: Sequence[SegmentKey],
    is_scheduled: bool,
    clock_ms: Callable[[], int],
    may_expire: Callable[[], bool],
    limit: TimeLimit,
) -> PassResult:
    """Apply retention to the partitions of ``keys``, or to all by schedule."""
    cluster_id = await reader.cluster_id()
    if cluster_id is None:
        logger.info("no node has started yet, nothing to retain")
        return PassResult()
    await reader.load_node_configs()
    retention = PartitionRetention(
        store=store,
        objects=objects,
        cluster_id=cluster_id,
        topic_config=reader.topic_config,
        clock_ms=clock_ms,
        may_expire=may_expire,
        limit=limit,
    )
    if is_scheduled:
        result = await apply_to_all(reader, retention)
        if result.is_finished:
            try:
                await remove_lone_marks(store)
            except TidelogError as error:
                result.failed["marks of tombstones"] = error
            run = ScrubRun(
                store=store,
                objects=objects,
                cluster_id=cluster_id,
                settings=ScrubSettings(limits=_COLLECTION_LIMITS),
                clock_ms=clock_ms,
                limit=limit,
            )
            await _collect_chains(run, reader, result)
        return result
    return await _apply_to(keys, reader, retention)


async def _apply_to(
    keys: Sequence[SegmentKey], reader: ClusterReader, retention: PartitionRetention
) -> PassResult:
    """Apply retention to the partitions of these keys."""
    result = PassResult()
    steps: list[Step] = []
    for key in keys:
        try:
            step = await _step_of(reader, retention, key)
        except TidelogError as error:
            result.failed[f"topic {key.topic}"] = error
            continue
        if step is not None:
            steps.append(step)
    for some in batched(steps, PARTITIONS_AT_ONCE):
        await apply_steps(some, result)
    return result


async def _collect_chains(run: ScrubRun, reader: ClusterReader, result: PassResult) -> None:
    """Collect sealed chains, if there may be any; the result gets the count, or the failure."""
    topics = await reader.topics()
    # Chains outlive the last diskless topic.
    if not topics.deleted and all(DISKLESS_SETTING not in topic.configs for topic in topics.live):
        return
    known = KnownTopics(
        {topic.topic_id: topic for topic in topics.live},
        {topic.topic_id for topic in topics.deleted},
        is_complete=False,  # The scrub deletes objects of unknown topics.
    )
    scrub = ChainScrub(run, known)
    try:
        report = await scrub.collect_all()
    except OutOfTime:
        result.is_finished = False
    except TidelogError as error:
        result.failed["chains"] = error
    else:
        result.chain_object_deleted_count += report.collected_count


@cache
def _clock_of_process(node_config: NodeConfig) -> ClockWatch:
    """Return the clock watch that is kept between invocations."""
    return ClockWatch(
        wall_ms=wall_clock_ms, steady_ms=steady_clock_ms, node_config=lambda: node_config
    )


async def _step_of(
    reader: ClusterReader, retention: PartitionRetention, key: SegmentKey
) -> Step | None:
    if key.cluster_id != retention.cluster_id:
        logger.info("event of another cluster ignored", extra={"cluster_id": key.cluster_id})
        return None
    topic = await reader.find_topic(key.topic_id, key.topic)
    if topic is None:
        # It was deleted and cleaned up before the event arrived; the scrub removes the rest.
        logger.info("event of a deleted topic ignored", extra={"topic": key.topic})
        return None
    if isinstance(topic, Topic):
        return partition_step(retention, topic, key.partition, is_event=True)
    return deleted_topic_step(retention, topic)


def _summary(result: PassResult, problems: Mapping[str, str]) -> dict[str, object]:
    done = result.done
    return {
        "partition_count": result.partition_count,
        "log_start_advanced_count": done.log_start_advanced_count,
        "deletion_started_count": done.deletion_started_count,
        "segment_deleted_count": done.segment_deleted_count,
        "topic_deleted_count": done.topic_deleted_count,
        "chain_object_deleted_count": result.chain_object_deleted_count,
        "next_deletion_ms": done.next_deletion_ms,
        "is_finished": result.is_finished,
        "failed": problems,
    }
