"""A lost log is begun where the tier ends, with the producers of the tier, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tidelog_core.errors import StorageError, TidelogError
from tidelog_core.log.checkpoint import read_checkpoint
from tidelog_core.log.paths import START_OFFSET_FILE
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.tier.contents import PAGE_ITEMS_MAX, READS_MAX
from tidelog_node.logs import restore
from tidelog_node.logs.directories import LogDirectories

from tests.support.segment_items import PARTITION, TOPIC_ID, SwappingStore, neighbours, put_segments
from tests.support.tier_node import BROKER_ID, TOPIC, running_node


async def test_a_lost_log_is_not_begun_inside_a_tier_that_is_being_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "REWRITTEN_RETRY_S", 0.0)
    metas = neighbours(PAGE_ITEMS_MAX + 50)
    partition = Partition(
        topic_id=TOPIC_ID,
        partition=PARTITION,
        replicas=(1,),
        leader=1,
        leader_epoch=0,
        isr=(1,),
        log_start_offset=0,
    )
    held = restore._Held(TopicPartition("t", PARTITION), TOPIC_ID)

    store = SwappingStore(metas, swap_count=READS_MAX)
    await put_segments(store, metas)
    directories = LogDirectories(tmp_path)
    try:
        laid = await restore._lay_start(store, directories, held, partition)
    finally:
        directories.close()
    assert laid is not None
    directory, last = laid
    assert last.end_offset == metas[-1].end_offset
    assert read_checkpoint(directory / START_OFFSET_FILE) == [[0, metas[-1].end_offset]]


async def lose_log(folder: Path) -> None:
    """Have a node copy two segments of a topic, stop it, and remove its logs."""
    async with running_node(folder) as node:
        replica = await node.create_topic()
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
    shutil.rmtree(folder / "data")


async def refusal_after_start(folder: Path) -> TidelogError | None:
    """Restore the logs as a node that starts does; return why the topic's log may not be made."""
    store = SqliteMetadataStore(folder / "metadata.db")
    view = ClusterView(store)
    await view.refresh()
    directories = LogDirectories(folder / "data")
    try:
        unrestored = await restore.restore_logs(
            store, view, directories, broker_id=BROKER_ID, objects_url=f"file://{folder}/objects"
        )
    finally:
        directories.close()
        await store.close()
    (partition,) = view.image.partitions(TOPIC)
    return unrestored.refusal(view.image.topics[TOPIC], partition)


def snapshots(folder: Path) -> list[str]:
    return [path.name for path in (folder / "data").glob("*/*.snapshot")]


async def test_a_lost_log_waits_for_the_store_that_has_its_producers(tmp_path: Path) -> None:
    """Otherwise batches that are sent again would be appended twice: the folder is unmounted."""
    await lose_log(tmp_path)
    objects, elsewhere = tmp_path / "objects", tmp_path / "elsewhere"
    objects.rename(elsewhere)
    refused = await refusal_after_start(tmp_path)
    assert isinstance(refused, StorageError)
    assert "not the object store of cluster" in str(refused)
    assert not objects.exists()
    assert snapshots(tmp_path) == []
    elsewhere.rename(objects)
    assert await refusal_after_start(tmp_path) is None
    assert snapshots(tmp_path) == [f"{100:020}.snapshot"]


async def test_a_lost_log_begins_without_producers_if_their_object_is_lost_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await lose_log(tmp_path)
    for path in (tmp_path / "objects").rglob("*.index"):
        path.unlink()
    assert await refusal_after_start(tmp_path) is None
    assert snapshots(tmp_path) == []
    assert "producers' state of the tier cannot be read" in caplog.messages
