"""What is left of a deleted topic goes, and nothing that somebody else has put beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.admin.topics.topic_commits import Deletion, commit_deletions
from tidelog_core.admin.topics.topic_plans import plan_deletion
from tidelog_core.metadata import records
from tidelog_core.metadata.records import ChainTombstone, DeletedTopic, Partition, Topic
from tidelog_core.metadata.store import (
    ALL_KEYS,
    ANY_VERSION,
    COMMIT_WRITES_MAX,
    ClusterVersion,
    Item,
    KeyRange,
    Write,
)
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.retention.deleted_topics import (
    CHAINS_DELAY_MS,
    clean_deleted_topic,
    deletable_topic_ms,
    has_marks,
    read_mark,
    remove_lone_marks,
)
from tidelog_core.tier.contents import PAGE_ITEMS_MAX
from tidelog_core.tier.keys import deletion_key, topic_prefix
from tidelog_core.tier.persisting import persist_deletion

from tests.support.memory_store import MemoryMetadataStore
from tests.support.segment_items import segment_meta

TOMBSTONE = DeletedTopic(topic_id=UUID(int=7), name="t", partition_count=1, deleted_ms=5)


async def test_what_nobody_can_have_put_there_is_left_and_named_when_a_topic_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / topic_prefix("c", TOMBSTONE.name, TOMBSTONE.topic_id) / "0"
    folder.mkdir(parents=True)
    for name in ("a.log", "a.index", "my notes.txt"):
        (folder / name).write_text("x")

    store, objects = MemoryMetadataStore(latency=0), FolderObjectStore(tmp_path)
    await store.commit([records.put(TOMBSTONE)])
    for _ in range(2):  # harmless when repeated
        await persist_deletion(objects, "c", TOMBSTONE)
        await clean_deleted_topic(store, objects, TOMBSTONE, None, cluster_id="c")
    assert await store.list(TOMBSTONE.item_id.collection) == []
    await objects.close()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [folder / "my notes.txt"]
    assert "my notes.txt" in str([vars(record) for record in caplog.records])


class CountingStore(MemoryMetadataStore):
    """Counts what each listing returns: that is worked through in one turn on the event loop."""

    def __init__(self) -> None:
        super().__init__(latency=0)
        self.listed_counts: list[int] = []

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found = await super().list(collection, prefix=prefix, keys=keys)
        self.listed_counts.append(len(found))
        return found


async def test_a_deleted_topic_goes_page_by_page_however_much_there_is(tmp_path: Path) -> None:
    tombstone = dataclasses.replace(TOMBSTONE, partition_count=PAGE_ITEMS_MAX + 50)
    segment_count = 3 * PAGE_ITEMS_MAX

    store, objects = CountingStore(), FolderObjectStore(tmp_path)
    metas = [
        segment_meta(n, n + 1, topic_id=tombstone.topic_id, partition=1)
        for n in range(segment_count)
    ]
    partitions = [
        Partition(
            topic_id=tombstone.topic_id,
            partition=number,
            replicas=(1,),
            leader=1,
            leader_epoch=0,
            isr=(1,),
        )
        for number in range(tombstone.partition_count)
    ]
    written = [records.put(one) for one in (tombstone, *partitions, *metas)]
    for at in range(0, len(written), COMMIT_WRITES_MAX):
        await store.commit(written[at : at + COMMIT_WRITES_MAX])
    await clean_deleted_topic(store, objects, tombstone, None, cluster_id="c")
    assert max(store.listed_counts) == PAGE_ITEMS_MAX
    # Each segment is read to be marked and again to be dropped, and nobody else's twice.
    assert sum(store.listed_counts) == 2 * segment_count + len(partitions)
    assert len(store.listed_counts) < tombstone.partition_count + 20
    for one in (tombstone, partitions[0], metas[0]):
        assert await store.list(one.item_id.collection) == []
    await objects.close()


DISKLESS = Topic(
    topic_id=UUID(int=7), name="t", partition_count=1, configs={"diskless.enable": "true"}
)


async def deleted(store: MemoryMetadataStore, objects: FolderObjectStore) -> DeletedTopic:
    """Delete the diskless topic, and publish that."""
    await store.commit([records.put(DISKLESS)])
    topic = dataclasses.replace(DISKLESS, version=1)
    tombstone = plan_deletion(topic, now_ms=5)
    assert not await commit_deletions(
        store, {"t": Deletion(topic, tombstone)}, is_late=lambda: False
    )
    await persist_deletion(objects, "c", tombstone)
    return tombstone


async def items_left(store: MemoryMetadataStore) -> list[Item]:
    collections = (records.DELETED_TOPIC_COLLECTION, records.CHAIN_TOMBSTONE_COLLECTION)
    return [item for name in collections for item in await store.list(name)]


async def test_of_a_diskless_topic_something_says_for_a_day_that_it_was_deleted(
    tmp_path: Path,
) -> None:
    """Chains have objects with its records, and a restoration must not take them for lost."""
    store, objects = MemoryMetadataStore(latency=0), FolderObjectStore(tmp_path)
    tombstone = await deleted(store, objects)
    assert await has_marks(store)
    mark = await read_mark(store, tombstone.topic_id)
    assert deletable_topic_ms(tombstone, mark, delay_ms=60_000) == 60_005
    for _ in range(2):  # harmless when repeated
        await clean_deleted_topic(store, objects, tombstone, mark, cluster_id="c")
    mark = await read_mark(store, tombstone.topic_id)
    assert mark is not None
    assert mark.is_cleaned
    assert deletable_topic_ms(tombstone, mark, delay_ms=60_000) == 5 + CHAINS_DELAY_MS
    assert len(await items_left(store)) == 2
    assert await remove_lone_marks(store) == 0
    assert await objects.head(deletion_key("c", "t", tombstone.topic_id))
    for _ in range(2):
        await clean_deleted_topic(store, objects, tombstone, mark, cluster_id="c")
        assert await items_left(store) == []
        assert [one async for one in objects.list("")] == []
    await objects.close()


async def test_an_older_program_reads_the_tombstone_of_a_diskless_topic_and_cleans_up(
    tmp_path: Path,
) -> None:
    """It knows no mark. What it leaves goes with the next pass of a newer one."""
    store, objects = MemoryMetadataStore(latency=0), FolderObjectStore(tmp_path)
    tombstone = await deleted(store, objects)
    (item,) = await store.list(records.DELETED_TOPIC_COLLECTION)
    assert item.body.keys() == {"topic_id", "name", "partition_count", "deleted_ms"}
    changes = await store.changes_since(ClusterVersion(0))
    assert changes.keys is not None
    assert {key.collection for key in changes.keys} == {"topic", "deleted-topic"}
    await clean_deleted_topic(store, objects, tombstone, None, cluster_id="c")
    assert [item.id.collection for item in await items_left(store)] == ["chain-tombstone"]
    assert await remove_lone_marks(store) == 1
    assert await items_left(store) == []
    assert not await has_marks(store)
    await objects.close()


async def test_a_tombstone_that_says_itself_that_its_topic_was_diskless_can_be_read(
    tmp_path: Path,
) -> None:
    store, objects = MemoryMetadataStore(latency=0), FolderObjectStore(tmp_path)
    stored = dataclasses.replace(TOMBSTONE, was_diskless=True, is_cleaned=True)
    await store.commit([records.put(stored)])
    (item,) = await store.list(records.DELETED_TOPIC_COLLECTION)
    tombstone = DeletedTopic.from_item(item)
    assert await read_mark(store, tombstone.topic_id) is None
    await clean_deleted_topic(store, objects, tombstone, None, cluster_id="c")
    assert await items_left(store) == []
    await objects.close()


async def test_a_mark_that_cannot_be_read_is_stored_again_by_the_clean_up(tmp_path: Path) -> None:
    store, objects = MemoryMetadataStore(latency=0), FolderObjectStore(tmp_path)
    tombstone = await deleted(store, objects)
    key = records.chain_tombstone_key(tombstone.topic_id)
    await store.commit([Write(key, {"unknown": 1}, ANY_VERSION, False)])
    mark = await read_mark(store, tombstone.topic_id)
    assert mark == ChainTombstone(topic_id=tombstone.topic_id)
    await clean_deleted_topic(store, objects, tombstone, mark, cluster_id="c")
    mark = await read_mark(store, tombstone.topic_id)
    assert mark is not None
    assert mark.is_cleaned
    await objects.close()
