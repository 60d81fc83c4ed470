"""Audits the whole tiered history, from the first segment to the last.

Every valid segment is checked in its own task with the checks of ``tidelog verify``: both
objects, all CRCs, the hashes, every batch. In addition, the batch headers show whether
offsets are missing within the segment and whether every producer's sequences are without
gaps. A segment's producers are reduced to a row or two each, and joined in log order in
further tasks. The driver follows the hash chain, which needs a hundred bytes per segment.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import open_object_store
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.stretches import stretches_of
from tidelog_core.verification.segment_check import Problem
from tidelog_core.verification.source import (
    Planned,
    ShowReading,
    planned_by_bucket,
    planned_by_metadata,
    show_nothing,
)
from tidelog_core.verification.verification import PartitionPlan, chain_problems

from tidelog_spark.jobs.audit.audit_tasks import (
    AuditProblem,
    Checked,
    CheckedSegment,
    CheckedStretch,
    NumberedStretch,
    SegmentTask,
    StretchKey,
    check_segments,
    join_stretches,
)
from tidelog_spark.jobs.audit.producers import EXPIRATION_MS, SequenceRules

TASKS_MAX = 10_000  # of one stage; the driver tracks each


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """The partitions to audit, and their stores."""

    objects: str  # url of the object store
    metadata: str | None  # url of the metadata store; None: only the bucket is read
    cluster_id: str | None = None  # the cluster to audit if the bucket has several
    topics: tuple[str, ...] = ()  # all by default
    # Topics that were compacted before, in addition to those that are configured so now.
    compacted: tuple[str, ...] = ()
    producer_expiration_ms: int = EXPIRATION_MS  # the value of producer.id.expiration.ms


@dataclass(frozen=True, slots=True)
class AuditedPartition:
    """The audited contents of a partition: a row of the report."""

    topic: str
    partition: int
    start_offset: int | None  # None: nothing is tiered
    end_offset: int | None  # exclusive
    segment_count: int
    size_bytes: int
    batch_count: int
    record_count: int
    problem_count: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit."""

    partitions: tuple[AuditedPartition, ...]
    problems: tuple[AuditProblem, ...]
    notes: tuple[str, ...]  # see ``Planned``; not part of the document

    def document(self) -> dict[str, object]:
        """Return the report as a JSON document."""
        return {
            "ok": not self.problems,
            "partitions": [asdict(row) for row in self.partitions],
            "problems": [asdict(row) for row in self.problems],
        }


def audit(
    spark: SparkSession, request: AuditRequest, *, show_reading: ShowReading = show_nothing
) -> AuditReport:
    """Check everything and return the report.

    Raises ``ClusterNotFound``, ``UnknownTopicOrPartition``.
    """
    # In a separate thread: a notebook's driver already runs an event loop in this one.
    with ThreadPoolExecutor(1, thread_name_prefix="audit") as executor:
        return executor.submit(asyncio.run, _audit(spark, request, show_reading)).result()


async def _audit(
    spark: SparkSession, request: AuditRequest, show_reading: ShowReading
) -> AuditReport:
    async with planned_audit(request, show_reading) as planned:
        return await audit_planned(spark, request, planned)


async def audit_planned(
    spark: SparkSession, request: AuditRequest, planned: Planned
) -> AuditReport:
    """Check the planned segments. Segments removed by retention since are no problem."""
    compacted = {
        topic
        for topic, configs in planned.configs.items()
        if "compact" in configs.get("cleanup.policy", "")
    }
    compacted.update(request.compacted)
    checked, joined = await asyncio.to_thread(_run_stages, spark, request, planned, compacted)
    by_partition: dict[TopicPartition, list[CheckedSegment]] = {}
    for one in checked:
        by_partition.setdefault(one.name, []).append(one)
    problems: list[AuditProblem] = []
    rows: list[AuditedPartition] = []
    for plan in planned.partitions:
        left, found = await _partition_problems(
            planned, plan, by_partition.get(plan.name, []), joined.get(plan.name, [])
        )
        problems += found
        rows.append(_row(plan, left, len(found)))
    problems += [_audit_problem(one) for one in planned.strays if not one.is_leftover]
    return AuditReport(tuple(rows), tuple(problems), tuple(planned.notes))


def planned_audit(
    request: AuditRequest, show_reading: ShowReading = show_nothing
) -> AbstractAsyncContextManager[Planned]:
    """Open the stores and plan the audit; raises as ``audit``."""
    if request.metadata is None:
        return planned_by_bucket(
            request.objects, request.topics, request.cluster_id, show_reading=show_reading
        )
    return planned_by_metadata(request.metadata, request.objects, request.topics)


