"""One process's view of the cluster: an immutable image, advanced by the changelog.

``ClusterView`` first loads everything. Each refresh then reads the keys that changed since the
image's version and builds the next image, which shares everything unchanged. An image may hold
items that are newer than its version (they are read after the changelog); the next refresh reads
them again, so an image never stays behind.

Many changes are split into several images, with pauses between them, because subscribers' work
grows with the changes. All but the last have the previous version, so a refresh that is
interrupted starts again from there.

A topic and its partitions always appear together: partitions are read after the topic item that
counts them, and partitions above its count are left out.

An unreadable item is never treated as removed. The image keeps the last readable value, lists the
item in ``unreadable``, and applies all other changes. A partition whose item has become unreadable
has no leader until it is readable again (``stand_in``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import operator
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from tidelog_core.config import GroupConfig, NodeConfig, TopicConfig, group_config, parse_config
from tidelog_core.errors import CorruptItem, InvalidConfig, StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.acls import ACL_COLLECTION, Acls
from tidelog_core.metadata.client_metrics import CLIENT_METRICS_COLLECTION, ClientMetricsOverrides
from tidelog_core.metadata.client_quotas import QUOTA_COLLECTION, QuotaRecords
from tidelog_core.metadata.delegation_tokens import DELEGATION_TOKEN_COLLECTION, DelegationTokens
from tidelog_core.metadata.group_configs import GROUP_CONFIG_COLLECTION, GroupConfigOverrides
from tidelog_core.metadata.readings import Readings
from tidelog_core.metadata.records import (
    PARTITION_COLLECTION_PREFIX,
    Broker,
    Cluster,
    DeletedTopic,
    NodeConfigOverrides,
    Partition,
    Topic,
    node_config_key,
    topic_key,
)
from tidelog_core.metadata.roles import ROLE_COLLECTION, Roles
from tidelog_core.metadata.scram_users import SCRAM_CREDENTIAL_COLLECTION, ScramUsers
from tidelog_core.metadata.security_records import (
    RIGHTS_COLLECTIONS,
    SECURITY_COLLECTIONS,
    SecurityRecords,
    merge_security,
)
from tidelog_core.metadata.store import ClusterVersion, Item, ItemKey, MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.subscribers import Subscribers
from tidelog_core.turns import Turn
from tidelog_core.waiting import wait_and_clear

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

NO_VERSION = ClusterVersion(0)  # before the first logged commit
COLLECTIONS_AT_ONCE_MAX = 16
POLLS_PER_S_MAX = 1500  # of all brokers; each reads the cluster version, and a key takes 3,000
# With this many changed items, and this part of their collection, listing costs less.
LIST_FROM_KEYS = 24
LIST_FROM_SHARE = 1 / 4
# Changed topics, with their partitions, that one image brings: some milliseconds of everyone's
# work. A topic is never divided.
CHANGES_PER_IMAGE_MAX = 150
PARTITIONS_PER_STEP = 50  # read from their items before other tasks may run
LOST_PARTITIONS_MAX = 1000  # of one topic; if more are missing its count is taken for wrong


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
    group_configs: Mapping[str, GroupConfigOverrides] = field(default_factory=dict)
    client_metrics: Mapping[str, ClientMetricsOverrides] = field(default_factory=dict)
    shown_security: frozenset[str] = frozenset()  # of ``SECURITY_COLLECTIONS``
    scram_users: ScramUsers = field(default_factory=ScramUsers)
    delegation_tokens: DelegationTokens = field(default_factory=DelegationTokens)
    acls: Acls = field(default_factory=Acls)
    roles: Roles = field(default_factory=Roles)
    quotas: QuotaRecords = field(default_factory=QuotaRecords)
    # Items that are there and cannot be read, and why.
    unreadable: Mapping[ItemKey, str] = field(default_factory=dict)

    def topic(self, name: str) -> Topic | None:
        """Return the topic, or ``None`` if no topic has this name."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic, or ``None`` if no topic has this id."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """Return the topic's partitions in order; none if the topic does not exist."""
        topic = self.topics.get(name)
        return () if topic is None else self.partitions_by_topic[topic.topic_id]

    def partition(self, partition: TopicPartition) -> Partition | None:
        """Return the partition, or ``None`` if it does not exist."""
        partitions = self.partitions(partition.topic)
        if not 0 <= partition.partition < len(partitions):
            return None
        return partitions[partition.partition]

    def group_config(self, group_id: str, node: NodeConfig) -> GroupConfig:
        """Return the settings of a group, whether it is there or not; ``node`` has the defaults."""
        overrides = self.group_configs.get(group_id)
        return group_config({} if overrides is None else overrides.configs, node)

    def is_unreadable(self, topic: str) -> bool:
        """Whether a topic with this name exists whose item is unreadable."""
        return topic_key(topic) in self.unreadable

    def require_readable(self, topic: str) -> None:
        """Raise ``CorruptItem`` if a topic with this name exists whose item is unreadable."""
        key = topic_key(topic)
        if key in self.unreadable:
            raise CorruptItem((key.collection, key.key), self.unreadable[key])

    def has_all_settings(self, topic: str, broker_id: int) -> bool:
        """Whether the topic's settings on that node are all known.

        An unreadable setting may forbid a deletion that the readable ones allow.
        """
        keys = (topic_key(topic), node_config_key(None), node_config_key(broker_id))
        return not any(key in self.unreadable for key in keys)


