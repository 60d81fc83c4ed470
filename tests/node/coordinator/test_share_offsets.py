"""Where share groups stand: read, moved, forgotten, and gone with their group or topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.group_admin import GroupAdmin
from tidelog_core.admin.groups.share_offsets import RecordOrCorruptItem
from tidelog_core.errors import (
    CorruptItem,
    GroupIdNotFound,
    InvalidGroupId,
    NonEmptyGroup,
    NotCoordinator,
    OutcomeUnknown,
    StoreUnavailable,
    VersionConflict,
)
from tidelog_core.metadata.coordination.share_partitions import (
    SHARE_COLLECTION_PREFIX,
    RecordState,
    SharePartitionRecord,
    StateBatch,
    share_collection,
    share_partition_key,
)
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import ANY_VERSION, ItemKey, Write
from tidelog_core.model import TopicPartition
from tidelog_node.coordinator.share_offsets import (
    DONE,
    NO_SUCH_OFFSET,
    NOT_HOSTED,
    NOTHING_TO_DELETE,
    ShareOffsets,
)
from tidelog_node.groups.share.share_group import ShareGroup

from tests.node.coordinator.test_share_coordinator import beat, enter
from tests.support.consumer_members import enter as enter_consumer
from tests.support.coordinator_node import (
    Node,
    create_topic,
    delete_topic,
    lead_offsets,
    new_cluster,
    node,
    topic_id,
)
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.virtual_time import run

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
READ = StateBatch(5, 6, RecordState.ACKNOWLEDGED, 1)


def play(
    scenario: Callable[[MemoryMetadataStore, Node, ShareOffsets], Awaitable[None]],
) -> None:
    """Run the scenario with an empty share group ``g``, which has read from t-0."""

    async def main() -> None:
        store = MemoryMetadataStore()
        await new_cluster(store)
        async with node(store) as broker:
            offsets = ShareOffsets(node_context(store, broker.view), coordinator=broker.coordinator)
            await enter(broker, "a")
            await beat(broker, "a", -1)
            await has_read(store)
            await scenario(store, broker, offsets)

    run(main())


async def has_read(
    store: MemoryMetadataStore, *, group: str = "g", topic: UUID | None = None
) -> None:
    """Write what the partition's leader would."""
    record = SharePartitionRecord(
        group_id=group,
        topic_id=topic_id("t") if topic is None else topic,
        partition=0,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        batches=(READ,),
    )
    await store.commit([put(record, is_logged=False)])


def starts(
    found: Mapping[TopicPartition, RecordOrCorruptItem | None],
) -> dict[TopicPartition, int | None]:
    """Return where each partition begins; ``None`` where nobody has read it."""
    return {
        name: record.start_offset if isinstance(record, SharePartitionRecord) else None
        for name, record in found.items()
    }


async def stored(store: MemoryMetadataStore, group: str = "g") -> dict[int, SharePartitionRecord]:
    items = await store.list(share_collection(group))
    records = [SharePartitionRecord.from_item(item) for item in items]
    return {record.partition: record for record in records}


def test_partitions_tell_where_they_begin_or_that_nobody_has_read_them() -> None:
    async def scenario(_: MemoryMetadataStore, broker: Node, offsets: ShareOffsets) -> None:
        everything = await offsets.describe("g", None)
        assert starts(everything) == {T0: 4}
        some = await offsets.describe("g", {"t": [0, 1], "nowhere": [0]})
        assert starts(some) == {
            T0: 4,
            T1: None,
            TopicPartition("nowhere", 0): None,
        }
        assert await offsets.describe("other", None) == {}
        await enter(broker, "b", "u", group="other")
        assert await offsets.describe("other", None) == {
            TopicPartition("u", number): None for number in (0, 1)
        }

    play(scenario)


def test_an_altered_partition_begins_there_with_nothing_delivered() -> None:
    async def scenario(store: MemoryMetadataStore, _: Node, offsets: ShareOffsets) -> None:
        outcomes = await offsets.alter(
            "g", {T0: 2, T1: 0, TopicPartition("t", 9): 0, TopicPartition("nowhere", 0): 0, U0: -2}
        )
        assert outcomes == {
            T0: DONE,
            T1: DONE,
            TopicPartition("t", 9): NOT_HOSTED,
            TopicPartition("nowhere", 0): NOT_HOSTED,
            U0: NO_SUCH_OFFSET,
        }
        records = await stored(store)
        assert {number: (r.start_offset, r.batches) for number, r in records.items()} == {
            0: (2, ()),
            1: (0, ()),
        }
        assert (records[0].state_epoch, records[1].state_epoch) == (3, 1)

    play(scenario)


