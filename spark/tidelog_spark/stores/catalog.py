"""Loads the partitions to plan from the metadata store.

The object store is listed only for chains of diskless topics. The partitions' segments are read
before their log start offsets: retention advances the log start first and deletes afterwards, so
a segment that is missing from the listing is below the log start.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptItem, InvalidConfig, UnknownTopicOrPartition
from tidelog_core.metadata.epoch_chains import EpochChains
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

from tidelog_spark.options.option_values import Assign, Selection, Subscribe, SubscribePattern
from tidelog_spark.stores.chain_tails import ChainTails
from tidelog_spark.stores.partition_log import PartitionLog, partition_log

T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE_MAX = 16
GETS_OF_ONE_TOPIC_MAX = 4
DISKLESS_ENABLE = "diskless.enable"
NOTHING_READ: Mapping[tuple[UUID, int], int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Catalog:
    """The selected partitions at one reading of the metadata."""

    cluster_id: str
    logs: tuple[PartitionLog, ...]
    topic_ids: Mapping[str, UUID]
    # Topics and partitions that a pattern selects (or may select) but that cannot be read,
    # with the reason. Those selected by name raise instead.
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
        """Return the topics and partitions that cannot be read, with the reasons."""
        found = {**self.unreadable_topics, **{str(p): e for p, e in self.unreadable.items()}}
        return {name: str(error) for name, error in found.items()}

    def problem_of(self, partition: TopicPartition) -> CorruptItem | None:
        """Return why the partition cannot be read, or ``None``."""
        return self.unreadable.get(partition) or self.unreadable_topics.get(partition.topic)


async def load_catalog(
    metadata: MetadataStore,
    selection: Selection,
    *,
    known: Collection[TopicPartition] = (),
    is_tier_wanted: bool = True,
    list_from: Mapping[tuple[UUID, int], int] = NOTHING_READ,
    tails: ChainTails | None = None,
) -> Catalog:
    """Return the selected partitions, with their segments if the tier is wanted.

    ``list_from`` gives, by topic id and number, the offset from which segments are needed;
    all segments are listed if those leave a gap. With ``tails`` the logs of diskless topics
    continue in chains.

    Raises ``UnknownTopicOrPartition`` with everything selected by name that does not exist,
    except ``known`` topics: a stream has read those before they were deleted. Raises
    ``CorruptItem`` if something selected by name cannot be read.
    """
    item = await metadata.get(cluster_key())
    if item is None:
        raise InvalidConfig(["option 'metadata' names a store without a cluster; check the url"])
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
    if tails is not None:
        await _read_tails(metadata, tails, cluster_id, there)
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
                log = await _whole_log(metadata, topic, log, found, tails)
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


async def _whole_log(
    metadata: MetadataStore,
    topic: Topic,
    log: PartitionLog,
    item: Item,
    tails: ChainTails | None,
) -> PartitionLog:
    """Return the log without gaps that come from listing some segments only, and its tail."""
    if not log.is_listed_enough:
        log = await _log_of_all(metadata, topic, log.partition, item)
    if tails is None:
        return log
    found = tails.with_tail(log, is_over_gaps=False)
    if not tails.is_behind(found):
        return found
    log = await _log_of_all(metadata, topic, log.partition, item)
    return tails.with_tail(log, is_over_gaps=True)


async def _read_tails(
    metadata: MetadataStore, tails: ChainTails, cluster_id: str, wanted: list[tuple[Topic, int]]
) -> None:
    """Read the chains of diskless partitions, whose items are read for that."""
    # Topics that were diskless still have the setting: chains may have what the tier lacks.
    diskless = [(topic, n) for topic, n in wanted if DISKLESS_ENABLE in topic.configs]
    items = await _partition_items(metadata, diskless)
    chains: dict[PartitionName, EpochChains] = {}
    for topic, number in diskless:
        if (item := items.get(partition_key(topic.topic_id, number))) is not None:
            with suppress(CorruptItem):  # It is read again for its log start, and reported.
                name = PartitionName(topic.topic_id, number)
                chains[name] = Partition.from_item(item).readable_wal
    await tails.read(cluster_id, chains)


async def _selected_topics(
    metadata: MetadataStore, selection: Selection, *, known: Collection[str]
) -> tuple[list[Topic], dict[str, CorruptItem]]:
    """Return the topics, and unreadable ones that the pattern may select, with the problem."""
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
    """Return the partitions' items; many items of a topic are read by one query."""
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
    """Return the log of all its segments, and of the log start read after them."""
    number = partition.partition
    segments = await _list_segments(metadata, (topic.topic_id, number, 0))
    item = await metadata.get(partition_key(topic.topic_id, number))
    return _log(topic, partition, before if item is None else item, segments, 0)


async def _list_segments(metadata: MetadataStore, wanted: tuple[UUID, int, int]) -> list[Item]:
    """Return the partition's segments with base offsets at or after the offset."""
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
    """Return the answers in order, with a limited number of concurrent calls."""
    limit = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

    async def one(argument: T) -> R:
        async with limit:
            return await call(argument)

    return await asyncio.gather(*map(one, arguments))