# Called after every change with the new image and the names of the topics that were
# created, changed or deleted; the set is empty if only other records changed.
Subscriber = Callable[[ClusterImage, frozenset[str]], None]

# Called with logged changes of items that no image shows.
Watcher = Callable[[Collection[ItemKey]], None]


class ClusterView:
    """Keeps the newest image. For the tasks of one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        read_again_seconds: float = 5.0,
        shows_security: bool = False,
        shows_rights: bool = False,
    ) -> None:
        """Unreadable items are read again that often: their repair may not be logged.

        Only processes that need credentials have images that show them.
        """
        self._store = store
        self._read_again_seconds = read_again_seconds
        self._read_again_at = time.monotonic()  # the unreadable items, last
        shown = SECURITY_COLLECTIONS if shows_security else RIGHTS_COLLECTIONS
        is_shown = shows_security or shows_rights
        # The newest image; empty until the first refresh. Only this view sets it. It is a plain
        # attribute because every small request reads it.
        self.image = ClusterImage(shown_security=frozenset(shown) if is_shown else frozenset())
        self._is_loaded = False
        self._subscribers = Subscribers[ClusterImage, frozenset[str]]()
        self._watchers: list[tuple[str, Watcher]] = []
        self._refreshing = asyncio.Lock()
        self._asked = 0  # refreshes requested
        self._answered = 0  # requested refreshes that a read begun after the request has served
        self._nudged = asyncio.Event()
        self._changed = asyncio.Event()
        self._read_at = -math.inf  # when the last reading ended that did not fail
        self.failure = ""  # why the last reading of ``run`` has failed, "" if it has not

    def seconds_since_read(self) -> float:
        """Return how long ago the store was read last; infinite if it never was."""
        return time.monotonic() - self._read_at

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call back after every change, in the refresh that saw it. Returns the unsubscriber."""
        return self._subscribers.subscribe(callback)

    def watch(self, collection_prefix: str, callback: Watcher) -> Callable[[], None]:
        """Call back with changed items of collections that are not in the image. Returns a remover.

        Called in the refresh that read the changes, after the image was published. Changes before
        the first refresh, and those missed when this view was too far behind, are not reported.
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
                self._read_at = time.monotonic()
        return self.image

    async def run(self, poll_interval: float) -> None:
        """Refresh every ``poll_interval`` seconds and on every nudge, until cancelled.

        Less often if there are so many brokers that their polls together would exceed
        ``POLLS_PER_S_MAX``.
        """
        is_available = True
        while True:
            try:
                await self.refresh()
                if not is_available:
                    logger.info("metadata store answers again")
                is_available = True
                self.failure = ""
            except StoreUnavailable as error:
                if is_available:
                    logger.warning("metadata store is away", extra={"reason": str(error)})
                is_available = False
                self.failure = str(error)
            await wait_and_clear(self._nudged, poll_seconds(self.image, poll_interval))

    async def wait_for(
        self, predicate: Callable[[ClusterImage], bool], timeout: float | None
    ) -> ClusterImage:
        """Return the first image that satisfies the predicate. Raises ``TimeoutError``.

        New images need ``run``, or refreshes by other callers.
        """
        async with asyncio.timeout(timeout):
            while not predicate(self.image):
                await self._changed.wait()
        return self.image

    async def _advance(self) -> None:
        before = self.image
        if not self._is_loaded:
            self._show(await _load(self._store, before))
            return
        changes = await self._store.changes_since(before.version)
        if changes.keys is None:
            self._show(await _load(self._store, before))
            return
        keys = changes.keys | self._to_read_again(before)
        if changes.version == before.version and not keys:
            return
        async for after in _apply(self._store, before, changes.version, keys):
            self._show(after)
        for prefix, watcher in tuple(self._watchers):
            watched = [key for key in keys if key.collection.startswith(prefix)]
            if watched:
                watcher(watched)

    def _show(self, after: ClusterImage) -> None:
        """Publish it as the newest image and call the subscribers."""
        before = self.image
        _log_damage(before.unreadable, after.unreadable)
        if self._is_loaded and after == before:
            return  # The unreadable items still are, and nothing else has changed.
        self.image = after
        self._is_loaded = True
        self._changed.set()
        self._changed = asyncio.Event()
        self._subscribers.notify(after, _changed_topics(before, after))

    def _to_read_again(self, image: ClusterImage) -> frozenset[ItemKey]:
        now = time.monotonic()
        if not image.unreadable or now - self._read_again_at < self._read_again_seconds:
            return frozenset()
        self._read_again_at = now
        return frozenset(image.unreadable)


def poll_seconds(image: ClusterImage, poll_interval: float) -> float:
    """Return the time between two readings, for nodes that should have ``poll_interval``."""
    return max(poll_interval, len(image.brokers) / POLLS_PER_S_MAX)


async def _load(store: MetadataStore, before: ClusterImage) -> ClusterImage:
    """Return the whole image. The version is read first, so concurrent changes are read again.

    ``before`` has the last readable values of items that are unreadable now.
    """
    version = (await store.changes_since(NO_VERSION)).version
    image = ClusterImage(version=version, shown_security=before.shown_security)
    collections = (
        records.CLUSTER_COLLECTION,
        records.BROKER_COLLECTION,
        records.NODE_CONFIG_COLLECTION,
        GROUP_CONFIG_COLLECTION,
        CLIENT_METRICS_COLLECTION,
        *sorted(image.shown_security),
        records.DELETED_TOPIC_COLLECTION,
        records.TOPIC_COLLECTION,
    )
    turn = Turn()
    for collection in collections:
        items: dict[ItemKey, Item | None] = {}
        for item in await store.list(collection):
            await turn.step()
            items[item.id] = item
        image = await _merge(store, image, items, before)
        while items:  # To free a hundred thousand of them at once takes 50 ms.
            items.popitem()
            await turn.step()
    return image


async def _apply(
    store: MetadataStore,
    image: ClusterImage,
    version: ClusterVersion,
    keys: Iterable[ItemKey],
) -> AsyncIterator[ClusterImage]:
    """Yield the images with the items of the changed keys read again, at least one.

    Each adds to the changes of the one before. Only the last one has the version.
    """
    changed = await _read(store, [key for key in keys if _is_shown(image, key.collection)], image)
    portions = _portions(changed, image)
    for portion in portions[:-1]:
        image = await _merge(store, image, portion, image)
        yield image
        await asyncio.sleep(0)
    yield await _merge(store, dataclasses.replace(image, version=version), portions[-1], image)


def _portions(
    changed: Mapping[ItemKey, Item | None], image: ClusterImage
) -> list[dict[ItemKey, Item | None]]:
    """Split the changes into one portion an image; the changes of a topic stay together.

    Brokers, settings and tombstones come first, because later items may name them.
    """
    by_topic: defaultdict[str, dict[ItemKey, Item | None]] = defaultdict(dict)
    portions: list[dict[ItemKey, Item | None]] = [{}]
    for key, item in changed.items():
        if len(portions[-1]) == CHANGES_PER_IMAGE_MAX:
            portions.append({})
        if key.collection == records.TOPIC_COLLECTION:
            by_topic[key.key][key] = item
        elif key.collection.startswith(PARTITION_COLLECTION_PREFIX):
            topic_id = _id(key.collection.removeprefix(PARTITION_COLLECTION_PREFIX))
            name = None if topic_id is None else image.topic_names.get(topic_id)
            by_topic["" if name is None else name][key] = item
        else:
            portions[-1][key] = item
    size = len(portions[-1])
    for name, changes in by_topic.items():
        weight = _weight(changes, image.partitions(name))
        if size and size + weight > CHANGES_PER_IMAGE_MAX:
            portions.append({})
            size = 0
        portions[-1].update(changes)
        size += weight
    return portions


def _weight(changes: Mapping[ItemKey, Item | None], known: Sequence[Partition]) -> int:
    """Return about how many items of a topic its changes make the image compare."""
    counts = [len(changes)]
    for key, item in changes.items():
        if key.collection == records.TOPIC_COLLECTION:
            count = None if item is None else item.body.get("partition_count")
            counts += [len(known), count if isinstance(count, int) else 0]
    return max(counts)


def _is_shown(image: ClusterImage, collection: str) -> bool:
    if collection.startswith(PARTITION_COLLECTION_PREFIX):
        # Partitions that are not in the image yet are read together with their topic.
        return _id(collection.removeprefix(PARTITION_COLLECTION_PREFIX)) in image.topic_names
    if collection in SECURITY_COLLECTIONS:
        return collection in image.shown_security
    return collection in {
        records.CLUSTER_COLLECTION,
        records.BROKER_COLLECTION,
        records.NODE_CONFIG_COLLECTION,
        GROUP_CONFIG_COLLECTION,
        CLIENT_METRICS_COLLECTION,
        records.TOPIC_COLLECTION,
        records.DELETED_TOPIC_COLLECTION,
    }


async def _read(
    store: MetadataStore, keys: Iterable[ItemKey], image: ClusterImage
) -> dict[ItemKey, Item | None]:
    """Return the items of the keys, ``None`` for those that do not exist."""
    by_collection: defaultdict[str, list[ItemKey]] = defaultdict(list)
    for key in keys:
        by_collection[key.collection].append(key)
    found: dict[ItemKey, Item | None] = {
        key: None for some in by_collection.values() for key in some
    }
    to_list, to_get = [], []
    for collection, some in by_collection.items():
        known_count = _known_count(image, collection)
        if len(some) >= max(LIST_FROM_KEYS, known_count * LIST_FROM_SHARE):
            to_list.append(collection)
        else:
            to_get += some
    if to_get:
        found.update(await store.get_many(to_get))
    for start in range(0, len(to_list), COLLECTIONS_AT_ONCE_MAX):
        lists = map(store.list, to_list[start : start + COLLECTIONS_AT_ONCE_MAX])
        for items in await asyncio.gather(*lists):
            found.update((item.id, item) for item in items if item.id in found)
    return found


def _known_count(image: ClusterImage, collection: str) -> int:
    """Return about how many items a listing would bring; 0 where few can be."""
    known: Mapping[str, Sized] = {
        records.TOPIC_COLLECTION: image.topics,
        records.DELETED_TOPIC_COLLECTION: image.deleted_topics,
        GROUP_CONFIG_COLLECTION: image.group_configs,
        CLIENT_METRICS_COLLECTION: image.client_metrics,
        SCRAM_CREDENTIAL_COLLECTION: image.scram_users.records,
        DELEGATION_TOKEN_COLLECTION: image.delegation_tokens.records,
        ACL_COLLECTION: image.acls.records,
        ROLE_COLLECTION: image.roles.records,
        QUOTA_COLLECTION: image.quotas.records,
    }
    if collection in known:
        return len(known[collection])
    topic_id = _id(collection.removeprefix(PARTITION_COLLECTION_PREFIX))
    return 0 if topic_id is None else len(image.partitions_by_topic.get(topic_id, ()))


async def _merge(
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[ItemKey, Item | None],
    before: ClusterImage,
) -> ClusterImage:
    """Return the image with the changed items; ``before`` is used for damaged ones."""
    readings = Readings(image.unreadable)
    cluster_id = image.cluster_id
    brokers = dict(image.brokers)
    node_configs = dict(image.node_configs)
    group_configs = dict(image.group_configs)
    client_metrics = dict(image.client_metrics)
    deleted_topics = dict(image.deleted_topics)
    changed_security: dict[ItemKey, Item | None] = {}
    changed_topics: dict[str, Topic | None] = {}
    changed_partitions: dict[ItemKey, Item | None] = {}
    turn = Turn()
    for key, item in changed.items():
        await turn.step()
        match key.collection:
            case records.CLUSTER_COLLECTION:
                cluster = readings.record(
                    key, item, Cluster.from_item, Cluster(cluster_id=before.cluster_id)
                )
                cluster_id = "" if cluster is None else cluster.cluster_id
            case records.BROKER_COLLECTION if (number := _number(key.key)) is not None:
                known = before.brokers.get(number)
                _set(brokers, number, readings.record(key, item, Broker.from_item, known))
            case records.NODE_CONFIG_COLLECTION if (
                key.key == records.EVERY_NODE or _number(key.key) is not None
            ):
                node = _number(key.key)
                last_configs = before.node_configs.get(node)
                overrides = readings.record(key, item, NodeConfigOverrides.from_item, last_configs)
                _set(node_configs, node, overrides)
            case collection if collection == GROUP_CONFIG_COLLECTION:
                known_group = before.group_configs.get(key.key)
                group = readings.record(key, item, GroupConfigOverrides.from_item, known_group)
                _set(group_configs, key.key, group)
            case collection if collection == CLIENT_METRICS_COLLECTION:
                _set(
                    client_metrics,
                    key.key,
                    readings.record(
                        key,
                        item,
                        ClientMetricsOverrides.from_item,
                        before.client_metrics.get(key.key),
                    ),
                )
            case collection if collection in SECURITY_COLLECTIONS:
                changed_security[key] = item
            case records.DELETED_TOPIC_COLLECTION if (topic_id := _id(key.key)) is not None:
                buried = before.deleted_topics.get(topic_id)
                tombstone = readings.record(key, item, DeletedTopic.from_item, buried)
                _set(deleted_topics, topic_id, tombstone)
            case records.TOPIC_COLLECTION:
                topic = before.topics.get(key.key)
                changed_topics[key.key] = readings.record(key, item, _read_topic, topic)
            case collection if collection.startswith(PARTITION_COLLECTION_PREFIX):
                changed_partitions[key] = item
            case _:
                # A key that no record has. It is listed, so that an operator sees it.
                readings.note_key(key, item)
    image = dataclasses.replace(
        image,
        cluster_id=cluster_id,
        brokers=_shared(image.brokers, dict(sorted(brokers.items()))),
        node_configs=_shared(image.node_configs, node_configs),
        group_configs=_shared(image.group_configs, group_configs),
        client_metrics=_shared(image.client_metrics, client_metrics),
        deleted_topics=_shared(image.deleted_topics, deleted_topics),
    )
    if changed_security:
        security = await merge_security(
            _security(image), changed_security, _security(before), readings
        )
        image = dataclasses.replace(image, **security._asdict())
    image = await _replace_partitions(store, image, changed_partitions, readings)
    image = await _replace_topics(store, image, changed_topics, before, readings)
    return dataclasses.replace(image, unreadable=_still_shown(image, readings.unreadable))


def _security(image: ClusterImage) -> SecurityRecords:
    return SecurityRecords(
        image.scram_users, image.delegation_tokens, image.acls, image.roles, image.quotas
    )


async def _replace_partitions(
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[ItemKey, Item | None],
    readings: Readings,
) -> ClusterImage:
    if not changed:
        return image
    by_topic: dict[UUID, list[Partition]] = {}
    for key, item in changed.items():
        topic_id = _id(key.collection.removeprefix(PARTITION_COLLECTION_PREFIX))
        number = _number(key.key)
        if topic_id is None or number is None:
            continue
        known = by_topic.get(topic_id)
        if known is None:
            known = list(image.partitions_by_topic.get(topic_id, ()))
            by_topic[topic_id] = known
        if number >= len(known):
            continue
        if item is None and not await _is_still(store, image.topic_by_id(topic_id)):
            continue  # The topic is gone; the next refresh removes it.
        known[number] = readings.partition(key, item, topic_id, known[number])
    partitions = {
        topic_id: tuple(known)
        for topic_id, known in by_topic.items()
        # The very records as before are no change.
        if any(map(operator.is_not, known, image.partitions_by_topic.get(topic_id, ())))
    }
    return dataclasses.replace(
        image, partitions_by_topic={**image.partitions_by_topic, **partitions}
    )


async def _replace_topics(
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[str, Topic | None],
    before: ClusterImage,
    readings: Readings,
) -> ClusterImage:
    if not changed:
        return image
    listed = await _list_new_partitions(store, image, changed, before, readings)
    topics, names = dict(image.topics), dict(image.topic_names)
    partitions = dict(image.partitions_by_topic)
    for name, read in changed.items():
        replaced = topics.pop(name, None)
        if replaced is not None:
            del names[replaced.topic_id]
            del partitions[replaced.topic_id]
        topic = read
        if read is not None and read.item_id in readings.unreadable:
            topic = before.topics.get(name)
            if topic is not None and topic.topic_id in image.deleted_topics:
                continue  # The unreadable item is another topic of this name.
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
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[str, Topic | None],
    before: ClusterImage,
    readings: Readings,
) -> dict[UUID, tuple[Partition, ...]]:
    """Return the partitions of the topics that the image has too few or too many of.

    Leaves out a topic that was deleted or replaced since: its item changed after the
    version that is being built, so the next refresh reads it again.
    """
    to_list = [
        topic
        for topic in changed.values()
        if topic is not None
        and len(image.partitions_by_topic.get(topic.topic_id, ())) != topic.partition_count
    ]
    items_by_topic = await _list_partitions(store, to_list)
    listed: dict[UUID, tuple[Partition, ...]] = {}
    turn = Turn()
    for topic in to_list:
        items, count = items_by_topic[topic.topic_id], topic.partition_count
        by_number = {_number(item.id.key): item for item in items}
        if any(number not in by_number for number in range(min(count, len(items) + 1))):
            if not await _is_still(store, topic):
                continue
            if count - len(items) > LOST_PARTITIONS_MAX:
                readings.unreadable[topic.item_id] = (
                    f"{count} partitions, of which {len(items)} are there"
                )
                # So many items cannot be lost: the count is wrong.
                last = before.topics.get(topic.name)
                count = 0 if last is None else last.partition_count
        known = before.partitions_by_topic.get(topic.topic_id, ())
        partitions = []
        for number in range(count):
            if number % PARTITIONS_PER_STEP == 0:
                await turn.step()
            partitions.append(
                readings.partition(
                    records.partition_key(topic.topic_id, number),
                    by_number.get(number),
                    topic.topic_id,
                    known[number] if number < len(known) else None,
                )
            )
        listed[topic.topic_id] = tuple(partitions)
    return listed


async def _list_partitions(store: MetadataStore, topics: Sequence[Topic]) -> dict[UUID, list[Item]]:
    """Return the partition items of each topic, at least those that the topic counts."""
    found: dict[UUID, list[Item]] = {topic.topic_id: [] for topic in topics}
    wide = [topic.topic_id for topic in topics if topic.partition_count >= LIST_FROM_KEYS]
    for start in range(0, len(wide), COLLECTIONS_AT_ONCE_MAX):
        some = wide[start : start + COLLECTIONS_AT_ONCE_MAX]
        lists = await asyncio.gather(*(store.list(records.partition_collection(i)) for i in some))
        found.update(zip(some, lists, strict=True))
    narrow = {
        records.partition_key(topic.topic_id, number): topic.topic_id
        for topic in topics
        if topic.partition_count < LIST_FROM_KEYS
        for number in range(topic.partition_count)
    }
    if narrow:
        for key, item in (await store.get_many(narrow)).items():
            found[narrow[key]].append(item)
    return found


async def _is_still(store: MetadataStore, topic: Topic | None) -> bool:
    """Return whether the topic's item has not changed since it was read."""
    if topic is None:
        return False
    item = await store.get(topic.item_id)
    return item is not None and item.version == topic.version