def _run_stages(
    spark: SparkSession, request: AuditRequest, planned: Planned, compacted: set[str]
) -> tuple[list[CheckedSegment], dict[TopicPartition, list[AuditProblem]]]:
    """Return every segment's check, and the problems found by joining segments."""
    tasks = [task for plan in planned.partitions for task in _tasks(plan, compacted)]
    if not tasks:
        return [], {}
    context = spark.sparkContext
    check = partial(
        check_segments,
        open_store=partial(open_object_store, request.objects),
        cluster_id=planned.cluster_id,
        expiration_ms=request.producer_expiration_ms,
    )
    slice_count = min(len(tasks), TASKS_MAX)
    checked = context.parallelize(tasks, slice_count).mapPartitions(check)
    # Cached: the second stage must not read the segments again.
    checked.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        segments = checked.map(_segment_of).collect()
        thinned = {task.name.topic for task in tasks if task.is_compacted}
        rules_of = {
            topic: SequenceRules(
                may_skip=topic in thinned, expiration_ms=request.producer_expiration_ms
            )
            for topic in {task.name.topic for task in tasks}
        }
        found = (
            checked.flatMap(_stretches_of)
            .repartitionAndSortWithinPartitions(
                min(slice_count, len(planned.partitions)), _partition_hash
            )
            .mapPartitions(partial(join_stretches, rules_of=rules_of))
            .collect()
        )
    finally:
        checked.unpersist()
    joined: dict[TopicPartition, list[AuditProblem]] = {}
    for problem in found:
        assert problem.topic is not None
        assert problem.partition is not None
        joined.setdefault(TopicPartition(problem.topic, problem.partition), []).append(problem)
    return segments, joined


def _tasks(plan: PartitionPlan, compacted: set[str]) -> Iterator[SegmentTask]:
    numbered: dict[object, list[NumberedStretch]] = {}
    for number, stretch in enumerate(stretches_of(plan.segments)):
        numbered.setdefault(stretch.segment.segment_id, []).append(
            NumberedStretch(number, stretch.start_offset, stretch.end_offset)
        )
    for segment in plan.segments:
        yield SegmentTask(
            plan.name,
            segment,
            tuple(numbered.get(segment.segment_id, ())),
            # A rewritten segment may lack records under any cleanup policy.
            is_compacted=plan.name.topic in compacted or segment.rewrite_epoch > 0,
        )


def _segment_of(checked: Checked) -> CheckedSegment:
    return checked[0]


def _stretches_of(checked: Checked) -> list[tuple[StretchKey, CheckedStretch]]:
    return checked[1]


def _partition_hash(key: StretchKey) -> int:
    return zlib.crc32(f"{key[0]}-{key[1]}".encode())


async def _partition_problems(
    planned: Planned,
    plan: PartitionPlan,
    checked: Sequence[CheckedSegment],
    joined: Iterable[AuditProblem],
) -> tuple[list[CheckedSegment], list[AuditProblem]]:
    """Return the segments that are still valid, and all problems of the partition."""
    problems = [_audit_problem(one) for one in plan.problems]
    left: list[CheckedSegment] = []
    links = []
    for one in checked:
        keys = segment_keys(planned.cluster_id, plan.name.topic, one.segment)
        if one.problems and not await planned.truth.is_still_there(one.segment, keys):
            continue  # Retention has removed it since.
        left.append(one)
        problems += one.problems
        links.append((one.segment, keys, None if one.index is None else one.index.index()))
    log_start = await planned.truth.log_start_offset(plan)
    name = plan.name
    problems += [
        AuditProblem(name.topic, name.partition, "chain", key, None, text)
        for key, text in chain_problems(links, log_start_offset=log_start)
    ]
    return left, [*problems, *joined]


def _audit_problem(problem: Problem) -> AuditProblem:
    name = problem.partition
    return AuditProblem(
        topic=None if name is None else name.topic,
        partition=None if name is None else name.partition,
        check="objects",
        object=problem.object,
        offset=None,
        problem=problem.problem,
    )


def _row(
    plan: PartitionPlan, checked: Sequence[CheckedSegment], problem_count: int
) -> AuditedPartition:
    return AuditedPartition(
        topic=plan.name.topic,
        partition=plan.name.partition,
        start_offset=min((one.segment.base_offset for one in checked), default=None),
        end_offset=max((one.segment.end_offset for one in checked), default=None),
        segment_count=len(checked),
        size_bytes=sum(one.segment.size_bytes for one in checked),
        batch_count=sum(one.batch_count for one in checked),
        record_count=sum(one.record_count for one in checked),
        problem_count=problem_count,
    )
