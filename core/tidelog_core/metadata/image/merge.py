"""Merges changed items into an image: the next image, which shares everything unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from tidelog_core.config import TopicConfig, parse_config
from tidelog_core.errors import CorruptItem, InvalidConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.client_metrics import CLIENT_METRICS_COLLECTION, ClientMetricsOverrides
from tidelog_core.metadata.coordination.group_configs import (
    GROUP_CONFIG_COLLECTION,
    GroupConfigOverrides,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.readings import Readings
from tidelog_core.metadata.image.security_records import (
    SECURITY_COLLECTIONS,
    SecurityRecords,
    merge_security,
)
from tidelog_core.metadata.image.topics import replace_partitions, replace_topics
from tidelog_core.metadata.records import (
    PARTITION_COLLECTION_PREFIX,
    Broker,
    Cluster,
    DeletedTopic,
    NodeConfigOverrides,
    Topic,
    parse_id,
    parse_number,
)
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore
from tidelog_core.turns import Turn

K = TypeVar("K")
V = TypeVar("V")


async def merge(
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[ItemKey, Item | None],
    before: ClusterImage,
) -> ClusterImage:
    """Return the image with the changed items; ``before`` is used for damaged ones."""
    change = _ImageChange(image, before)
    turn = Turn()
    for key, item in changed.items():
        await turn.step()
        change.take(key, item)
    readings = change.readings
    image = change.changed_image()
    if change.security:
        security = await merge_security(
            _security(image), change.security, _security(before), readings
        )
        image = dataclasses.replace(image, **security._asdict())
    image = await replace_partitions(store, image, change.partitions, readings)
    image = await replace_topics(store, image, change.topics, before, readings)
    return dataclasses.replace(image, unreadable=_still_shown(image, readings.unreadable))


def shows(image: ClusterImage, collection: str) -> bool:
    """Whether the image shows items of the collection."""
    if collection.startswith(PARTITION_COLLECTION_PREFIX):
        # Partitions that are not in the image yet are read together with their topic.
        return parse_id(collection.removeprefix(PARTITION_COLLECTION_PREFIX)) in image.topic_names
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


class _ImageChange:
    """The small records of an image, copied to be changed, and the other changes, sorted by kind.

    ``before`` has the last readable value of an item that is damaged now.
    """

    def __init__(self, image: ClusterImage, before: ClusterImage) -> None:
        self.readings = Readings(image.unreadable)
        self.security: dict[ItemKey, Item | None] = {}
        self.topics: dict[str, Topic | None] = {}
        self.partitions: dict[ItemKey, Item | None] = {}
        self._image = image
        self._before = before
        self._cluster_id = image.cluster_id
        self._brokers = dict(image.brokers)
        self._node_configs = dict(image.node_configs)
        self._group_configs = dict(image.group_configs)
        self._client_metrics = dict(image.client_metrics)
        self._deleted_topics = dict(image.deleted_topics)

    def take(self, key: ItemKey, item: Item | None) -> None:
        """Take one changed item, ``None`` for a removed one."""
        readings, before = self.readings, self._before
        match key.collection:
            case records.CLUSTER_COLLECTION:
                known = Cluster(cluster_id=before.cluster_id)
                cluster = readings.record(key, item, Cluster.from_item, known)
                self._cluster_id = "" if cluster is None else cluster.cluster_id
            case records.BROKER_COLLECTION if (number := parse_number(key.key)) is not None:
                last = before.brokers.get(number)
                _set(self._brokers, number, readings.record(key, item, Broker.from_item, last))
            case records.NODE_CONFIG_COLLECTION if (
                key.key == records.EVERY_NODE or parse_number(key.key) is not None
            ):
                node = parse_number(key.key)
                last_configs = before.node_configs.get(node)
                overrides = readings.record(key, item, NodeConfigOverrides.from_item, last_configs)
                _set(self._node_configs, node, overrides)
            case collection if collection == GROUP_CONFIG_COLLECTION:
                last_group = before.group_configs.get(key.key)
                group = readings.record(key, item, GroupConfigOverrides.from_item, last_group)
                _set(self._group_configs, key.key, group)
            case collection if collection == CLIENT_METRICS_COLLECTION:
                last_metrics = before.client_metrics.get(key.key)
                metrics = readings.record(key, item, ClientMetricsOverrides.from_item, last_metrics)
                _set(self._client_metrics, key.key, metrics)
            case collection if collection in SECURITY_COLLECTIONS:
                self.security[key] = item
            case records.DELETED_TOPIC_COLLECTION if (topic_id := parse_id(key.key)) is not None:
                last_deleted = before.deleted_topics.get(topic_id)
                deleted = readings.record(key, item, DeletedTopic.from_item, last_deleted)
                _set(self._deleted_topics, topic_id, deleted)
            case records.TOPIC_COLLECTION:
                topic = before.topics.get(key.key)
                self.topics[key.key] = readings.record(key, item, _read_topic, topic)
            case collection if collection.startswith(PARTITION_COLLECTION_PREFIX):
                self.partitions[key] = item
            case _:
                # A key that no record has. It is listed, so that an operator sees it.
                readings.note_key(key, item)

    def changed_image(self) -> ClusterImage:
        """Return the image with the small records changed."""
        image = self._image
        return dataclasses.replace(
            image,
            cluster_id=self._cluster_id,
            brokers=_shared(image.brokers, dict(sorted(self._brokers.items()))),
            node_configs=_shared(image.node_configs, self._node_configs),
            group_configs=_shared(image.group_configs, self._group_configs),
            client_metrics=_shared(image.client_metrics, self._client_metrics),
            deleted_topics=_shared(image.deleted_topics, self._deleted_topics),
        )


def _security(image: ClusterImage) -> SecurityRecords:
    return SecurityRecords(
        image.scram_users, image.delegation_tokens, image.acls, image.roles, image.quotas
    )


def _still_shown(image: ClusterImage, unreadable: Mapping[ItemKey, str]) -> dict[ItemKey, str]:
    """Return the unreadable items, without the partitions of removed topics."""
    return {key: unreadable[key] for key in unreadable if shows(image, key.collection)}


def _read_topic(item: Item) -> Topic:
    """Return the topic. Raises ``CorruptItem``, also for settings that this program cannot use."""
    topic = Topic.from_item(item)
    try:
        parse_config(TopicConfig, topic.configs)
    except InvalidConfig as error:
        raise CorruptItem((item.id.collection, item.id.key), str(error)) from None
    return topic


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
