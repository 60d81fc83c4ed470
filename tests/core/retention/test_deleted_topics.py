"""What is left of a deleted topic goes, and nothing that somebody else has put beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.metadata import records
from tidelog_core.metadata.records import DeletedTopic
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.retention.deleted_topics import clean_deleted_topic
from tidelog_core.tier.keys import topic_prefix
from tidelog_core.tier.persisting import persist_deletion

from tests.node.coordinator.memory_store import MemoryMetadataStore

TOMBSTONE = DeletedTopic(topic_id=UUID(int=7), name="t", partition_count=1, deleted_ms=5)


def test_what_nobody_can_have_put_there_is_left_and_named_when_a_topic_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / topic_prefix("c", TOMBSTONE.name, TOMBSTONE.topic_id) / "0"
    folder.mkdir(parents=True)
    for name in ("a.log", "a.index", "my notes.txt"):
        (folder / name).write_text("x")

    async def run() -> None:
        store, objects = MemoryMetadataStore(latency=0), FolderObjectStore(tmp_path)
        await store.commit([records.put(TOMBSTONE)])
        for _ in range(2):  # harmless when repeated
            await persist_deletion(objects, "c", TOMBSTONE)
            await clean_deleted_topic(store, objects, TOMBSTONE, cluster_id="c")
        assert await store.list(TOMBSTONE.item_id.collection) == []
        await objects.close()

    asyncio.run(run())
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [folder / "my notes.txt"]
    assert "my notes.txt" in str([vars(record) for record in caplog.records])
