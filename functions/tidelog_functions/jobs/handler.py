"""``handle`` starts the compaction job on EMR Serverless when enough of the tier is dirty.

After an event for an index object its partition is checked. The schedule checks all
compacted topics, for partitions that became due by time, and for lost events. The
decision uses the segments' items, like the job's (``tidelog_core.tier_compaction.choice``).

One run at a time: it compacts everything that is due when it starts, so partitions that
become due during a run wait for the next event or the schedule. Two runs would be harmless
(each partition has a claim) but cost more. Events may be repeated, late and out of order.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import boto3
from botocore.config import Config
from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import Topic
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.location import parse_object_location
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import SegmentKey
from tidelog_core.tier_compaction.choice import choose_compaction
from tidelog_core.tier_compaction.partition_tier import PartitionTier

from tidelog_functions.cluster_reader import ClusterReader, problems_of
from tidelog_functions.events import Scheduled, parse_event
from tidelog_functions.invocation import (
    Context,
    PartitionsFailed,
    TimeLimit,
    open_stores,
    parse_function_settings,
)
from tidelog_functions.jobs.emr import EmrJobs, JobNotStarted
from tidelog_functions.jobs.job_starts import (
    Decision,
    DuePartition,
    claim_start,
    decide,
    last_start,
    release_start,
)
from tidelog_functions.jobs.settings import parse_job_settings
from tidelog_functions.retention.handler import index_keys

logger = logging.getLogger(__name__)

COMPACTION_JOB = "tidelog-compact"
NO_BROKER = -1  # as in the job: the cluster's settings, without one node's
# For requests to EMR: with all of it, an invocation stays below a claim's grace period.
_CLIENT = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 3})


class Jobs(Protocol):
    """A service that runs jobs."""

    def under_way(self, name: str) -> list[str]:
        """Return the ids of the job's unfinished runs."""

    def start(self, name: str, arguments: Sequence[str], *, token: str) -> str:
        """Start a run and return its id; the same token always means the same run."""


def handle(event: object, context: Context) -> dict[str, object]:
    """Start a run if one is due; return the findings, for the log and for tests.

    Raises ``UnknownEvent``, ``InvalidConfig``, ``PartitionsFailed`` if some partitions could
    not be checked, ``JobNotStarted``, ``JobsUnavailable`` and the stores' errors.
    """
    events = parse_event(event)
    settings = parse_function_settings(os.environ)
    job_settings = parse_job_settings(os.environ)
    keys = index_keys(events, parse_object_location(settings.objects_url))
    is_scheduled = any(isinstance(one, Scheduled) for one in events)
    jobs = EmrJobs(boto3.client("emr-serverless", config=_CLIENT), job_settings)
    arguments = ["--metadata", settings.metadata_url, "--objects", settings.objects_url]

    async def run() -> dict[str, object]:
        async with open_stores(settings) as (store, objects):
            return await start_if_due(
                store,
                objects,
                ClusterReader(store, settings.node_config),
                jobs,
                keys=None if is_scheduled else keys,
                arguments=arguments,
                clock_ms=wall_clock_ms,
                limit=TimeLimit(context),
            )

    return asyncio.run(run())


async def start_if_due(
    store: MetadataStore,
    objects: ObjectStore,
    reader: ClusterReader,
    jobs: Jobs,
    *,
    keys: Sequence[SegmentKey] | None,
    arguments: Sequence[str],
    clock_ms: Callable[[], int],
    limit: TimeLimit,
) -> dict[str, object]:
    """Check the partitions of ``keys``, or all if None, and start a run if due."""
    search = DueSearch(store, objects, reader, clock_ms=clock_ms, limit=limit)
    await search.run(keys)
    run_id, decision = await _start(store, jobs, search.due, arguments, clock_ms)
    problems = problems_of(search.failed.items())
    summary: dict[str, object] = {
        "due_count": len(search.due),
        "decision": decision.reason,
        "run_id": run_id,
        "failed": problems,
    }
    logger.info("compaction checked", extra={"summary": summary})
    if problems:
        raise PartitionsFailed(problems)
    return summary


async def _start(
    store: MetadataStore,
    jobs: Jobs,
    due: Sequence[DuePartition],
    arguments: Sequence[str],
    clock_ms: Callable[[], int],
) -> tuple[str | None, Decision]:
    """Return the started run, if any, and the decision."""
    if not due:
        return None, decide(due, (), None, now_ms=clock_ms())
    last = await last_start(store, COMPACTION_JOB)
    # Read after the claim, so that a run started by the claim's holder is listed.
    runs = await asyncio.to_thread(jobs.under_way, COMPACTION_JOB)
    now_ms = clock_ms()
    decision = decide(due, runs, last, now_ms=now_ms)
    if not decision.is_start:
        return None, decision
    claim = await claim_start(store, COMPACTION_JOB, last, now_ms=now_ms)
    if claim is None:
        return None, Decision(False, "another invocation was faster")
    topics = [part for topic in decision.topics for part in ("--topic", topic)]
    try:
        run_id = await asyncio.to_thread(
            jobs.start, COMPACTION_JOB, [*arguments, *topics], token=claim.token
        )
    except JobNotStarted:
        await release_start(store, claim)
        raise
    return run_id, decision


class DueSearch:
    """Finds partitions that are due for compaction."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        reader: ClusterReader,
        *,
        clock_ms: Callable[[], int],
        limit: TimeLimit,
    ) -> None:
        self._store = store
        self._objects = objects
        self._reader = reader
        self._clock_ms = clock_ms
        self._limit = limit
        self.due: list[DuePartition] = []
        self.failed: dict[str, TidelogError] = {}

    async def run(self, keys: Sequence[SegmentKey] | None) -> None:
        """Fill ``due`` and ``failed``. Raises ``OutOfTime``."""
        cluster_id = await self._reader.cluster_id()
        if cluster_id is None:
            return
        await self._reader.load_node_configs()
        if keys is None:
            topics = await self._reader.topics()
            self.failed |= topics.failed
            for topic in topics.live:
                await self._find_in(cluster_id, topic, range(topic.partition_count))
            return
        for key in keys:
            if key.cluster_id != cluster_id:
                continue
            topic_or_tombstone = await self._reader.find_topic(key.topic_id, key.topic)
            if isinstance(topic_or_tombstone, Topic):
                await self._find_in(cluster_id, topic_or_tombstone, [key.partition])

    async def _find_in(self, cluster_id: str, topic: Topic, partitions: Sequence[int]) -> None:
        try:
            config = self._reader.topic_config(topic, NO_BROKER)
        except TidelogError as error:
            self.failed[f"topic {topic.name}"] = error
            return
        if "compact" not in config.cleanup_policy:
            return
        for number in partitions:
            self._limit.require()
            tier = PartitionTier(
                store=self._store,
                objects=self._objects,
                cluster_id=cluster_id,
                topic=topic,
                partition=number,
                config=config,
                key_filter_records_max=0,
                clock_ms=self._clock_ms,
            )
            try:
                live = await tier.live()
            except TidelogError as error:
                self.failed[f"{topic.name}-{number}"] = error
                continue
            choice = choose_compaction(live.segments, config, now_ms=self._clock_ms())
            if choice.is_due(config):
                self.due.append(
                    DuePartition(topic.name, number, choice.dirty_bytes, choice.dirty_ratio)
                )
