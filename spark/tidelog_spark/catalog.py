"""Loads what planning needs: partitions and segments from the metadata store, index objects.

Nothing is ever listed in the object store. A partition's segments are read before its
log start offset: retention moves the log start first and deletes after, so a segment
that is gone from the listing lies below the log start that is read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import numpy as np
from tidelog_core.errors import (
    CorruptObject,
    InvalidConfig,
    ObjectNotFound,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.records import (
    TOPIC_COLLECTION,
    Cluster,
    Partition,
    SegmentMeta,
    Topic,
    cluster_key,
    partition_key,
    segment_collection,
    topic_key,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import segment_keys

from tidelog_spark.options import Assign, Limit, OffsetLimit, ReadOptions, Selection, Subscribe
from tidelog_spark.partition_log import PartitionLog, SegmentIndex, partition_log
from tidelog_spark.planning import MissingIndexes, Plan, plan

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE_MAX = 16
ATTEMPTS_MAX = 3

# A row of the index object's batch table.
_BATCH_ROW = np.dtype(
    [
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("max_timestamp_ms", "<i8"),
        ("position", "<u4"),
        ("size_bytes", "<u4"),
        ("record_count", "<u4"),
        ("flags", "<u4"),
    ]
)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The partitions that a read selects, as of one reading of the metadata."""

    cluster_id: str
    logs: tuple[PartitionLog, ...]

    def log_key(self, partition: TopicPartition, segment: SegmentMeta) -> str:
        """Return the key of the object that holds the segment's batches."""
        return segment_keys(self.cluster_id, partition.topic, segment).log

    def index_key(self, partition: TopicPartition, segment: SegmentMeta) -> str:
        """Return the key of the segment's index object."""
        return segment_keys(self.cluster_id, partition.topic, segment).index


async def make_plan(options: ReadOptions, metadata: MetadataStore, objects: ObjectStore) -> Plan:
    """Return the splits of a read, from metadata items and index objects alone.

    Raises ``UnknownTopicOrPartition``, ``InvalidConfig`` where limits do not fit the
    partitions, ``ObjectNotFound`` and ``CorruptObject`` for index objects, and what
    ``plan`` raises.
    """
    for attempts_left in reversed(range(ATTEMPTS_MAX)):
        try:
            return await _attempt_plan(options, metadata, objects)
        except ObjectNotFound:
            # Retention may have deleted the segment meanwhile: then it is out of the metadata.
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _attempt_plan(
    options: ReadOptions, metadata: MetadataStore, objects: ObjectStore
) -> Plan:
    catalog = await load_catalog(metadata, options.selection)
    partitions = {log.partition for log in catalog.logs}
    problems = [
        *_limit_problems("starting", options.start, partitions),
        *_limit_problems("ending", options.end, partitions),
    ]
    if problems:
        raise InvalidConfig(problems)
    indexes: dict[UUID, SegmentIndex] = {}
    while True:
        answer = plan(options, catalog.logs, indexes, key_of=catalog.log_key)
        if isinstance(answer, Plan):
            for warning in answer.warnings:
                logger.warning("skipped lost offsets", extra={"problem": warning})
            return answer
        indexes |= await _load_indexes(objects, catalog, answer)


async def load_catalog(metadata: MetadataStore, selection: Selection) -> Catalog:
    """Return the selected partitions with their segments.

    Raises ``UnknownTopicOrPartition`` naming everything that is asked for by name and
    not there.
    """
    item = await metadata.get(cluster_key())
    if item is None:
        raise InvalidConfig(["option 'metadata' names a store that holds no cluster"])
    cluster_id = Cluster.from_item(item).cluster_id
    topics = await _selected_topics(metadata, selection)
    wanted: list[tuple[Topic, int]] = []
    for topic in topics:
        numbers: Iterable[int] = range(topic.partition_count)
        if isinstance(selection, Assign):
            numbers = [p.partition for p in selection.partitions if p.topic == topic.name]
        wanted += [(topic, number) for number in numbers]
    absent = [f"{topic.name}-{p}" for topic, p in wanted if p >= topic.partition_count]
    if absent:
        raise UnknownTopicOrPartition(f"there is no partition {', '.join(absent)}")
    logs = await _gather(lambda one: _load_log(metadata, *one), wanted)
    return Catalog(cluster_id, tuple(logs))


