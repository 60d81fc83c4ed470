"""Keeps the manifests of the cluster and of topics in the bucket as the metadata store has them.

Without them a restoration from the bucket cannot name the topics. They are written before a topic's
first segment is copied, and before its first record is acknowledged by the bucket (diskless).
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import cluster_manifest_key, topic_manifest_key
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest
from tidelog_core.tier.persisting import persist

from tidelog_node.node_context import NodeContext


class BucketManifests:
    """The manifests that one client has persisted. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, objects: ObjectStore) -> None:
        self._node = node
        self._objects = objects
        # Those last persisted, by key, each with the version of the topic's item then.
        self._persisted: dict[str, tuple[ClusterManifest | TopicManifest, int]] = {}

    async def ensure(self, topic_ids: Iterable[UUID]) -> None:
        """Persist the settings of the cluster and of these topics. Idempotent.

        Topics that the image does not have are passed over. Raises the store's errors.
        """
        image = self._node.view.image
        cluster = ClusterManifest(cluster_id=image.cluster_id)
        await self._ensure(cluster_manifest_key(image.cluster_id), cluster)
        for topic_id in topic_ids:
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                key = topic_manifest_key(image.cluster_id, topic.name, topic.topic_id)
                await self._ensure(key, TopicManifest.of(topic, image), topic.version)
        if len(self._persisted) > 2 * len(image.topics) + 1:
            self._forget_deleted(image)

    def forget_topic(self, topic_id: UUID) -> None:
        """Forget the manifest of a deleted topic."""
        for key in [key for key in self._persisted if str(topic_id) in key]:
            del self._persisted[key]

    def _forget_deleted(self, image: ClusterImage) -> None:
        live = {str(topic.topic_id) for topic in image.topics.values()}
        self._persisted = {
            key: persisted
            for key, persisted in self._persisted.items()
            if isinstance(persisted[0], ClusterManifest) or str(persisted[0].topic_id) in live
        }

    async def _ensure(
        self, key: str, manifest: ClusterManifest | TopicManifest, version: int = 0
    ) -> None:
        # The version counts too: if settings were changed and changed back, another leader may have
        # written those in between.
        if self._persisted.get(key) != (manifest, version):
            await persist(self._objects, key, manifest.to_bytes())
            self._persisted[key] = manifest, version