def test_the_leader_that_has_read_before_loses_its_next_write_and_is_fenced() -> None:
    async def scenario(store: MemoryMetadataStore, _: Node, offsets: ShareOffsets) -> None:
        (before,) = (await stored(store)).values()
        version = (await store.changes_since(0)).version  # type: ignore[arg-type]
        await offsets.alter("g", {T0: 0})
        with pytest.raises(VersionConflict):
            await store.commit([put(before, is_logged=False)])
        assert before.item_id in ((await store.changes_since(version)).keys or ())
        (altered,) = (await stored(store)).values()
        await offsets.delete("g", ["t"])
        with pytest.raises(VersionConflict):
            await store.commit([put(altered, is_logged=False)])

    play(scenario)


def test_a_leader_on_the_same_node_knows_before_the_answer_goes_out() -> None:
    """So whoever joins next does not read on from where the group was."""

    async def scenario(store: MemoryMetadataStore, broker: Node, offsets: ShareOffsets) -> None:
        told: list[ItemKey] = []
        (record,) = (await stored(store)).values()
        unwatch = broker.view.watch(SHARE_COLLECTION_PREFIX, told.extend)
        await offsets.alter("g", {T0: 0})
        assert told == [record.item_id]
        await offsets.delete("g", ["t"])
        assert told == [record.item_id] * 2
        await broker.coordinator.delete_group("g")
        assert told == [record.item_id] * 3
        unwatch()

    play(scenario)


def test_a_write_of_the_leader_that_came_between_counts_no_more() -> None:
    async def scenario(store: MemoryMetadataStore, _: Node, offsets: ShareOffsets) -> None:
        (before,) = (await stored(store)).values()
        is_first = True

        def race(writes: object) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                version, body = store._items[before.item_id]
                store._items[before.item_id] = (version + 1, body)

        store.on_commit = race
        assert await offsets.alter("g", {T0: 1}) == {T0: DONE}
        assert (await stored(store))[0].start_offset == 1

    play(scenario)


def test_what_is_deleted_starts_again_and_can_be_deleted_once() -> None:
    async def scenario(store: MemoryMetadataStore, _: Node, offsets: ShareOffsets) -> None:
        wanted = ["t", "u", "nowhere"]
        assert await offsets.delete("g", wanted) == {
            "t": DONE,
            "u": NOTHING_TO_DELETE,
            "nowhere": NOT_HOSTED,
        }
        assert await offsets.delete("g", ["t"]) == {"t": NOTHING_TO_DELETE}
        assert await offsets.describe("g", None) == {}
        record = (await stored(store))[0]
        assert (record.start_offset, record.batches, record.state_epoch) == (-1, (), 3)
        assert await offsets.alter("g", {T0: 7}) == {T0: DONE}
        assert (await offsets.describe("g", None)).keys() == {T0}

    play(scenario)


def test_a_damaged_share_partition_hides_no_other_and_is_mended_by_moving_it() -> None:
    async def scenario(store: MemoryMetadataStore, _: Node, offsets: ShareOffsets) -> None:
        damaged = share_partition_key("g", topic_id("t"), 1)
        stranger = ItemKey(share_collection("g"), "of someone else")
        await store.commit([Write(damaged, {"start_offset": "?"}, 0), Write(stranger, {}, 0)])
        found = await offsets.describe("g", None)
        assert found.keys() == {T0, T1}
        assert isinstance(found[T1], CorruptItem)
        assert await offsets.alter("g", {T1: 3}) == {T1: DONE}
        mended = (await offsets.describe("g", {"t": [1]}))[T1]
        assert isinstance(mended, SharePartitionRecord)
        assert mended.start_offset == 3
        await store.commit([Write(damaged, {"start_offset": "?"}, ANY_VERSION)])
        assert await offsets.delete("g", ["t"]) == {"t": DONE}
        assert await offsets.describe("g", None) == {}

    play(scenario)


def test_only_an_empty_share_group_is_changed() -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, offsets: ShareOffsets) -> None:
        await enter(broker, "b")
        await broker.stable("m", group="classic")
        await broker.commit(5, group="simple")
        for group, error in (
            ("g", NonEmptyGroup),
            ("classic", GroupIdNotFound),
            ("simple", GroupIdNotFound),
            ("", InvalidGroupId),
        ):
            with pytest.raises(error):
                await offsets.alter(group, {T0: 0})
            with pytest.raises(error):
                await offsets.delete(group, ["t"])
        with pytest.raises(GroupIdNotFound):
            await offsets.delete("nowhere", ["t"])
        assert (await stored(store))[0].start_offset == 4
        assert await broker.coordinator.describe("nowhere") is None

    play(scenario)


