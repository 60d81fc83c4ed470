"""A group's offsets of very many partitions are read and removed in turns with everyone else."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tidelog_core import turns as core_turns
from tidelog_core.admin.groups.offset_pages import read_offsets
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.store import ALL_KEYS, Item, KeyRange
from tidelog_node.coordinator.group_items import DEFAULT_PAGE_LIMITS
from tidelog_node.coordinator.group_storage import GroupStorage
from tidelog_node.coordinator.offset_page_cache import OffsetPageCache

from tests.support.loop_turns import loop_turns
from tests.support.memory_store import MemoryMetadataStore

PARTITION_COUNT = 6_400
TOPIC, TOPIC_ID = "t", UUID(int=5)
LONGEST_SHARE_MAX = 0.2  # of the time that all turns take; that of a page is a hundredth


class ThreadedStore(MemoryMetadataStore):
    """Decodes the items of a listing in another thread, as the stores of nodes do."""

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        listing = super().list(collection, prefix=prefix, keys=keys)
        return await asyncio.to_thread(asyncio.run, listing)


async def test_no_turn_of_the_loop_is_about_all_offsets_of_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_turns, "TURN_SECONDS", 0.0)

    store = ThreadedStore(latency=0)
    storage = GroupStorage(
        store, OffsetPageCache(), shard=3, group_id="g", stored=None, limits=DEFAULT_PAGE_LIMITS
    )
    offsets = {
        number: CommittedOffset(number, -1, "", 1, None) for number in range(PARTITION_COUNT)
    }
    await storage.commit_offsets({(TOPIC, TOPIC_ID): offsets})
    some = frozenset(range(0, PARTITION_COUNT, 2))
    for wanted in ({TOPIC: some}, None):
        with loop_turns() as turns:
            found = await read_offsets(store, "g", wanted, is_topic=lambda *_: True)
        assert len(found) == PARTITION_COUNT // (1 if wanted is None else 2)
        assert turns.longest_seconds < LONGEST_SHARE_MAX * turns.total_seconds, turns.longest
    with loop_turns() as turns:
        removed_count, left_count = await storage.remove_offsets(lambda _: some)
    assert removed_count == left_count == PARTITION_COUNT // 2
    assert turns.longest_seconds < LONGEST_SHARE_MAX * turns.total_seconds, turns.longest