def _still_shown(image: ClusterImage, unreadable: Mapping[ItemKey, str]) -> dict[ItemKey, str]:
    """Return the unreadable items, without the partitions of removed topics."""
    return {key: unreadable[key] for key in unreadable if _is_shown(image, key.collection)}


def _log_damage(before: Mapping[ItemKey, str], after: Mapping[ItemKey, str]) -> None:
    """Log once that an item has become unreadable, and once that it is readable again."""
    for key in after:
        if key not in before:
            logger.error(
                "metadata item cannot be read",
                extra={"collection": key.collection, "key": key.key, "reason": after[key]},
            )
    for key in before:
        if key not in after:
            logger.info(
                "metadata item is in order again or gone",
                extra={"collection": key.collection, "key": key.key},
            )


def _read_topic(item: Item) -> Topic:
    """Return the topic. Raises ``CorruptItem``, also for settings that this program cannot use."""
    topic = Topic.from_item(item)
    try:
        parse_config(TopicConfig, topic.configs)
    except InvalidConfig as error:
        raise CorruptItem((item.id.collection, item.id.key), str(error)) from None
    return topic


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _number(key: str) -> int | None:
    """Return the number that the key of a broker or a partition is, ``None`` for another key."""
    is_number = len(key) == records.NUMBER_DIGITS and key.isascii() and key.isdigit()
    return int(key) if is_number else None


def _shared(before: Mapping[K, V], after: Mapping[K, V]) -> Mapping[K, V]:
    """Return ``before`` if nothing has changed.

    Users of derived data then see that by identity. Records are compared by identity too,
    because a rewritten record differs only in its version.
    """
    is_same = before.keys() == after.keys() and all(after[key] is before[key] for key in after)
    return before if is_same else after


def _set(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _changed_topics(before: ClusterImage, after: ClusterImage) -> frozenset[str]:
    """Return the topics that differ. Unchanged ones are shared, so identity is compared."""
    names = set(before.topics.keys() - after.topics.keys())
    names.update(n for n, topic in after.topics.items() if before.topics.get(n) is not topic)
    known = before.partitions_by_topic
    names.update(
        after.topic_names[topic_id]
        for topic_id, partitions in after.partitions_by_topic.items()
        if known.get(topic_id) is not partitions
    )
    return frozenset(names)
