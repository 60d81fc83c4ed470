"""What one process knows of the cluster: an immutable image, advanced by the changelog.

``ClusterView`` loads everything once and then follows: each refresh reads the keys
that changed since the image's version and builds the next image, sharing what did
not change. An image may hold items a little newer than its version (they are read
after the changelog); the next refresh reads them again, so it never stays behind.

A topic and its partitions are always seen together: partitions are read after the
topic item that names them, and partitions past its count are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from tidelog_core.errors import CorruptItem, StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.records import (
    Broker,
    Cluster,
    DeletedTopic,
    NodeConfigOverrides,
    Partition,
    Topic,
)
from tidelog_core.metadata.store import ClusterVersion, Item, ItemKey, MetadataStore
from tidelog_core.model import TopicPartition

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

NO_VERSION = ClusterVersion(0)  # before the first logged commit
COLLECTIONS_AT_ONCE_MAX = 16
# From here on one listing of the collection is cheaper than its items one by one.
LIST_FROM_KEYS = 24


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The cluster as it was at about ``version``. Never changed: keep it as long as you like."""

    version: ClusterVersion = NO_VERSION
    cluster_id: str = ""  # empty until the first node has written it
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[UUID, str] = field(default_factory=dict)
    partitions_by_topic: Mapping[UUID, tuple[Partition, ...]] = field(default_factory=dict)
    deleted_topics: Mapping[UUID, DeletedTopic] = field(default_factory=dict)
    node_configs: Mapping[int | None, NodeConfigOverrides] = field(default_factory=dict)

    def topic(self, name: str) -> Topic | None:
        """Return the topic, or ``None`` where there is none of this name."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic, or ``None`` where there is none of this id."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """Return the topic's partitions in order; none where there is no such topic."""
        topic = self.topics.get(name)
        return () if topic is None else self.partitions_by_topic[topic.topic_id]

    def partition(self, partition: TopicPartition) -> Partition | None:
        """Return the partition, or ``None`` where there is none."""
        partitions = self.partitions(partition.topic)
        if not 0 <= partition.partition < len(partitions):
            return None
        return partitions[partition.partition]


# Called after every change with the new image and the names of the topics that were
# created, changed or deleted; the set is empty where only other things changed.
Subscriber = Callable[[ClusterImage, frozenset[str]], None]

# Called with logged changes of items that no image shows.
Watcher = Callable[[Collection[ItemKey]], None]


