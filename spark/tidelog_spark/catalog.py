"""Loads what planning needs to know of partitions from the metadata store.

Nothing is ever listed in the object store. The partitions' segments are read before their
log start offsets: retention moves the log start first and deletes after, so a segment
that is gone from the listing lies below the log start that is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from tidelog_core.errors import CorruptItem, InvalidConfig, UnknownTopicOrPartition
from tidelog_core.metadata.records import (
    TOPIC_COLLECTION,
    Cluster,
    Partition,
    SegmentMeta,
    Topic,
    cluster_key,
    partition_collection,
    partition_key,
    segment_collection,
    segment_key_from,
    topic_key,
)
from tidelog_core.metadata.store import ALL_KEYS, Item, ItemKey, KeyRange, MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.tier.keys import segment_keys

from tidelog_spark.option_values import Assign, Selection, Subscribe, SubscribePattern
from tidelog_spark.partition_log import PartitionLog, partition_log

T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE_MAX = 16
GETS_OF_ONE_TOPIC_MAX = 4
NOTHING_READ: Mapping[tuple[UUID, int], int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Catalog:
    """The partitions that a read selects, as of one reading of the metadata."""

    cluster_id: str
    logs: tuple[PartitionLog, ...]
    topic_ids: Mapping[str, UUID]
    # What a pattern selects (or may select) and nobody can read now, and why: a whole
    # topic, or a partition. What is selected by its name raises instead.
    unreadable_topics: Mapping[str, CorruptItem]
    unreadable: Mapping[TopicPartition, CorruptItem]

    def log_key(self, partition: TopicPartition, segment: SegmentMeta) -> str:
        """Return the key of the object that holds the segment's batches."""
        return segment_keys(self.cluster_id, partition.topic, segment).log

    def index_key(self, partition: TopicPartition, segment: SegmentMeta) -> str:
        """Return the key of the segment's index object."""
        return segment_keys(self.cluster_id, partition.topic, segment).index

    @property
    def warnings(self) -> dict[str, str]:
        """Return what cannot be read, and why."""
        found = {**self.unreadable_topics, **{str(p): e for p, e in self.unreadable.items()}}
        return {name: str(error) for name, error in found.items()}

    def problem_of(self, partition: TopicPartition) -> CorruptItem | None:
        """Return why the partition cannot be read now, ``None`` where it can or is not there."""
        return self.unreadable.get(partition) or self.unreadable_topics.get(partition.topic)


async def load_catalog(
    metadata: MetadataStore,
    selection: Selection,
    *,
    known: Collection[TopicPartition] = (),
    is_tier_wanted: bool = True,
    list_from: Mapping[tuple[UUID, int], int] = NOTHING_READ,
) -> Catalog:
    """Return the selected partitions, with their segments if the tier is wanted.

    ``list_from`` says of partitions, by topic id and number, from which offset on their
    segments are enough; all are listed where those leave a doubt.

    Raises ``UnknownTopicOrPartition`` naming everything that is asked for by name and not
    there, ``known`` ones aside: a stream has read those before they were deleted. Raises
    ``CorruptItem`` where what is asked for by name cannot be read.
    """
    item = await metadata.get(cluster_key())
    if item is None:
        raise InvalidConfig(["option 'metadata' names a store that holds no cluster"])
    cluster_id = Cluster.from_item(item).cluster_id
    topics, unreadable_topics = await _selected_topics(
        metadata, selection, known={partition.topic for partition in known}
    )
    wanted: list[tuple[Topic, int]] = []
    for topic in topics:
        numbers: Iterable[int] = range(topic.partition_count)
        if isinstance(selection, Assign):
            numbers = [p.partition for p in selection.partitions if p.topic == topic.name]
        wanted += [(topic, number) for number in numbers]
    absent = [
        f"{topic.name}-{p}"
        for topic, p in wanted
        if p >= topic.partition_count and TopicPartition(topic.name, p) not in known
    ]
    if absent:
        raise UnknownTopicOrPartition(f"there is no partition {', '.join(absent)}")
    there = [(topic, p) for topic, p in wanted if p < topic.partition_count]
    segments: list[list[Item]] = [[]] * len(there)
    if is_tier_wanted:
        ranges = [
            (topic.topic_id, number, list_from.get((topic.topic_id, number), 0))
            for topic, number in there
        ]
        segments = await gather(partial(_list_segments, metadata), ranges)
    items = await _partition_items(metadata, there)
    logs: list[PartitionLog] = []
    unreadable: dict[TopicPartition, CorruptItem] = {}
    for (topic, number), of_segments in zip(there, segments, strict=True):
        name = TopicPartition(topic.name, number)
        found = items.get(partition_key(topic.topic_id, number))
        if found is not None:
            try:
                listed_from = list_from.get((topic.topic_id, number), 0)
                log = _log(topic, name, found, of_segments, listed_from)
                if not log.is_listed_enough:
                    log = await _log_of_all(metadata, topic, name, found)
                logs.append(log)
            except CorruptItem as error:
                if not isinstance(selection, SubscribePattern):
                    raise
                unreadable[name] = error
        elif not isinstance(selection, SubscribePattern) and name not in known:
            raise UnknownTopicOrPartition(f"topic {topic.name!r} was deleted just now")
    return Catalog(
        cluster_id,
        tuple(logs),
        {topic.name: topic.topic_id for topic in topics},
        unreadable_topics,
        unreadable,
    )


