"""The end of a stream's next micro-batch, and the losses in a batch. No I/O.

A partition without a start position starts at offset 0, as with Spark's Kafka source:
offsets already deleted are a loss. The same holds for a topic that was deleted and created
again. A partition that cannot be read now keeps its position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog_core.model import TopicPartition

from tidelog_spark.options.positions import Positions

if TYPE_CHECKING:
    from tidelog_spark.stores.catalog import Catalog


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one partition."""

    start: int
    end: int


Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True)
class BatchRanges:
    """The ranges that a micro-batch reads, and the ranges that are lost."""

    ranges: Ranges
    problems: tuple[str, ...]


def available(
    start: Positions,
    catalog: Catalog,
    *,
    until: Positions | None = None,
    cut: Collection[TopicPartition] = (),
) -> Ranges:
    """Return the ranges to read after ``start``, up to ``until`` if it is given.

    Contains every partition of the next positions, even with nothing to read, but no deleted
    ones. Ranges of ``cut`` logs end before they start.
    """
    found: dict[TopicPartition, OffsetRange] = {}
    for log in catalog.logs:
        partition = log.partition
        begin = start.offsets.get(partition)
        if begin is None or _is_other_topic(start, catalog, partition.topic):
            if until is not None and partition not in until.offsets:
                continue
            begin = log.log_start_offset
        end = log.end_offset
        if until is not None:
            end = min(end, until.offsets.get(partition, begin))
        # The end may have moved back: it was the nodes' before, and is the tier's now.
        found[partition] = OffsetRange(begin, end if partition in cut else max(begin, end))
    for partition, offset in start.offsets.items():
        if partition not in found and catalog.problem_of(partition) is not None:
            found[partition] = OffsetRange(offset, offset)
    return found


def behind(start: Positions, catalog: Catalog) -> set[TopicPartition]:
    """Return the partitions whose logs end before the start position."""
    return {
        log.partition
        for log in catalog.logs
        if not _is_other_topic(start, catalog, log.partition.topic)
        and log.end_offset < start.offsets.get(log.partition, 0)
    }


def offset_count(ranges: Ranges) -> int:
    """Return the number of offsets to read."""
    return sum(max(0, one.end - one.start) for one in ranges.values())


def advance(
    start: Positions, catalog: Catalog, ranges: Ranges, *, offsets_max: int | None
) -> Positions:
    """Return the end of the next micro-batch.

    With a limit each partition gets a share proportional to its range, and at least one
    offset, so that none waits for the others.
    Source: Spark's Kafka source, maxOffsetsPerTrigger.
    """
    total = offset_count(ranges)
    ends: dict[TopicPartition, int] = {}
    for partition, one in ranges.items():
        share = one.end - one.start
        if offsets_max is not None and total > offsets_max:
            share = min(share, max(1, share * offsets_max // total))
        ends[partition] = one.start + share
    topics = {partition.topic for partition in ends}
    ids = {**start.topic_ids, **catalog.topic_ids}
    return Positions(ends, {topic: ids[topic] for topic in sorted(topics) if topic in ids})


def batch_ranges(start: Positions, end: Positions, catalog: Catalog) -> BatchRanges:
    """Return the ranges between the positions, and a sentence for each loss."""
    ranges: dict[TopicPartition, OffsetRange] = {}
    problems: dict[str, None] = {}
    there = {log.partition for log in catalog.logs}
    for partition, end_offset in sorted(end.offsets.items()):
        topic = partition.topic
        begin = start.offsets.get(partition, 0)
        if partition in start.offsets and _differ(start, end, topic):
            problems[
                f"topic {topic!r} was deleted and created again, and unread records of the"
                f" old one are gone, or the checkpoint is of another cluster: its id was"
                f" {start.topic_ids[topic]} and is {end.topic_ids[topic]}"
            ] = None
            begin = 0
        if end_offset < begin:
            problems[f"the end of {partition} went back from {begin} to {end_offset}"] = None
        elif begin == end_offset:
            continue
        elif catalog.problem_of(partition) is None and (
            partition not in there or _is_other_topic(end, catalog, topic)
        ):
            problems[f"offsets [{begin}, {end_offset}) of {partition} are gone: it was deleted"] = (
                None
            )
        else:
            ranges[partition] = OffsetRange(begin, end_offset)
    for partition in sorted(start.offsets.keys() - end.offsets.keys()):
        problems[
            f"{partition} was deleted, or the options select it no more, and its unread records are"
            " not read"
        ] = None
    return BatchRanges(ranges, tuple(problems))


def _is_other_topic(positions: Positions, catalog: Catalog, topic: str) -> bool:
    now = catalog.topic_ids.get(topic)
    return now is not None and positions.topic_ids.get(topic, now) != now


def _differ(start: Positions, end: Positions, topic: str) -> bool:
    before, after = start.topic_ids.get(topic), end.topic_ids.get(topic)
    return before is not None and after is not None and before != after
