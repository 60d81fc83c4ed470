"""An audit's Spark tasks: they check segments one by one, then join them in order."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import Buffer
from tidelog_core.tier.index_file import IndexFile, SectionKind
from tidelog_core.tier.keys import segment_keys
from tidelog_core.verification.segment_check import check_segment

from tidelog_spark.jobs.audit.producers import SPAN, BrokenSequence, SequenceRules, follow, no_spans
from tidelog_spark.jobs.audit.segment_scan import SegmentScan, scan_segment

# Per kind and segment. A further line gives the number of the rest.
PROBLEMS_REPORTED_MAX = 20

# Sections that grow with the segment; the hash chain needs only the others.
_LARGE_SECTIONS = frozenset(
    {
        SectionKind.BATCHES,
        SectionKind.OFFSET_INDEX,
        SectionKind.TIME_INDEX,
        SectionKind.ABORTED_TRANSACTIONS,
        SectionKind.PRODUCER_SNAPSHOT,
        SectionKind.KEY_FILTER,
    }
)

StretchKey = tuple[str, int, int]  # topic, partition, number in the order of the log


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """A problem found by the audit: a row of the report."""

    topic: str | None  # None: not specific to a partition
    partition: int | None
    check: str  # objects, chain, offsets or producers
    object: str  # the object's key, or the damaged metadata item's
    offset: int | None  # if the problem is in a batch
    problem: str


@dataclass(frozen=True, slots=True)
class NumberedStretch:
    """The offsets ``[start, end)`` that a segment is read for, and their order in the log."""

    number: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to check."""

    name: TopicPartition
    segment: SegmentMeta
    stretches: tuple[NumberedStretch, ...]
    is_compacted: bool  # batches and records may be missing


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """The result of checking one segment."""

    name: TopicPartition
    segment: SegmentMeta
    index: LightIndex | None  # None: it is not intact
    batch_count: int
    record_count: int
    problems: tuple[AuditProblem, ...]


@dataclass(frozen=True, slots=True)
class CheckedStretch:
    """A stretch's producers, after the check."""

    start_offset: int
    end_offset: int
    object: str
    spans: bytes | None  # rows of SPAN; None: the segment could not be read


@dataclass(frozen=True, slots=True)
class LightIndex:
    """An index object without the sections that grow with the segment, for the driver."""

    header: IndexFile
    sections: dict[int, bytes]

    @classmethod
    def of(cls, index: IndexFile) -> LightIndex:
        """Return the light copy of an index."""
        kept = {
            kind: bytes(section)
            for kind, section in index.sections.items()
            if kind not in _LARGE_SECTIONS
        }
        return cls(dataclasses.replace(index, sections={}), kept)

    def index(self) -> IndexFile:
        """Return it as an index."""
        sections = {kind: memoryview(section) for kind, section in self.sections.items()}
        return dataclasses.replace(self.header, sections=sections)


Checked = tuple[CheckedSegment, list[tuple[StretchKey, CheckedStretch]]]


def check_segments(
    tasks: Iterable[SegmentTask],
    open_store: Callable[[], ObjectStore],
    *,
    cluster_id: str,
    expiration_ms: int,
) -> Iterator[Checked]:
    """Yield the result of checking each segment, with its stretches."""
    with asyncio.Runner() as runner:
        objects = runner.run(_opened(open_store))
        try:
            for task in tasks:
                yield runner.run(_check(task, objects, cluster_id, expiration_ms))
        finally:
            runner.run(objects.close())


async def _opened(open_store: Callable[[], ObjectStore]) -> ObjectStore:
    return open_store()


async def _check(
    task: SegmentTask, objects: ObjectStore, cluster_id: str, expiration_ms: int
) -> Checked:
    name, segment = task.name, task.segment
    keys = segment_keys(cluster_id, name.topic, segment)
    found: list[SegmentScan] = []

    def scan(log: Buffer) -> None:
        found.append(
            scan_segment(
                log,
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                stretches=[(one.start_offset, one.end_offset) for one in task.stretches],
                rules=SequenceRules(may_skip=task.is_compacted, expiration_ms=expiration_ms),
                problem_max=PROBLEMS_REPORTED_MAX,
            )
        )

    index, wrong = await check_segment(
        objects, name, segment, keys, on_bytes=lambda _: None, on_log=scan
    )
    problems = [
        AuditProblem(name.topic, name.partition, "objects", one.object, None, one.problem)
        for one in wrong
    ]
    scanned = found[0] if found else None
    if scanned is not None:
        if not task.is_compacted:
            problems += _gap_problems(name, keys.log, scanned)
        problems += sequence_problems(name, keys.log, scanned.broken, scanned.broken_count)
    checked = CheckedSegment(
        name=name,
        segment=segment,
        index=None if index is None else LightIndex.of(index),
        batch_count=0 if scanned is None else scanned.batch_count,
        record_count=0 if scanned is None else scanned.record_count,
        problems=tuple(problems),
    )
    stretches = []
    for at, one in enumerate(task.stretches):
        spans = None if scanned is None else scanned.spans[at].tobytes()
        key = (name.topic, name.partition, one.number)
        stretches.append((key, CheckedStretch(one.start_offset, one.end_offset, keys.log, spans)))
    return checked, stretches


def _gap_problems(name: TopicPartition, key: str, scanned: SegmentScan) -> list[AuditProblem]:
    problems = []
    for gap in scanned.gaps:
        where = f"offsets [{gap.start_offset}, {gap.end_offset})"
        if gap.is_within_batch:
            text = f"{gap.missing_count} records of the batch with {where} are missing"
        else:
            text = f"{where} are missing"
        problems.append(
            AuditProblem(name.topic, name.partition, "offsets", key, gap.start_offset, text)
        )
    return problems + _rest(name, "offsets", key, scanned.gap_count - len(scanned.gaps))


def sequence_problems(
    name: TopicPartition, key: str, broken: Sequence[BrokenSequence], count: int
) -> list[AuditProblem]:
    """Return the problems of broken sequences, ``count`` in all."""
    problems = [
        AuditProblem(name.topic, name.partition, "producers", key, one.offset, one.problem)
        for one in broken
    ]
    return problems + _rest(name, "producers", key, count - len(broken))


def _rest(name: TopicPartition, check: str, key: str, count: int) -> list[AuditProblem]:
    if not count:
        return []
    text = f"{count} more like this"
    return [AuditProblem(name.topic, name.partition, check, key, None, text)]


def join_stretches(
    stretches: Iterable[tuple[StretchKey, CheckedStretch]], *, rules_of: dict[str, SequenceRules]
) -> Iterator[AuditProblem]:
    """Yield the gaps in producers' sequences between stretches.

    The stretches of a partition arrive together and in order. After a hole, or a segment that
    could not be read, every producer may start at any sequence.
    """
    partition: tuple[str, int] | None = None
    state, end_offset = no_spans(), -1
    for (topic, number, _), stretch in stretches:
        if (topic, number) != partition or stretch.start_offset != end_offset:
            partition, state = (topic, number), no_spans()
        end_offset = stretch.end_offset
        if stretch.spans is None:
            state = no_spans()
            continue
        spans = np.frombuffer(stretch.spans, SPAN)
        state, broken, count = follow(
            np.concatenate((state, spans)), rules_of[topic], problem_max=PROBLEMS_REPORTED_MAX
        )
        yield from sequence_problems(TopicPartition(topic, number), stretch.object, broken, count)
