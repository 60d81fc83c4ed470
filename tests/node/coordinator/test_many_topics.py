"""Groups of thousands of topics: what a commit costs does not grow with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore, Write
from tidelog_core.metadata.stores.commit import BODY_SIZE_BYTES_MAX
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.node.coordinator.share_members import heartbeat
from tests.node.coordinator.test_large_groups import groups_of
from tests.support.consumer_members import beat, consumer_group_of, enter
from tests.support.coordinator_node import Node, lead_offsets, new_cluster, node, topic_id
from tests.support.group_commits import (
    Becomes,
    commit_cost,
    consumer_by_names,
    create_topics,
    names_of,
)
from tests.support.group_requests import subscription
from tests.support.memory_store import MemoryMetadataStore
from tests.support.virtual_time import run

STEPS = (1, 100, 1000)


async def consumer_by_pattern(broker: Node, names: tuple[str, ...]) -> int:
    answer = await enter(broker, "m", (), subscribed_pattern="many-.*")
    assert answer.assigned is not None
    assert len(answer.assigned) == len(names)
    return answer.member_epoch


async def classic(broker: Node, names: tuple[str, ...]) -> int:
    return await broker.stable("m", protocols=(("range", subscription(*names)),))


@pytest.mark.parametrize("becomes", [consumer_by_names, consumer_by_pattern, classic])
def test_a_commit_costs_the_same_units_however_many_topics_its_group_subscribes_to(
    becomes: Becomes,
) -> None:
    async def main() -> None:
        used = [await commit_cost(MemoryMetadataStore(), count, becomes) for count in STEPS]
        assert used[0] == used[1] == used[2]
        assert {units["group"] for units in used[0]} == {2}, "the least that a check costs"

    run(main())


async def test_a_commit_costs_the_same_units_on_sqlite(tmp_path: Path) -> None:
    used = []
    for count in (1, 300):
        store = SqliteMetadataStore(tmp_path / str(count))
        try:
            used.append(await commit_cost(store, count, consumer_by_names))
        finally:
            await store.close()
    assert used[0] == used[1]


def test_a_share_groups_record_stays_small_however_many_topics_it_subscribes_to() -> None:
    async def size(count: int) -> int:
        store = MemoryMetadataStore()
        await new_cluster(store)
        await create_topics(store, names_of(count))
        async with node(store) as broker:
            request = heartbeat("m", 0, subscribed_topics=names_of(count))
            answer = await broker.coordinator.share_heartbeat("g", request)
            assert answer.assigned is not None
            assert len(answer.assigned) == count
        return len(json.dumps((await record_of(store)).body))

    async def main() -> None:
        assert await size(1) == await size(1000)

    run(main())


async def record_of(store: MetadataStore) -> Item:
    [key] = [key for key in await groups_of(store) if key.key == "g"]  # type: ignore[arg-type]
    item = await store.get(key)
    assert item is not None
    return item


async def test_a_group_subscribes_to_more_topics_than_an_item_has_room_for(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "store")
    names = tuple(f"long-{number:0235d}" for number in range(1700))
    assert sum(map(len, names)) > BODY_SIZE_BYTES_MAX
    await new_cluster(store)
    await create_topics(store, names)
    async with node(store) as broker:
        answer = await enter(broker, "m", (), subscribed_pattern="long-.*")
        assert answer.error is ErrorCode.none
        assert answer.assigned is not None
        assert len(answer.assigned) == len(names)
    await store.close()


class TestWrittenByAnOlderProgram:
    """It kept the topics in the group's record."""

    async def older(self, store: MemoryMetadataStore, counts: Mapping[str, int]) -> ItemKey:
        """Put into the group's record what an older program had there, and no hash."""
        item = await record_of(store)
        state: dict[str, Any] = {**item.body["consumer"]}  # type: ignore[dict-item]
        del state["topics_hash"]
        state["topics"] = [[name, str(topic_id(name)), count] for name, count in counts.items()]
        state["patterns"] = [["u+", ["u"]]]
        await store.commit([Write(item.id, {**item.body, "consumer": state}, item.version)])
        return item.id

    def test_its_topics_leave_the_record_before_the_first_commit_of_the_next_coordinator(
        self,
    ) -> None:
        async def main() -> None:
            store = MemoryMetadataStore()
            await new_cluster(store)
            async with node(store) as broker:
                epoch = (await enter(broker, "m", ("t",), subscribed_pattern="u+")).member_epoch
            key = await self.older(store, {"t": 2, "u": 2})
            async with node(store) as broker:
                store.commits.clear()
                error = await broker.commit(5, member_id="m", generation=epoch)
                assert error is ErrorCode.none
                claim, commit = store.commits
                assert [write.id for write in claim] == [key]
                assert key not in [write.id for write in commit]
                item = await record_of(store)
                assert "topics" not in json.dumps(item.body).replace("topics_hash", "")
                # Nothing has changed for the members.
                assert (await beat(broker, "m", epoch)).assigned is None
                assert (await consumer_group_of(broker)).epoch == epoch
                assert (await record_of(store)).version == item.version

        run(main())

    def test_a_topic_that_has_changed_since_is_noticed(self) -> None:
        async def main() -> None:
            store = MemoryMetadataStore()
            await new_cluster(store)
            async with node(store) as broker:
                epoch = (await enter(broker, "m", ("t", "u"))).member_epoch
            await self.older(store, {"t": 1, "u": 2})
            async with node(store) as broker:
                await beat(broker, "m", epoch)
                assert (await consumer_group_of(broker)).epoch == epoch + 1

        run(main())


class TestTakingOver:
    """What a coordinator makes of the hash that it finds."""

    def test_a_coordinator_that_dies_before_the_record_is_written_leaves_the_change_to_the_next(
        self,
    ) -> None:
        async def main() -> None:
            store = MemoryMetadataStore()
            await new_cluster(store)
            async with node(store) as broker:
                epoch = (await enter(broker, "m", (), subscribed_pattern="[tuv]")).member_epoch
                before = await record_of(store)
                await create_topics(store, ("v",))
                await broker.view.refresh()
                store.is_available = False
                answer = await beat(broker, "m", epoch)
                assert answer.error is not ErrorCode.none
                store.is_available = True
            assert await record_of(store) == before
            async with node(store) as broker:
                await beat(broker, "m", epoch)
                member = (await consumer_group_of(broker)).member("m")
                assert (await consumer_group_of(broker)).epoch == epoch + 1
                assert topic_id("v") in {p.topic_id for p in member.assigned}
            async with node(store) as broker:
                await beat(broker, "m", epoch + 1)
                assert (await consumer_group_of(broker)).epoch == epoch + 1, "it is noticed once"

        run(main())

    def test_of_two_coordinators_that_find_the_same_change_one_begins_the_epoch(self) -> None:
        async def main() -> None:
            store = MemoryMetadataStore()
            await new_cluster(store)
            async with node(store) as old, node(store, broker_id=2) as new:
                epoch = (await enter(old, "m", (), subscribed_pattern="[tuv]")).member_epoch
                await lead_offsets(store, new.view, 2)  # the old one does not know
                await create_topics(store, ("v",))
                await new.view.refresh()
                await beat(new, "m", epoch)
                stored = await record_of(store)
                answer = await beat(old, "late", 0, subscribed_topics=("t",))
                assert answer.error is not ErrorCode.none
                assert await record_of(store) == stored
                assert (await consumer_group_of(new)).epoch == epoch + 1

        run(main())
