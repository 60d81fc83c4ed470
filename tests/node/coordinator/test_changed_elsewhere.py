"""Groups that are changed in the store while a coordinator has them in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.group_admin import GroupAdmin
from tidelog_core.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    TidelogError,
    UnknownTopicOrPartition,
    VersionConflict,
)
from tidelog_core.metadata.coordination.groups import GROUP_COLLECTION_PREFIX, offset_collection
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.store import ABSENT, Item, ItemKey, Write
from tidelog_core.model import TopicPartition
from tidelog_node.coordinator.group_items import PageLimits
from tidelog_node.groups.classic.classic_group import Phase
from tidelog_node.groups.classic_messages import MemberIdentity

from tests.support.coordinator_node import Node, create_topic, lead_offsets, new_cluster, node
from tests.support.group_requests import join
from tests.support.memory_store import MemoryMetadataStore
from tests.support.virtual_time import run

T0 = TopicPartition("t", 0)

Scenario = Callable[[MemoryMetadataStore, Node, GroupAdmin], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """Run with a coordinator that learns of changes only when its view is refreshed.

    Whatever it writes of several members takes several transactions.
    """

    async def main() -> None:
        store = MemoryMetadataStore()
        await new_cluster(store)
        async with node(store, page_limits=PageLimits(1, 1)) as broker:
            await scenario(store, broker, admin_of(store))

    run(main())


def admin_of(store: MemoryMetadataStore) -> GroupAdmin:
    return GroupAdmin(store=store, view=ClusterView(store))


async def left(broker: Node, group: str = "g") -> None:
    """Have member a join, commit 5 and leave."""
    generation = await broker.stable("a", group=group)
    assert (
        await broker.commit(5, member_id="a", generation=generation, group=group) is ErrorCode.none
    )
    await broker.coordinator.leave(group, [MemberIdentity("a")])


async def settle(broker: Node) -> None:
    """Let the coordinator hear of what is in the changelog, and act on it."""
    await broker.view.refresh()
    await asyncio.sleep(1)


async def code_of(commit: Awaitable[ErrorCode]) -> ErrorCode:
    try:
        return await commit
    except TidelogError as error:
        return error.code


class TestReset:
    def test_an_empty_groups_offsets_are_what_the_next_members_read(self) -> None:
        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            await left(broker)
            await admin.reset_offsets("g", {T0: 2, TopicPartition("t", 1): 7})
            await settle(broker)
            await broker.stable("b")
            assert await broker.offset() == 2
            assert await broker.offset(partition=1) == 7

        play(scenario)

    def test_a_group_with_members_is_left_alone(self) -> None:
        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            generation = await broker.stable("a")
            assert await broker.commit(5, member_id="a", generation=generation) is ErrorCode.none
            with pytest.raises(NonEmptyGroup):
                await admin.reset_offsets("g", {T0: 2})
            assert await broker.offset() == 5
            assert await broker.commit(6, member_id="a", generation=generation) is ErrorCode.none

        play(scenario)

    @pytest.mark.parametrize("hears_of_it", [False, True])
    def test_members_that_wait_for_their_generation_read_the_new_offsets(
        self, hears_of_it: bool
    ) -> None:
        """Nobody has told them of a generation; they read their offsets after that."""

        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            await left(broker)
            joining = asyncio.create_task(broker.member("b"))
            await asyncio.sleep(0.05)  # within the first rebalance's delay
            assert not joining.done()
            await admin.reset_offsets("g", {T0: 2})
            if hears_of_it:
                await broker.view.refresh()
            answer = await joining
            assert answer.error is ErrorCode.none
            assert await broker.offset() == 2
            await broker.sync("b", answer.generation, {"b": b""})
            commit = broker.commit(8, member_id="b", generation=answer.generation, partition=1)
            assert await commit is ErrorCode.none
            assert await broker.offset() == 2

        play(scenario)

    def test_a_coordinator_that_was_replaced_takes_no_reset_for_its_own_affair(self) -> None:
        """The record looks as it did, but another coordinator has claimed it."""

        async def scenario(store: MemoryMetadataStore, old: Node, admin: GroupAdmin) -> None:
            await left(old)
            async with node(store, broker_id=2) as new:
                joining = asyncio.create_task(old.member("b"))
                await asyncio.sleep(0.05)
                await lead_offsets(store, new.view, 2)
                assert await new.commit(9) is ErrorCode.none
                assert (await joining).error is ErrorCode.not_coordinator
                await asyncio.sleep(1)
                assert (await admin.describe("g")).members == ()
                assert await new.commit(10) is ErrorCode.none

        play(scenario)

    def test_a_generation_stored_in_between_wins(self) -> None:
        async def scenario(store: MemoryMetadataStore, broker: Node, admin: GroupAdmin) -> None:
            await left(broker)
            resetting = asyncio.Event()
            joined = asyncio.Event()

            async def hold(commit: Callable[..., Awaitable[None]]) -> None:
                async def held(writes: Sequence[Write], **rest: object) -> None:
                    if any(w.id.collection == offset_collection("g") for w in writes):
                        resetting.set()
                        await joined.wait()
                    await commit(writes, **rest)

                store.commit = held  # type: ignore[assignment]

            await hold(store.commit)
            reset = asyncio.create_task(admin.reset_offsets("g", {T0: 2}))
            await resetting.wait()
            await broker.stable("b")
            joined.set()
            with pytest.raises(NonEmptyGroup):
                await reset
            assert await broker.offset() == 5

        play(scenario)

    def test_a_commit_on_the_way_comes_before_it_or_is_sent_again(self) -> None:
        """A consumer outside of generations commits all the time; offsets never mix."""

        async def scenario(store: MemoryMetadataStore, broker: Node, admin: GroupAdmin) -> None:
            dice = random.Random(7)
            assert await broker.commit(100) is ErrorCode.none
            for turn in range(60):
                store.latency = dice.choice((0.0005, 0.001, 0.004))
                commit = asyncio.create_task(code_of(broker.commit(200 + turn)))
                await asyncio.sleep(dice.uniform(0, 0.01))
                await admin.reset_offsets("g", {T0: turn})
                first = await commit
                assert first in (ErrorCode.none, ErrorCode.invalid_update_version), first
                found = await broker.offset()
                # Accepted before, it was overwritten; accepted after, it is the later one.
                assert found in ((turn, 200 + turn) if first is ErrorCode.none else (turn,))
                assert await code_of(broker.commit(300 + turn)) in (
                    ErrorCode.none,
                    ErrorCode.invalid_update_version,
                )
                assert await broker.commit(400 + turn) is ErrorCode.none
                assert await broker.offset() == 400 + turn

        play(scenario)

    def test_partitions_beside_the_ones_named_keep_their_offsets(self) -> None:
        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            assert await broker.commit(5, partition=0) is ErrorCode.none
            assert await broker.commit(6, partition=1) is ErrorCode.none
            await admin.reset_offsets("g", {T0: 2})
            assert await broker.offset(partition=1) == 6
            await settle(broker)
            assert await broker.commit(9, partition=1) is ErrorCode.none
            assert await broker.offset(partition=0) == 2

        play(scenario)

    def test_what_is_not_there_is_refused_by_name(self) -> None:
        async def scenario(store: MemoryMetadataStore, broker: Node, admin: GroupAdmin) -> None:
            with pytest.raises(GroupIdNotFound, match="Group g not found"):
                await admin.reset_offsets("g", {T0: 2})
            with pytest.raises(InvalidGroupId):
                await admin.reset_offsets("", {T0: 2})
            await left(broker)
            with pytest.raises(UnknownTopicOrPartition, match="t-2"):
                await admin.reset_offsets("g", {TopicPartition("t", 2): 2})
            for number in range(90):
                await create_topic(store, f"w{number}", 1)
            with pytest.raises(InvalidRequest, match="90 pages"):
                await admin.reset_offsets(
                    "g", {TopicPartition(f"w{number}", 0): 0 for number in range(90)}
                )

        play(scenario)

    def test_a_store_that_is_contended_for_too_long_is_said_so(self) -> None:
        async def scenario(store: MemoryMetadataStore, broker: Node, admin: GroupAdmin) -> None:
            await left(broker)
            store.on_commit = lambda writes: VersionConflict([("group:0", "g")])
            with pytest.raises(VersionConflict):
                await admin.reset_offsets("g", {T0: 2})
            store.on_commit = lambda writes: None

        play(scenario)


class TestDeletion:
    def test_it_is_gone_for_the_coordinator_too(self) -> None:
        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            await left(broker)
            await admin.delete_group("g")
            await settle(broker)
            assert await broker.coordinator.describe("g") is None
            assert await broker.coordinator.list_groups() == []
            assert await broker.offset() is None

        play(scenario)

    def test_one_that_the_coordinator_has_not_heard_of_starts_again(self) -> None:
        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            await left(broker)
            await admin.delete_group("g")
            # Its memory still has the group; the first thing to be stored tells it.
            assert await code_of(broker.commit(3)) is ErrorCode.invalid_update_version
            assert await broker.commit(3) is ErrorCode.none
            assert await broker.offset() == 3

        play(scenario)

    def test_a_group_with_members_is_left_alone(self) -> None:
        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            await broker.stable("a")
            with pytest.raises(NonEmptyGroup, match="Stable with 1 member"):
                await admin.delete_group("g")
            with pytest.raises(GroupIdNotFound):
                await admin.delete_group("h")

        play(scenario)

    @pytest.mark.parametrize("hears_of_it", [False, True])
    def test_a_commit_on_the_way_leaves_no_offsets_without_a_group(self, hears_of_it: bool) -> None:
        """It adds a page that the deletion has not seen."""

        async def scenario(store: MemoryMetadataStore, broker: Node, admin: GroupAdmin) -> None:
            assert await broker.commit(1) is ErrorCode.none
            codes = []
            listing = store.list

            async def list_and_be_late(collection: str, *, prefix: str = "") -> list[Item]:
                found = await listing(collection, prefix=prefix)
                if collection == offset_collection("g"):
                    store.list = listing  # type: ignore[method-assign]
                    if hears_of_it:
                        await settle(broker)
                    codes.append(await code_of(broker.commit(9, topic="u")))
                return found

            store.list = list_and_be_late  # type: ignore[method-assign]
            await admin.delete_group("g")
            assert codes == [ErrorCode.none if hears_of_it else ErrorCode.invalid_update_version]
            assert await store.list(offset_collection("g")) == []
            assert await admin.list_groups() == []

        play(scenario)

    def test_a_commit_accepted_before_the_coordinator_heard_of_it_is_refused(self) -> None:
        """It waits for others to share its write while the group is looked at again."""

        async def scenario(store: MemoryMetadataStore, broker: Node, admin: GroupAdmin) -> None:
            store.latency = 0.0002
            assert await broker.commit(1) is ErrorCode.none
            codes = []
            listing = store.list

            async def list_while_it_hears(collection: str, *, prefix: str = "") -> list[Item]:
                found = await listing(collection, prefix=prefix)
                if collection == offset_collection("g"):
                    store.list = listing  # type: ignore[method-assign]
                    commit = asyncio.create_task(code_of(broker.commit(9, topic="u")))
                    await asyncio.sleep(0.001)
                    await broker.view.refresh()
                    codes.append(await commit)
                return found

            store.list = list_while_it_hears  # type: ignore[method-assign]
            await admin.delete_group("g")
            assert codes == [ErrorCode.invalid_update_version]
            assert await store.list(offset_collection("g")) == []
            await asyncio.sleep(1)  # what waited to share the write has nothing left to do

        play(scenario)

    def test_what_was_committed_before_does_not_come_back_with_the_next_commit(self) -> None:
        """The next coordinator deletes the group and makes it anew, to the same versions."""

        async def scenario(store: MemoryMetadataStore, old: Node, _: GroupAdmin) -> None:
            assert await old.commit(50, partition=0) is ErrorCode.none
            async with node(store, broker_id=2) as new:
                await lead_offsets(store, new.view, 2)
                await old.view.refresh()
                assert await new.coordinator.delete_group("g") is ErrorCode.none
                assert await new.commit(1, partition=1) is ErrorCode.none
                await lead_offsets(store, new.view, 1)
            await old.view.refresh()
            assert await old.commit(2, partition=1) is ErrorCode.none
            assert await old.offset(partition=0) is None

        play(scenario)


class TestReading:
    def test_groups_are_listed_by_id_over_all_shards(self) -> None:
        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            for group in ("d", "b", "a", "c"):
                await left(broker, group)
            await broker.stable("m", group="e")
            found = await admin.list_groups()
            assert [(g.group_id, g.phase, len(g.members)) for g in found] == [
                ("a", "Empty", 0),
                ("b", "Empty", 0),
                ("c", "Empty", 0),
                ("d", "Empty", 0),
                ("e", "Stable", 1),
            ]
            assert (await admin.offsets("a"))[T0].offset == 5

        play(scenario)

    def test_the_coordinator_keeps_members_that_nobody_touched(self) -> None:
        """A change of one group unloads no other, nor the same one for what it wrote itself."""

        async def scenario(_: object, broker: Node, admin: GroupAdmin) -> None:
            await left(broker)
            waiting = asyncio.create_task(broker.join(join(new="b"), "h"))
            await admin.reset_offsets("g", {T0: 1})
            await settle(broker)
            assert (await waiting).error is ErrorCode.member_id_required
            group = await broker.coordinator.describe("h")
            assert group is not None
            assert group.phase is Phase.EMPTY

        play(scenario)

    def test_a_strangers_item_among_the_groups_keeps_no_change_from_being_heard(self) -> None:
        async def scenario(store: MemoryMetadataStore, broker: Node, _: GroupAdmin) -> None:
            stranger = ItemKey(f"{GROUP_COLLECTION_PREFIX}x", "g")
            await store.commit([Write(stranger, {}, ABSENT)])
            await create_topic(store, "later")
            await settle(broker)
            assert broker.view.image.topic("later") is not None

        play(scenario)
