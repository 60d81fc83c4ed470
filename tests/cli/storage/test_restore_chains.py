"""``tidelog restore`` of diskless topics: chains are sealed, and their records come back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.admin.topics.topic_plans import plan_deletion
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import ChainTombstone, Topic, put
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.retention.deleted_topics import clean_deleted_topic
from tidelog_core.tier.keys import cluster_manifest_key, topic_manifest_key
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest
from tidelog_core.tier.persisting import persist_deletion

from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.command import called
from tests.support.memory_store import MemoryMetadataStore
from tests.support.tier_segments import TOPIC_ID, put_segment
from tests.support.wal_objects import batch

CLUSTER = "cluster"
A, B = chain_name(1), chain_name(2)
P0, P4 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 4)
OTHER = PartitionName(chain_name(9).chain_id, 0)


async def put_manifests(store: FolderObjectStore) -> None:
    cluster = ClusterManifest(cluster_id=CLUSTER)
    await store.replace(cluster_manifest_key(CLUSTER), cluster.to_bytes())
    topic = TopicManifest(
        name="t",
        topic_id=TOPIC_ID,
        partition_count=5,
        created_ms=0,
        replication_factor=1,
        configs={"diskless.enable": "true"},
    )
    await store.replace(topic_manifest_key(CLUSTER, "t", TOPIC_ID), topic.to_bytes())


async def build(folder: Path) -> ChainOwner:
    """Partition 4 is tiered up to 20 and goes on in two chains, 0 is in the second one only."""
    put_segment(folder, range(0, 20, 10))
    store = FolderObjectStore(folder)
    await put_manifests(store)
    old, new = ChainOwner(store, CLUSTER, A), ChainOwner(store, CLUSTER, B)
    await old.commit([WalSlice(*P4, 5, batch(18, 2) + batch(20, 2))])
    await old.commit([WalSlice(*P4, 5, batch(22, 3, producer_id=8000, producer_epoch=0))])
    await old.seal(B)
    await new.commit([WalSlice(*P4, 6, batch(25, 5)), WalSlice(*P0, 2, batch(0, 4))])
    await store.close()
    return new


def restore(folder: Path, *options: object, status: int = 0) -> Any:
    metadata = f"sqlite://{folder.parent}/metadata.db"
    arguments = ("--from", f"file://{folder}", "--metadata", metadata, "--json", *options)
    return called("restore", *arguments, status=status).document


def image(folder: Path) -> ClusterImage:
    async def read() -> ClusterImage:
        store = SqliteMetadataStore(folder.parent / "metadata.db")
        try:
            return await ClusterView(store).refresh()
        finally:
            await store.close()

    return asyncio.run(read())


def test_partitions_go_on_in_their_chains_and_the_owner_is_out(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    owner = asyncio.run(build(folder))
    document = restore(folder, "--brokers", "1,2,3", "--replication-factor", 3)
    assert (document["ok"], document["problems"]) == (True, [])
    rows = document["topics"][0]["partitions"]
    assert [row["chain_end"] for row in rows] == [4, None, None, None, 30]
    assert {len(row["replicas"]) for row in rows} == {1}
    found = image(folder)
    assert found.topics["t"].configs == {"diskless.enable": "true"}
    first, *empty, last = found.partitions("t")
    assert first.wal == (EpochChain(2, B, 0),)
    assert last.wal == (EpochChain(5, A, 18), EpochChain(6, B, 25))
    assert {partition.wal for partition in empty} == {()}
    assert last.leader_epoch >= 1006

    async def resume() -> PutOutcome:
        owner.chains = type(owner.chains)(FolderObjectStore(folder), CLUSTER)
        owner.build([WalSlice(*P0, 2, batch(4, 1))])
        return await owner.put(1)

    assert asyncio.run(resume()) is PutOutcome.TAKEN


def test_a_dry_run_seals_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    asyncio.run(build(folder))
    before = sorted(folder.rglob("*"))
    outcome = called("restore", "--from", f"file://{folder}", "--dry-run")
    assert ": 1 topic, 1 segment, " in outcome.lines[-1]
    assert outcome.lines[-1].endswith(", 14 offsets in chains; no problems")
    assert sorted(folder.rglob("*")) == before


def test_a_topic_that_only_chains_have_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "objects"

    async def build_alone() -> None:
        store = FolderObjectStore(folder)
        await put_manifests(store)
        await ChainOwner(store, CLUSTER, A).commit_batches(P0, 0, batch(0, 4))
        await store.close()

    asyncio.run(build_alone())
    assert restore(folder)["ok"]
    assert image(folder).partitions("t")[0].wal == (EpochChain(0, A, 0),)


def test_records_of_a_topic_without_a_manifest_are_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "objects"

    async def build_other() -> None:
        await build(folder)
        store = FolderObjectStore(folder)
        await ChainOwner(store, CLUSTER, chain_name(3)).commit_batches(OTHER, 0, batch(0, 4))
        await store.close()

    asyncio.run(build_other())
    document = restore(folder, status=1)
    (problem,) = document["problems"]
    assert problem["object"] == wal_key(CLUSTER, chain_name(3), 0)
    assert problem["problem"].endswith(f"chains have 4 offsets of {OTHER.topic_id}")


def test_records_of_a_deleted_topic_are_no_problem(tmp_path: Path) -> None:
    """Objects of chains outlive the topic's own, until nobody needs their other records."""
    folder = tmp_path / "objects"

    async def delete_other() -> None:
        await build(folder)
        store = FolderObjectStore(folder)
        await ChainOwner(store, CLUSTER, chain_name(3)).commit_batches(OTHER, 0, batch(0, 4))
        topic = Topic(
            topic_id=OTHER.topic_id,
            name="other",
            partition_count=1,
            configs={"diskless.enable": "true"},
        )
        tombstone = plan_deletion(topic, now_ms=0)
        await persist_deletion(store, CLUSTER, tombstone)
        metadata, mark = MemoryMetadataStore(), ChainTombstone(topic_id=topic.topic_id)
        await metadata.commit([put(tombstone), put(mark, is_logged=False)])
        await clean_deleted_topic(metadata, store, tombstone, mark, cluster_id=CLUSTER)
        await store.close()

    asyncio.run(delete_other())
    document = restore(folder)
    assert (document["ok"], document["problems"]) == (True, [])
    assert [topic["topic"] for topic in document["topics"]] == ["t"]


@pytest.mark.parametrize("cut", [0, 1])
def test_a_lost_object_is_a_hole_behind_which_the_log_begins(tmp_path: Path, cut: int) -> None:
    folder = tmp_path / "objects"
    asyncio.run(build(folder))
    (folder / wal_key(CLUSTER, A, cut)).unlink()
    document = restore(folder, status=1)
    (problem,) = document["problems"]
    start = 22 if cut == 0 else 25
    assert f"{start}) are missing before it" in problem["problem"]
    last = image(folder).partitions("t")[4]
    assert (last.log_start_offset, last.restored_log_start) == (start, start)
    assert last.wal[-1] == EpochChain(6, B, 25)
    assert document["topics"][0]["partitions"][4]["segments"] == 0