async def _selected_topics(
    metadata: MetadataStore, selection: Selection, *, known: Collection[str]
) -> tuple[list[Topic], dict[str, CorruptItem]]:
    """Return the topics, and of a pattern those that cannot be read, with the problem."""
    if not isinstance(selection, SubscribePattern):
        if isinstance(selection, Subscribe):
            names = list(selection.topics)
        else:
            names = list(dict.fromkeys(partition.topic for partition in selection.partitions))
        items = await gather(lambda name: metadata.get(topic_key(name)), names)
        absent = [name for name, item in zip(names, items, strict=True) if item is None]
        if strange := [name for name in absent if name not in known]:
            raise UnknownTopicOrPartition(f"there is no topic {', '.join(map(repr, strange))}")
        return [Topic.from_item(item) for item in items if item is not None], {}
    pattern = re.compile(selection.pattern)
    topics: list[Topic] = []
    unreadable: dict[str, CorruptItem] = {}
    for item in await metadata.list(TOPIC_COLLECTION):
        if not pattern.fullmatch(item.id.key):
            continue
        try:
            topic = Topic.from_item(item)
        except CorruptItem as error:
            unreadable[item.id.key] = error
        else:
            if not topic.is_internal:
                topics.append(topic)
    return topics, unreadable


async def _partition_items(
    metadata: MetadataStore, wanted: Iterable[tuple[Topic, int]]
) -> dict[ItemKey, Item]:
    """Return the partitions' items, those of a topic with one query if they are many."""
    numbers: dict[UUID, list[int]] = {}
    for topic, number in wanted:
        numbers.setdefault(topic.topic_id, []).append(number)
    many = [one for one, some in numbers.items() if len(some) > GETS_OF_ONE_TOPIC_MAX]
    few = [
        partition_key(one, number)
        for one, some in numbers.items()
        if len(some) <= GETS_OF_ONE_TOPIC_MAX
        for number in some
    ]
    lists = await gather(metadata.list, map(partition_collection, many))
    found = [*chain.from_iterable(lists), *await gather(metadata.get, few)]
    return {item.id: item for item in found if item is not None}


async def _log_of_all(
    metadata: MetadataStore, topic: Topic, partition: TopicPartition, before: Item
) -> PartitionLog:
    """Return the log by all of its segments, and by the log start read after them."""
    number = partition.partition
    segments = await _list_segments(metadata, (topic.topic_id, number, 0))
    item = await metadata.get(partition_key(topic.topic_id, number))
    return _log(topic, partition, before if item is None else item, segments, 0)


async def _list_segments(metadata: MetadataStore, wanted: tuple[UUID, int, int]) -> list[Item]:
    """Return the partition's segments that begin at the offset or above."""
    topic_id, number, offset = wanted
    keys = KeyRange(segment_key_from(offset)) if offset else ALL_KEYS
    return await metadata.list(segment_collection(topic_id, number), keys=keys)


def _log(
    topic: Topic, partition: TopicPartition, item: Item, segments: Iterable[Item], listed_from: int
) -> PartitionLog:
    """Return the partition's log. Raises ``CorruptItem``."""
    log = partition_log(
        partition,
        Partition.from_item(item).log_start_offset,
        [SegmentMeta.from_item(segment) for segment in segments],
        listed_from=listed_from,
    )
    return replace(log, topic_id=topic.topic_id)


async def gather(call: Callable[[T], Awaitable[R]], arguments: Iterable[T]) -> list[R]:
    """Return the answers in order, a bounded number of calls at once."""
    limit = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

    async def one(argument: T) -> R:
        async with limit:
            return await call(argument)

    return await asyncio.gather(*map(one, arguments))