def test_a_group_that_is_not_there_is_made_to_begin_where_it_shall() -> None:
    """So its first member begins there, and not where the settings say."""

    async def scenario(store: MemoryMetadataStore, broker: Node, offsets: ShareOffsets) -> None:
        coordinator = broker.coordinator
        nowhere = TopicPartition("nowhere", 0)
        assert await offsets.alter("fresh", {nowhere: 0, U0: -2}) == {
            nowhere: NOT_HOSTED,
            U0: NO_SUCH_OFFSET,
        }
        assert await offsets.alter("fresh", {}) == {}
        # As in Kafka: what changes nothing makes no group.
        assert await coordinator.describe("fresh") is None
        assert await stored(store, "fresh") == {}
        assert await offsets.alter("fresh", {T0: 2, nowhere: 0}) == {T0: DONE, nowhere: NOT_HOSTED}
        assert starts(await offsets.describe("fresh", None)) == {T0: 2}
        group = await coordinator.describe("fresh")
        assert isinstance(group, ShareGroup)
        assert (group.is_empty, group.epoch) == (True, 0)
        assert await offsets.alter("fresh", {T0: 3}) == {T0: DONE}
        answer = await enter(broker, "m", group="fresh")
        assert (answer.error, answer.member_epoch) == (ErrorCode.none, 1)
        assert starts(await offsets.describe("fresh", {"t": [0]})) == {T0: 3}

    play(scenario)


def test_a_made_group_outlives_its_coordinator_and_goes_like_any_other() -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, offsets: ShareOffsets) -> None:
        await offsets.alter("fresh", {T0: 2})
        async with node(store, broker_id=2) as new:
            await lead_offsets(store, new.view, 2)
            group = await new.coordinator.describe("fresh")
            assert isinstance(group, ShareGroup)
            assert await new.coordinator.delete_group("fresh") is ErrorCode.none
            assert await new.coordinator.describe("fresh") is None
        assert await stored(store, "fresh") == {}

    play(scenario)


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), OutcomeUnknown("no answer")])
def test_a_group_that_could_not_be_made_can_be_made_later(failure: Exception) -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, offsets: ShareOffsets) -> None:
        failures = [failure]
        store.on_commit = lambda _: failures.pop() if failures else None
        with pytest.raises(type(failure)):
            await offsets.alter("fresh", {T0: 2})
        assert await offsets.alter("fresh", {T0: 2}) == {T0: DONE}
        assert isinstance(await broker.coordinator.describe("fresh"), ShareGroup)

    play(scenario)


def test_a_coordinator_of_before_changes_no_offsets() -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, offsets: ShareOffsets) -> None:
        async with node(store, broker_id=2) as new:
            await lead_offsets(store, new.view, 2)
            await enter(new, "b")
            with pytest.raises(VersionConflict):
                await offsets.alter("g", {T0: 0})
            await broker.view.refresh()
            with pytest.raises(NotCoordinator):
                await offsets.describe("g", None)
        assert (await stored(store))[0].start_offset == 4

    play(scenario)


def test_a_group_that_is_deleted_forgets_where_it_was() -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, _: ShareOffsets) -> None:
        await has_read(store, group="other")
        await enter(broker, "b")
        assert await broker.coordinator.delete_group("g") is ErrorCode.non_empty_group
        await beat(broker, "b", -1)
        assert await broker.coordinator.delete_group("g") is ErrorCode.none
        assert (await stored(store), len(await stored(store, "other"))) == ({}, 1)
        assert await broker.coordinator.describe("g") is None
        assert (await enter_consumer(broker, "c")).error is ErrorCode.none

    play(scenario)


def test_a_crash_within_the_deletion_leaves_an_empty_group() -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, _: ShareOffsets) -> None:
        def fail(writes: list[Write]) -> Exception | None:
            is_group = any(write.id.collection.startswith("group:") for write in writes)
            return StoreUnavailable("away") if is_group else None

        store.on_commit = fail  # type: ignore[assignment]
        with pytest.raises(StoreUnavailable):
            await broker.coordinator.delete_group("g")
        store.on_commit = lambda _: None
        assert await stored(store) == {}
        assert await broker.coordinator.delete_group("g") is ErrorCode.none

    play(scenario)


def test_an_administrator_without_coordinator_resets_it_and_deletes_all_of_it() -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, _: ShareOffsets) -> None:
        admin = GroupAdmin(store=store, view=broker.view)
        await admin.require_empty("g")
        before = (await stored(store))[0]
        await admin.reset_offsets("g", {T0: 7})
        after = (await stored(store))[0]
        assert (after.start_offset, after.batches) == (7, ())
        assert after.state_epoch == before.state_epoch + 1, "a leader would write over it"
        starts = await admin.start_offsets("g")
        assert {at: found.start_offset for at, found in starts.items()}[T0] == 7
        await admin.delete_group("g")
        assert await stored(store) == {}
        await broker.view.refresh()
        await asyncio.sleep(1)  # the coordinator looks at what has changed
        assert await broker.coordinator.describe("g") is None

    play(scenario)


def test_a_deleted_topic_takes_its_share_partitions_along() -> None:
    async def scenario(store: MemoryMetadataStore, broker: Node, _: ShareOffsets) -> None:
        await create_topic(store, "v")
        await broker.view.refresh()
        await has_read(store, topic=topic_id("v"))
        await delete_topic(store, broker.view, "v")
        await asyncio.sleep(broker.config.offsets_retention_check_interval_ms / 1000 + 1)
        (left,) = (await stored(store)).values()
        assert left.topic_id == topic_id("t")

    play(scenario)
