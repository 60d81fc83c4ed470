"""A cluster's object store is recognized by an id that only this store has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.errors import (
    CorruptObject,
    StoreUnavailable,
    WrongObjectStore,
)
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import (
    Cluster,
    KnownObjectStore,
    Partition,
    Topic,
    known_object_store_key,
    put,
    segment_collection,
)
from tidelog_core.metadata.store import ANY_VERSION, ItemKey, MetadataStore, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import (
    cluster_manifest_key,
    store_identity_key,
    topic_manifest_key,
)
from tidelog_core.tier.manifest import ClusterManifest, StoreIdentityObject, TopicManifest
from tidelog_core.tier.store_identity import Accepted, StoreIdentity, accept_store

from tests.support.memory_store import MemoryMetadataStore

CLUSTER = "cluster"
TOPIC = UUID(int=1)
KEY = store_identity_key(CLUSTER)
CHAIN = EpochChain(0, ChainName(1, UUID(int=2)), 0)


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[SqliteMetadataStore]:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    yield store
    await store.close()


def image_with(*partitions: Partition) -> ClusterImage:
    return ClusterImage(cluster_id=CLUSTER, partitions_by_topic={TOPIC: partitions})


def partition(number: int = 0, *, is_diskless: bool) -> Partition:
    return Partition(
        topic_id=TOPIC,
        partition=number,
        replicas=(1,),
        leader=1,
        leader_epoch=0,
        isr=(1,),
        wal=(CHAIN,) if is_diskless else (),
    )


def node_of(metadata: MetadataStore, *partitions: Partition) -> StoreIdentity:
    """Return what a node that has just started knows of the store."""
    return StoreIdentity(metadata, lambda: image_with(*partitions))


async def keys_of(objects: ObjectStore) -> list[str]:
    return [found.key async for found in objects.list("")]


async def known_id(metadata: SqliteMetadataStore) -> str | None:
    item = await metadata.get(known_object_store_key())
    return None if item is None else KnownObjectStore.from_item(item).store_id


async def test_the_first_store_becomes_the_clusters_and_another_one_is_refused(
    metadata: SqliteMetadataStore,
) -> None:
    right, wrong = MemoryObjectStore(), MemoryObjectStore()
    first = node_of(metadata)
    assert not await first.is_known()
    await first.check(right)
    assert await first.is_known()
    for node in (first, node_of(metadata, partition(is_diskless=True))):
        await node.check(right)
        with pytest.raises(WrongObjectStore, match="there is none") as refused:
            await node.check(wrong)
        assert refused.value.retriable
        await node.check(right)
    assert await keys_of(wrong) == []
    assert StoreIdentityObject.parse(await right.get(KEY)).store_id == await known_id(metadata)


async def test_a_store_with_the_objects_of_another_cluster_of_this_name_is_refused(
    metadata: SqliteMetadataStore,
) -> None:
    right, wrong = MemoryObjectStore(), MemoryObjectStore()
    await node_of(metadata).check(right)
    await wrong.put(KEY, StoreIdentityObject(store_id="other").to_bytes())
    with pytest.raises(WrongObjectStore, match="its id is other"):
        await node_of(metadata).check(wrong)


async def test_a_copy_of_all_objects_is_the_same_store(metadata: SqliteMetadataStore) -> None:
    right, copy = MemoryObjectStore(), MemoryObjectStore()
    await node_of(metadata).check(right)
    await copy.put(KEY, await right.get(KEY))
    await node_of(metadata).check(copy)


async def test_metadata_that_was_restored_from_the_bucket_knows_its_store(
    metadata: SqliteMetadataStore, tmp_path: Path
) -> None:
    right, wrong = MemoryObjectStore(), MemoryObjectStore()
    await node_of(metadata).check(right)
    await right.put(cluster_manifest_key(CLUSTER), ClusterManifest(cluster_id=CLUSTER).to_bytes())
    restored = SqliteMetadataStore(tmp_path / "restored.db")
    with pytest.raises(WrongObjectStore):
        await node_of(restored, partition(is_diskless=True)).check(wrong)
    await node_of(restored, partition(is_diskless=True)).check(right)
    assert await known_id(restored) == await known_id(metadata)
    await restored.close()


@pytest.mark.parametrize("is_diskless", [True, False], ids=["diskless", "tiered"])
async def test_a_cluster_of_a_program_that_noted_no_store_keeps_the_one_with_its_manifest(
    metadata: SqliteMetadataStore, *, is_diskless: bool
) -> None:
    """The first node of the new program may start while the file system is not mounted."""
    right, unmounted = MemoryObjectStore(), MemoryObjectStore()
    await right.put(cluster_manifest_key(CLUSTER), ClusterManifest(cluster_id=CLUSTER).to_bytes())
    if not is_diskless:
        segment = ItemKey(segment_collection(TOPIC, 20), "0")
        await metadata.commit([Write(segment, {}, ANY_VERSION, is_logged=False)])
    partitions = [partition(number, is_diskless=False) for number in range(20)]
    partitions.append(partition(20, is_diskless=is_diskless))
    with pytest.raises(WrongObjectStore, match=r"has no object cluster/cluster\.json"):
        await node_of(metadata, *partitions).check(unmounted)
    assert await keys_of(unmounted) == []
    assert await known_id(metadata) is None
    await node_of(metadata, *partitions).check(right)
    assert await known_id(metadata) is not None


async def test_a_cluster_without_records_in_a_store_takes_any(
    metadata: SqliteMetadataStore,
) -> None:
    await node_of(metadata, partition(is_diskless=False)).check(MemoryObjectStore())


class Turns:
    """A store whose calls wait for their turn in an order that the seed decides."""

    def __init__(self, store: MemoryObjectStore, pause: Callable[[], int]) -> None:
        self._store = store
        self._pause = pause

    async def get(self, key: str) -> bytes:
        await self._wait()
        return await self._store.get(key)

    async def put(self, key: str, data: bytes) -> None:
        await self._wait()
        await self._store.put(key, data)

    async def _wait(self) -> None:
        for _ in range(self._pause()):
            await asyncio.sleep(0)


@pytest.mark.parametrize("delays", [(0, 0), (0, 1), (1, 0), (0, 5), (5, 0), (2, 3)])
async def test_of_two_first_nodes_with_two_stores_one_is_refused(
    metadata: SqliteMetadataStore, delays: tuple[int, int]
) -> None:
    stores = [MemoryObjectStore(), MemoryObjectStore()]
    nodes = [node_of(metadata), node_of(metadata)]
    checks = [
        node.check(Turns(store, lambda delay=delay: delay))
        for node, store, delay in zip(nodes, stores, delays, strict=True)
    ]
    first, second = await asyncio.gather(*checks, return_exceptions=True)
    assert sorted([type(first).__name__, type(second).__name__]) == ["NoneType", "WrongObjectStore"]
    chosen = stores[0] if first is None else stores[1]
    assert StoreIdentityObject.parse(await chosen.get(KEY)).store_id == await known_id(metadata)
    for node in nodes:
        await node.check(chosen)


@pytest.mark.parametrize("delays", [(0, 0), (0, 1), (1, 0), (0, 5), (5, 0), (2, 3)])
async def test_two_first_nodes_with_one_store_agree_on_it(
    metadata: SqliteMetadataStore, delays: tuple[int, int]
) -> None:
    store = MemoryObjectStore()
    nodes = [node_of(metadata), node_of(metadata)]
    await asyncio.gather(
        *(
            node.check(Turns(store, lambda delay=delay: delay))
            for node, delay in zip(nodes, delays, strict=True)
        )
    )
    assert await keys_of(store) == [KEY]


async def test_a_node_killed_between_object_and_item_leaves_an_object_that_counts(
    metadata: SqliteMetadataStore,
) -> None:
    store = MemoryObjectStore()
    await store.put(KEY, StoreIdentityObject(store_id="left").to_bytes())
    await node_of(metadata).check(store)
    assert await known_id(metadata) == "left"


async def test_a_known_store_is_recognized_while_the_metadata_store_does_not_answer() -> None:
    """So a worker that restarts then serves."""
    right, metadata = MemoryObjectStore(), MemoryMetadataStore()
    node = node_of(metadata)
    await node.check(right)
    metadata.is_available = False
    await node.check(right)
    with pytest.raises(StoreUnavailable):
        await node_of(metadata).check(right)


async def test_a_node_that_refused_a_store_takes_it_once_it_is_accepted(
    metadata: SqliteMetadataStore,
) -> None:
    lost, empty = MemoryObjectStore(), MemoryObjectStore()
    node = node_of(metadata)
    await node.check(lost)
    before = await known_id(metadata)
    with pytest.raises(WrongObjectStore):
        await node.check(empty)
    accepted = await accept_store(empty, metadata, CLUSTER)
    assert accepted == Accepted(before, StoreIdentityObject.parse(await empty.get(KEY)).store_id)
    assert await accept_store(empty, metadata, CLUSTER) == Accepted(accepted.now, accepted.now)
    await node.check(empty)
    with pytest.raises(WrongObjectStore):
        await node.check(lost)


async def test_a_store_may_be_accepted_that_was_never_known(metadata: SqliteMetadataStore) -> None:
    """After an upgrade, if the objects of before are lost."""
    empty = MemoryObjectStore()
    node = node_of(metadata, partition(is_diskless=True))
    with pytest.raises(WrongObjectStore):
        await node.check(empty)
    assert (await accept_store(empty, metadata, CLUSTER)).before is None
    await node.check(empty)


async def test_an_unreadable_id_is_replaced_when_the_store_is_accepted(
    metadata: SqliteMetadataStore,
) -> None:
    store = MemoryObjectStore()
    await node_of(metadata).check(store)
    await store.replace(KEY, b"{}")
    with pytest.raises(CorruptObject):
        await node_of(metadata).check(store)
    await accept_store(store, metadata, CLUSTER)
    await node_of(metadata).check(store)


# -- the manifests of an accepted store --


async def stored_topics(metadata: MetadataStore, *names: str) -> dict[str, UUID]:
    """Store a cluster with these topics; return their ids."""
    ids = {name: UUID(int=100 + number) for number, name in enumerate(names)}
    await metadata.commit([put(Cluster(cluster_id=CLUSTER))])
    for name, topic_id in ids.items():
        partition = Partition(
            topic_id=topic_id, partition=0, replicas=(1, 2), leader=1, leader_epoch=0, isr=(1,)
        )
        topic = Topic(
            name=name,
            topic_id=topic_id,
            partition_count=1,
            configs={"retention.ms": f"{len(name)}"},
        )
        await metadata.commit([put(topic), put(partition)])
    return ids


async def manifest_of(objects: ObjectStore, name: str, topic_id: UUID) -> TopicManifest:
    key = topic_manifest_key(CLUSTER, name, topic_id)
    return TopicManifest.parse(await objects.get(key), key=key)


async def test_an_accepted_store_has_the_manifests_of_all_topics(
    metadata: SqliteMetadataStore,
) -> None:
    """Nodes that run take them to be there, and nothing can be restored without them."""
    ids = await stored_topics(
        metadata, *(f"t{number}" for number in range(40)), CONSUMER_OFFSETS_TOPIC
    )
    lost, empty = MemoryObjectStore(), MemoryObjectStore()
    await node_of(metadata).check(lost)
    await accept_store(empty, metadata, CLUSTER)
    del ids[CONSUMER_OFFSETS_TOPIC]
    for name, topic_id in ids.items():
        found = await manifest_of(empty, name, topic_id)
        assert (found.name, found.topic_id, found.configs) == (
            name,
            topic_id,
            {"retention.ms": f"{len(name)}"},
        )
        assert found.replication_factor == 2
    cluster = await empty.get(cluster_manifest_key(CLUSTER))
    assert ClusterManifest.parse(cluster).cluster_id == CLUSTER
    assert len(await keys_of(empty)) == len(ids) + 2


async def test_a_manifest_that_a_node_has_written_to_an_accepted_store_stays(
    metadata: SqliteMetadataStore,
) -> None:
    """The node may have newer settings than the command."""
    ids = await stored_topics(metadata, "t", "u")
    empty = MemoryObjectStore()
    newer = replace(new_manifest("t", ids["t"]), configs={"retention.ms": "77"})
    await empty.put(topic_manifest_key(CLUSTER, "t", ids["t"]), newer.to_bytes())
    await accept_store(empty, metadata, CLUSTER)
    assert await manifest_of(empty, "t", ids["t"]) == newer
    assert (await manifest_of(empty, "u", ids["u"])).configs == {"retention.ms": "1"}


def new_manifest(name: str, topic_id: UUID) -> TopicManifest:
    return TopicManifest(
        name=name, topic_id=topic_id, partition_count=1, created_ms=0, replication_factor=1
    )


async def test_the_manifests_are_completed_by_the_next_call(metadata: SqliteMetadataStore) -> None:
    ids = await stored_topics(metadata, "t", "u")
    empty = FailingStore("u")
    with pytest.raises(StoreUnavailable):
        await accept_store(empty, metadata, CLUSTER)
    before = await known_id(metadata)
    empty.failing = "nothing"
    assert await accept_store(empty, metadata, CLUSTER) == Accepted(before, str(before))
    for name, topic_id in ids.items():
        assert (await manifest_of(empty, name, topic_id)).name == name


class FailingStore(MemoryObjectStore):
    """A store that takes no object of one topic."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self.failing = failing

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        if f"/{self.failing}-" in key:
            raise StoreUnavailable("away")
        await super().put(key, data, kms_key_id=kms_key_id)
