"""The bucket is told of topics, and not more often than it needs to be."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Cluster, Partition, Topic, put, topic_key
from tidelog_core.metadata.store import ANY_VERSION, MetadataStore, Write
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.tier.keys import topic_manifest_key
from tidelog_core.tier.manifest import TopicManifest
from tidelog_node.tier.manifests import BucketManifests

from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

CONFIGS = {"diskless.enable": "true", "retention.ms": "7"}


class CountedObjects(MemoryObjectStore):
    """Counts what is asked of it."""

    calls = 0

    async def get(self, key: str) -> bytes:
        self.calls += 1
        return await super().get(key)

    async def replace(self, key: str, data: bytes) -> None:
        self.calls += 1
        await super().replace(key, data)


async def add_topic(store: MetadataStore, name: str, topic_id: UUID) -> None:
    topic = Topic(name=name, topic_id=topic_id, partition_count=1, configs=CONFIGS, created_ms=3)
    partition = Partition(
        topic_id=topic_id, partition=0, replicas=(1,), leader=1, leader_epoch=0, isr=(1,)
    )
    await store.commit([put(topic), put(partition)])


def test_a_topic_is_named_before_it_has_a_record_and_once() -> None:
    async def run() -> None:
        store, objects, topic_id = MemoryMetadataStore(), CountedObjects(), uuid4()
        await store.commit([put(Cluster(cluster_id="c"))])
        await add_topic(store, "t", topic_id)
        view = ClusterView(store)
        await view.refresh()
        manifests = BucketManifests(node_context(store, view), objects)
        await manifests.ensure([topic_id, uuid4()])
        key = topic_manifest_key("c", "t", topic_id)
        manifest = TopicManifest.parse(await objects.get(key), key=key)
        assert (manifest.configs, manifest.replication_factor) == (CONFIGS, 1)
        calls = objects.calls
        await manifests.ensure([topic_id])
        assert objects.calls == calls

    asyncio.run(run())


def test_what_is_remembered_is_bounded_by_the_topics_there_are() -> None:
    async def run() -> None:
        store = MemoryMetadataStore()
        await store.commit([put(Cluster(cluster_id="c"))])
        view = ClusterView(store)
        manifests = BucketManifests(node_context(store, view), MemoryObjectStore())
        for number in range(10):
            topic_id = uuid4()
            await add_topic(store, f"t{number}", topic_id)
            await view.refresh()
            await manifests.ensure([topic_id])
            await store.commit([Write(topic_key(f"t{number}"), None, ANY_VERSION)])
            await view.refresh()
        assert len(manifests._persisted) <= 4

    asyncio.run(run())
