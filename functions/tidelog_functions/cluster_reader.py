"""Reads the metadata that functions need, without a cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.config import NodeConfig, TopicConfig, topic_config
from tidelog_core.errors import CorruptItem, TidelogError
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.records import (
    Cluster,
    DeletedTopic,
    FunctionProgress,
    NodeConfigOverrides,
    Topic,
)
from tidelog_core.metadata.store import ANY_VERSION, ItemKey, MetadataStore, Write
from tidelog_core.tier.keys import TOPIC_NAME_LENGTH_MAX


@dataclass(frozen=True, slots=True)
class Topics:
    """Existing and deleted topics; ``failed`` contains the unreadable items."""

    live: tuple[Topic, ...]
    deleted: tuple[DeletedTopic, ...]
    failed: dict[str, TidelogError]


class ClusterReader:
    """Reads one cluster. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, static_config: NodeConfig) -> None:
        self._store = store
        self._static_config = static_config
        self._image = ClusterImage()
        self._node_configs: dict[int, NodeConfig] = {}
        self._failed: dict[ItemKey, CorruptItem] = {}  # unreadable settings of nodes

    async def cluster_id(self) -> str | None:
        """Return the cluster's id, ``None`` before its first node has started."""
        item = await self._store.get(records.cluster_key())
        return None if item is None else Cluster.from_item(item).cluster_id

    async def load_node_configs(self) -> None:
        """Read the settings changed at run time."""
        found: dict[int | None, NodeConfigOverrides] = {}
        self._failed.clear()
        for item in await self._store.list(records.NODE_CONFIG_COLLECTION):
            try:
                overrides = NodeConfigOverrides.from_item(item)
            except CorruptItem as error:
                self._failed[item.id] = error
            else:
                found[overrides.broker_id] = overrides
        self._image = ClusterImage(node_configs=found)
        self._node_configs.clear()

    def topic_config(self, topic: Topic, broker_id: int) -> TopicConfig:
        """Return the topic's settings on that node.

        Raises ``InvalidConfig``, and ``CorruptItem`` if some settings cannot be read: they may
        retain data that the others would delete.
        """
        for owner in (None, broker_id):
            error = self._failed.get(records.node_config_key(owner))
            if error is not None:
                raise error
        node_config = self._node_configs.get(broker_id)
        if node_config is None:
            node_config = effective_node_config(self._static_config, self._image, broker_id)
            self._node_configs[broker_id] = node_config
        return topic_config(topic.configs, node_config)

    async def topics(self) -> Topics:
        """Return every topic; an unreadable one does not hide others."""
        failed: dict[str, TidelogError] = {}
        live, deleted = [], []
        for item in await self._store.list(records.TOPIC_COLLECTION):
            try:
                live.append(Topic.from_item(item))
            except TidelogError as error:
                failed[f"topic {item.id.key}"] = error
        for item in await self._store.list(records.DELETED_TOPIC_COLLECTION):
            try:
                deleted.append(DeletedTopic.from_item(item))
            except TidelogError as error:
                failed[f"deleted topic {item.id.key}"] = error
        return Topics(tuple(live), tuple(deleted), failed)

    async def find_topic(self, topic_id: UUID, name: str) -> Topic | DeletedTopic | None:
        """Return the topic of an object's key, whose ``name`` may be truncated, or ``None``.

        Raises ``CorruptItem`` if an unreadable item may be the topic's.
        """
        item = await self._store.get(records.topic_key(name))
        items = [] if item is None else [item]
        if len(name) == TOPIC_NAME_LENGTH_MAX:
            items = await self._store.list(records.TOPIC_COLLECTION, prefix=name)
        failed: CorruptItem | None = None
        for found in items:
            try:
                topic = Topic.from_item(found)
            except CorruptItem as error:
                failed = error
                continue
            if topic.topic_id == topic_id:
                return topic
        item = await self._store.get(records.deleted_topic_key(topic_id))
        if item is not None:
            return DeletedTopic.from_item(item)
        if failed is not None:
            raise failed  # It may be the requested one.
        return None


async def read_progress(store: MetadataStore, function: str) -> str:
    """Return the key after which the function's pass continues, empty for its start."""
    item = await store.get(records.function_progress_key(function))
    return "" if item is None else FunctionProgress.from_item(item).resumes_after


async def write_progress(store: MetadataStore, function: str, resumes_after: str) -> None:
    """Store the key. Of two concurrent runs the later wins: at worst work is repeated."""
    progress = FunctionProgress(function=function, resumes_after=resumes_after)
    await store.commit([Write(progress.item_id, progress.to_body(), ANY_VERSION, False)])


def problems_of(failed: Iterable[tuple[str, Exception]]) -> dict[str, str]:
    """Return the failures as text, by place."""
    return {where: f"{type(error).__name__}: {error}" for where, error in failed}