async def _selected_topics(metadata: MetadataStore, selection: Selection) -> list[Topic]:
    if isinstance(selection, Subscribe | Assign):
        if isinstance(selection, Subscribe):
            names = list(selection.topics)
        else:
            names = list(dict.fromkeys(partition.topic for partition in selection.partitions))
        items = await _gather(lambda name: metadata.get(topic_key(name)), names)
        absent = [name for name, item in zip(names, items, strict=True) if item is None]
        if absent:
            raise UnknownTopicOrPartition(f"there is no topic {', '.join(map(repr, absent))}")
        return [Topic.from_item(item) for item in items if item is not None]
    pattern = re.compile(selection.pattern)
    topics = [Topic.from_item(item) for item in await metadata.list(TOPIC_COLLECTION)]
    return [t for t in topics if not t.is_internal and pattern.fullmatch(t.name)]


async def _load_log(metadata: MetadataStore, topic: Topic, number: int) -> PartitionLog:
    items = await metadata.list(segment_collection(topic.topic_id, number))
    partition = await metadata.get(partition_key(topic.topic_id, number))
    if partition is None:
        raise UnknownTopicOrPartition(f"partition {topic.name}-{number} is gone")
    return partition_log(
        TopicPartition(topic.name, number),
        Partition.from_item(partition).log_start_offset,
        [SegmentMeta.from_item(item) for item in items],
    )


async def _load_indexes(
    objects: ObjectStore, catalog: Catalog, missing: MissingIndexes
) -> dict[UUID, SegmentIndex]:
    async def load(one: tuple[TopicPartition, SegmentMeta]) -> SegmentIndex:
        partition, segment = one
        key = catalog.index_key(partition, segment)
        return parse_index(await objects.get(key), key, segment)

    loaded = await _gather(load, missing.segments)
    ids = [segment.segment_id for _, segment in missing.segments]
    return dict(zip(ids, loaded, strict=True))


def parse_index(data: bytes, key: str, segment: SegmentMeta) -> SegmentIndex:
    """Return what planning takes from an index object.

    Raises ``CorruptObject`` where it is damaged or another segment's.
    """
    index = IndexFile.parse(data, key=key)
    if index.segment_id != segment.segment_id or index.log_size_bytes != segment.size_bytes:
        raise CorruptObject(
            key,
            f"it describes segment {index.segment_id} of {index.log_size_bytes} bytes, not"
            f" {segment.segment_id} of {segment.size_bytes}",
        )
    rows = np.frombuffer(index.batches.buffer, dtype=_BATCH_ROW)
    found = SegmentIndex(
        base_offsets=rows["base_offset"].astype(np.int64),
        last_offsets=rows["last_offset"].astype(np.int64),
        positions=rows["position"].astype(np.int64),
        sizes=rows["size_bytes"].astype(np.int64),
        max_timestamps=rows["max_timestamp_ms"].astype(np.int64),
        aborted=index.aborted,
    )
    ends = np.concatenate((found.positions[1:], [segment.size_bytes]))
    if len(rows) and (found.positions[0] != 0 or np.any(found.positions + found.sizes != ends)):
        raise CorruptObject(key, "its batches leave gaps in the segment")
    return found


def _limit_problems(side: str, limit: Limit, partitions: set[TopicPartition]) -> Sequence[str]:
    if limit.everywhere is not None or limit.by_partition.keys() == partitions:
        return ()
    option = f"{side}Offsets" if isinstance(limit, OffsetLimit) else f"{side}OffsetsByTimestamp"
    absent = ", ".join(map(str, sorted(partitions - limit.by_partition.keys())))
    surplus = ", ".join(map(str, sorted(limit.by_partition.keys() - partitions)))
    problems = []
    if absent:
        problems.append(f"option {option!r} must name every partition that is read; add {absent}")
    if surplus:
        problems.append(f"option {option!r} names {surplus}, not among the partitions read")
    return problems


async def _gather(call: Callable[[T], Awaitable[R]], arguments: Iterable[T]) -> list[R]:
    """Return the answers in order, a bounded number of calls at once."""
    limit = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

    async def one(argument: T) -> R:
        async with limit:
            return await call(argument)

    return await asyncio.gather(*map(one, arguments))