class ClusterView:
    """Keeps the newest image. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._image = ClusterImage()
        self._is_loaded = False
        self._subscribers: list[Subscriber] = []
        self._watchers: list[tuple[str, Watcher]] = []
        self._refreshing = asyncio.Lock()
        self._asked = 0  # refreshes asked for
        self._answered = 0  # refreshes that a reading begun after the asking has served
        self._nudged = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def image(self) -> ClusterImage:
        """The newest image; empty until the first refresh."""
        return self._image

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call back after every change, in the refresh that saw it. Returns what unsubscribes."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def watch(self, collection_prefix: str, callback: Watcher) -> Callable[[], None]:
        """Call back with changed items of collections that no image shows. Returns the end of it.

        Called in the refresh that saw them, once the image is there. What happened before
        the first refresh, or while this view was too far behind, is not told.
        """
        watcher = (collection_prefix, callback)
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def nudge(self) -> None:
        """Make ``run`` refresh now instead of at its next interval."""
        self._nudged.set()

    async def refresh(self) -> ClusterImage:
        """Return an image that shows every commit that ended before this call.

        Calls that wait for the same reading share it. Raises ``StoreUnavailable``.
        """
        self._asked += 1
        ticket = self._asked
        async with self._refreshing:
            if self._answered < ticket:
                answers = self._asked
                await self._advance()
                self._answered = answers
        return self._image

    async def run(self, poll_interval: float) -> None:
        """Refresh every ``poll_interval`` seconds and on every nudge, until cancelled."""
        is_available = True
        while True:
            try:
                await self.refresh()
                if not is_available:
                    logger.info("metadata store answers again")
                is_available = True
            except StoreUnavailable as error:
                if is_available:
                    logger.warning("metadata store is away", extra={"problem": str(error)})
                is_available = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll_interval):
                    await self._nudged.wait()
            self._nudged.clear()

    async def wait_for(
        self, predicate: Callable[[ClusterImage], bool], timeout: float | None
    ) -> ClusterImage:
        """Return the first image that the predicate holds for. Raises ``TimeoutError``.

        Needs ``run`` (or anyone's refreshes) to bring new images.
        """
        async with asyncio.timeout(timeout):
            while not predicate(self._image):
                await self._changed.wait()
        return self._image

    async def _advance(self) -> None:
        before = self._image
        keys: frozenset[ItemKey] | None = None
        if self._is_loaded:
            changes = await self._store.changes_since(before.version)
            if changes.version == before.version:
                return
            keys = changes.keys
            if keys is None:
                after = await _load(self._store)
            else:
                after = await _apply(self._store, before, changes.version, keys)
        else:
            after = await _load(self._store)
        self._image = after
        self._is_loaded = True
        self._changed.set()
        self._changed = asyncio.Event()
        names = _changed_topics(before, after)
        for subscriber in tuple(self._subscribers):
            subscriber(after, names)
        for prefix, watcher in tuple(self._watchers):
            watched = [key for key in keys or () if key.collection.startswith(prefix)]
            if watched:
                watcher(watched)


async def _load(store: MetadataStore) -> ClusterImage:
    """Return the whole image. The version is read first: what changes meanwhile is read again."""
    version = (await store.changes_since(NO_VERSION)).version
    collections = (
        records.CLUSTER_COLLECTION,
        records.BROKER_COLLECTION,
        records.NODE_CONFIG_COLLECTION,
        records.DELETED_TOPIC_COLLECTION,
        records.TOPIC_COLLECTION,
    )
    image = dataclasses.replace(ClusterImage(), version=version)
    for collection in collections:
        items = {item.id: item for item in await store.list(collection)}
        image = await _merge(store, image, items)
    return image


async def _apply(
    store: MetadataStore,
    image: ClusterImage,
    version: ClusterVersion,
    keys: Iterable[ItemKey],
) -> ClusterImage:
    """Return the image with the items of the changed keys read again."""
    by_collection: dict[str, set[ItemKey]] = defaultdict(set)
    for key in keys:
        if _is_shown(image, key.collection):
            by_collection[key.collection].add(key)
    changed: dict[ItemKey, Item | None] = {}
    reads = list(by_collection.items())
    for start in range(0, len(reads), COLLECTIONS_AT_ONCE_MAX):
        some = reads[start : start + COLLECTIONS_AT_ONCE_MAX]
        for found in await asyncio.gather(*(_read(store, *read) for read in some)):
            changed.update(found)
    return await _merge(store, dataclasses.replace(image, version=version), changed)


def _is_shown(image: ClusterImage, collection: str) -> bool:
    if collection.startswith(records.PARTITION_COLLECTION_PREFIX):
        # Partitions of a topic that the image does not have come with its topic item.
        return _topic_id_of(collection) in image.topic_names
    return collection in {
        records.CLUSTER_COLLECTION,
        records.BROKER_COLLECTION,
        records.NODE_CONFIG_COLLECTION,
        records.TOPIC_COLLECTION,
        records.DELETED_TOPIC_COLLECTION,
    }


async def _read(
    store: MetadataStore, collection: str, keys: set[ItemKey]
) -> dict[ItemKey, Item | None]:
    found: dict[ItemKey, Item | None] = dict.fromkeys(keys)
    if len(keys) >= LIST_FROM_KEYS:
        for item in await store.list(collection):
            if item.id in found:
                found[item.id] = item
        return found
    items = await asyncio.gather(*(store.get(key) for key in keys))
    return dict(zip(keys, items, strict=True))


async def _merge(
    store: MetadataStore, image: ClusterImage, changed: Mapping[ItemKey, Item | None]
) -> ClusterImage:
    cluster_id = image.cluster_id
    brokers = dict(image.brokers)
    node_configs = dict(image.node_configs)
    deleted_topics = dict(image.deleted_topics)
    changed_topics: dict[str, Topic | None] = {}
    changed_partitions: list[Partition] = []
    for key, item in changed.items():
        match key.collection:
            case records.CLUSTER_COLLECTION:
                cluster_id = "" if item is None else Cluster.from_item(item).cluster_id
            case records.BROKER_COLLECTION:
                _set(brokers, int(key.key), None if item is None else Broker.from_item(item))
            case records.NODE_CONFIG_COLLECTION:
                broker_id = None if key.key == records.EVERY_NODE else int(key.key)
                overrides = None if item is None else NodeConfigOverrides.from_item(item)
                _set(node_configs, broker_id, overrides)
            case records.DELETED_TOPIC_COLLECTION:
                tombstone = None if item is None else DeletedTopic.from_item(item)
                _set(deleted_topics, UUID(key.key), tombstone)
            case records.TOPIC_COLLECTION:
                changed_topics[key.key] = None if item is None else Topic.from_item(item)
            case _ if item is not None:
                changed_partitions.append(Partition.from_item(item))
    image = dataclasses.replace(
        image,
        cluster_id=cluster_id,
        brokers=dict(sorted(brokers.items())),
        node_configs=node_configs,
        deleted_topics=deleted_topics,
    )
    image = _replace_partitions(image, changed_partitions)
    return await _replace_topics(store, image, changed_topics)


def _replace_partitions(image: ClusterImage, changed: list[Partition]) -> ClusterImage:
    if not changed:
        return image
    by_topic: dict[UUID, list[Partition]] = {}
    for partition in changed:
        known = by_topic.get(partition.topic_id)
        if known is None:
            known = list(image.partitions_by_topic.get(partition.topic_id, ()))
            by_topic[partition.topic_id] = known
        if partition.partition < len(known):
            known[partition.partition] = partition
    partitions = {topic_id: tuple(known) for topic_id, known in by_topic.items()}
    return dataclasses.replace(
        image, partitions_by_topic={**image.partitions_by_topic, **partitions}
    )


async def _replace_topics(
    store: MetadataStore, image: ClusterImage, changed: Mapping[str, Topic | None]
) -> ClusterImage:
    if not changed:
        return image
    listed = await _list_new_partitions(store, image, changed)
    topics, names = dict(image.topics), dict(image.topic_names)
    partitions = dict(image.partitions_by_topic)
    for name, topic in changed.items():
        before = topics.pop(name, None)
        if before is not None:
            del names[before.topic_id]
            del partitions[before.topic_id]
        if topic is None:
            continue
        found = listed.get(topic.topic_id, image.partitions_by_topic.get(topic.topic_id, ()))
        if len(found) == topic.partition_count:
            topics[name] = topic
            names[topic.topic_id] = name
            partitions[topic.topic_id] = found
    return dataclasses.replace(
        image,
        topics=dict(sorted(topics.items())),
        topic_names=names,
        partitions_by_topic=partitions,
    )


async def _list_new_partitions(
    store: MetadataStore, image: ClusterImage, changed: Mapping[str, Topic | None]
) -> dict[UUID, tuple[Partition, ...]]:
    """Return the partitions of the topics that the image has too few of.

    A topic that was deleted or replaced meanwhile is left out: its item has changed
    after the version that is being built, so the next refresh meets it again.
    """
    to_list = [
        topic
        for topic in changed.values()
        if topic is not None
        and len(image.partitions_by_topic.get(topic.topic_id, ())) != topic.partition_count
    ]
    listed: dict[UUID, tuple[Partition, ...]] = {}
    for start in range(0, len(to_list), COLLECTIONS_AT_ONCE_MAX):
        some = to_list[start : start + COLLECTIONS_AT_ONCE_MAX]
        lists = await asyncio.gather(*(_list_partitions(store, topic) for topic in some))
        for topic, found in zip(some, lists, strict=True):
            if found is not None:
                listed[topic.topic_id] = found
    return listed


async def _list_partitions(store: MetadataStore, topic: Topic) -> tuple[Partition, ...] | None:
    """Return the topic's partitions, ``None`` where the topic changed since it was read."""
    items = await store.list(records.partition_collection(topic.topic_id))
    found = tuple(Partition.from_item(item) for item in items)[: topic.partition_count]
    if [partition.partition for partition in found] == list(range(topic.partition_count)):
        return found
    item = await store.get(topic.item_id)
    if item is None or item.version != topic.version or Topic.from_item(item) != topic:
        return None
    raise CorruptItem(
        (topic.item_id.collection, topic.item_id.key),
        f"{topic.partition_count} partitions, of which {len(found)} in their place are there",
    )


def _topic_id_of(partition_collection: str) -> UUID:
    return UUID(partition_collection.removeprefix(records.PARTITION_COLLECTION_PREFIX))


def _set(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _changed_topics(before: ClusterImage, after: ClusterImage) -> frozenset[str]:
    """Return the topics that differ. Unchanged ones are shared, so identity tells."""
    names = set()
    for name in before.topics.keys() | after.topics.keys():
        one, other = before.topics.get(name), after.topics.get(name)
        if one is not other or before.partitions(name) is not after.partitions(name):
            names.add(name)
    return frozenset(names)
