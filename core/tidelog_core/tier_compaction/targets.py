"""Partitions to rewrite, as values that can be sent to workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig, TopicConfig, topic_config
from tidelog_core.errors import UnknownTopicOrPartition
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.records import Topic
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import opened_object_store
from tidelog_core.tier_compaction.partition_tier import PartitionTier


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTarget:
    """One partition's tier, and the URLs of its stores."""

    metadata: str  # URL
    objects: str  # URL
    cluster_id: str
    topic: Topic
    partition: int
    config: TopicConfig
    key_filter_records_max: int

    @property
    def name(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic.name, self.partition)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[PartitionTier]:
        """Open the stores. Raises the errors of opening them."""
        async with (
            opened_metadata_store(self.metadata) as store,
            opened_object_store(self.objects) as objects,
        ):
            yield PartitionTier(
                store=store,
                objects=objects,
                cluster_id=self.cluster_id,
                topic=self.topic,
                partition=self.partition,
                config=self.config,
                key_filter_records_max=self.key_filter_records_max,
                clock_ms=wall_clock_ms,
            )


def rewrite_targets(
    image: ClusterImage,
    topic: str,
    *,
    metadata: str,
    objects: str,
    partitions: Sequence[int] = (),
    static_config: NodeConfig | None = None,
) -> list[RewriteTarget]:
    """Return the topic's partitions, or the named ones.

    ``static_config``: the nodes' settings, where they are known besides those in the store.
    Raises ``UnknownTopicOrPartition``, ``InvalidConfig``.
    """
    found = image.topic(topic)
    if found is None:
        raise UnknownTopicOrPartition.of_topic(topic, image.topics)
    absent = [number for number in partitions if not 0 <= number < found.partition_count]
    if absent:
        raise UnknownTopicOrPartition(f"there is no partition {topic}-{absent[0]}")
    node = effective_node_config(static_config or NodeConfig(), image, None)
    return [
        RewriteTarget(
            metadata=metadata,
            objects=objects,
            cluster_id=image.cluster_id,
            topic=found,
            partition=number,
            config=topic_config(found.configs, node),
            key_filter_records_max=node.tier_key_filter_records_max,
        )
        for number in partitions or range(found.partition_count)
    ]
