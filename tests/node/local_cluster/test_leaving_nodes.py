"""Which partitions only nodes have that are to leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.errors import InvalidRequest
from tidelog_core.metadata import records
from tidelog_core.metadata.records import AckedBy, Partition, Topic
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.local_cluster.leaving_nodes import NAMED_MAX, require_others
from tidelog_node.membership.registration import ensure_cluster

BY = {"chain": AckedBy.CHAIN, "replicas": AckedBy.REPLICAS, "": None}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteMetadataStore]:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    await ensure_cluster(store)
    yield store
    await store.close()


async def create(
    store: SqliteMetadataStore,
    name: str,
    *replicas: tuple[int, ...],
    wish: str = "false",
    acked_by: str = "",
) -> None:
    topic_id = UUID(int=1000 + sum(name.encode()))
    topic = Topic(
        name=name,
        topic_id=topic_id,
        partition_count=len(replicas),
        configs={"diskless.enable": wish},
    )
    partitions = [
        Partition(
            topic_id=topic_id,
            partition=number,
            replicas=some,
            leader=some[0],
            leader_epoch=0,
            isr=some,
            acked_by=BY[acked_by],
        )
        for number, some in enumerate(replicas)
    ]
    await store.commit([*map(records.put, partitions), records.put(topic)])


async def lost(tmp_path: Path, count: int) -> str:
    try:
        await require_others(f"sqlite://{tmp_path}/metadata.db", count)
    except InvalidRequest as error:
        return str(error)
    return ""


async def test_only_partitions_that_no_other_node_has_are_named(
    tmp_path: Path, store: SqliteMetadataStore
) -> None:
    await create(store, "r", (1, 3), (3, 2), (3,), (4, 3))
    assert await lost(tmp_path, 3) == ""
    assert "leave have r-2, r-3: reassign with" in await lost(tmp_path, 2)
    assert "leave have r-1, r-2, r-3: " in await lost(tmp_path, 1)


async def test_a_replica_that_is_being_added_counts_once_it_is_in_sync(
    tmp_path: Path, store: SqliteMetadataStore
) -> None:
    await create(store, "r", (1, 3), (1, 3))
    item = await store.get(records.partition_key(UUID(int=1000 + ord("r")), 0))
    assert item is not None
    moving = replace(Partition.from_item(item), leader=3, isr=(3,), adding=(1,), removing=(3,))
    await store.commit([records.put(moving)])
    assert "leave have r-0: reassign with" in await lost(tmp_path, 2)
    moved = replace(moving, isr=(3, 1), version=moving.version + 1)
    await store.commit([records.put(moved)])
    assert await lost(tmp_path, 2) == ""


async def test_many_are_not_all_named(tmp_path: Path, store: SqliteMetadataStore) -> None:
    await create(store, "r", *[(2,)] * (NAMED_MAX + 1))
    assert f"r-{NAMED_MAX - 1}, …: reassign" in await lost(tmp_path, 1)


@pytest.mark.parametrize(
    ("wish", "acked_by", "is_named"),
    [
        ("true", "chain", False),
        ("true", "replicas", True),  # becoming diskless
        ("true", "", True),
        ("false", "chain", True),  # becoming replicated
        ("false", "replicas", True),
    ],
)
async def test_the_partition_says_whether_the_bucket_has_it_not_the_topic(
    tmp_path: Path, store: SqliteMetadataStore, wish: str, acked_by: str, is_named: bool
) -> None:
    await create(store, "d", (2, 3), wish=wish, acked_by=acked_by)
    assert ("have d-0: " in await lost(tmp_path, 1)) is is_named
