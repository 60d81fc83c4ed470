"""What functions read of a cluster's metadata: just what they need, and again every time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.config import NodeConfig, TopicConfig, topic_config
from tidelog_core.errors import TidelogError
from tidelog_core.metadata import records
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.records import (
    Cluster,
    DeletedTopic,
    FunctionProgress,
    NodeConfigOverrides,
    Topic,
)
from tidelog_core.metadata.store import ANY_VERSION, MetadataStore, Write
from tidelog_core.tier.keys import TOPIC_NAME_LENGTH_MAX


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics there are and were; ``failed`` are the items that cannot be read."""

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

    async def cluster_id(self) -> str | None:
        """Return the cluster's id, ``None`` before its first node has started."""
        item = await self._store.get(records.cluster_key())
        return None if item is None else Cluster.from_item(item).cluster_id

    async def load_node_configs(self) -> None:
        """Read the nodes' settings that were changed while they run."""
        items = await self._store.list(records.NODE_CONFIG_COLLECTION)
        found = map(NodeConfigOverrides.from_item, items)
        self._image = ClusterImage(node_configs={one.broker_id: one for one in found})
        self._node_configs.clear()

    def topic_config(self, topic: Topic, broker_id: int) -> TopicConfig:
        """Return the topic's settings as that node has them. Raises ``InvalidConfig``."""
        node_config = self._node_configs.get(broker_id)
        if node_config is None:
            node_config = effective_node_config(self._static_config, self._image, broker_id)
            self._node_configs[broker_id] = node_config
        return topic_config(topic.configs, node_config)

    async def topics(self) -> Topics:
        """Return every topic; one that cannot be read hides no other."""
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
        """Return the topic of an object's key, where ``name`` may be cut; ``None`` for none."""
        item = await self._store.get(records.topic_key(name))
        items = [] if item is None else [item]
        if len(name) == TOPIC_NAME_LENGTH_MAX:
            items = await self._store.list(records.TOPIC_COLLECTION, prefix=name)
        for topic in map(Topic.from_item, items):
            if topic.topic_id == topic_id:
                return topic
        item = await self._store.get(records.deleted_topic_key(topic_id))
        return None if item is None else DeletedTopic.from_item(item)


async def read_progress(store: MetadataStore, function: str) -> str:
    """Return the key after which the function's pass goes on, empty for its start."""
    item = await store.get(records.function_progress_key(function))
    return "" if item is None else FunctionProgress.from_item(item).resumes_after


async def write_progress(store: MetadataStore, function: str, resumes_after: str) -> None:
    """Store it. Of two runs at once the later one's counts: at worst a part is done again."""
    progress = FunctionProgress(function=function, resumes_after=resumes_after)
    await store.commit([Write(progress.item_id, progress.to_body(), ANY_VERSION, False)])


def problems_of(failed: Iterable[tuple[str, Exception]]) -> dict[str, str]:
    """Return what went wrong, by where, as text."""
    return {where: f"{type(error).__name__}: {error}" for where, error in failed}
