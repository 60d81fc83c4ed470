"""Share groups in the coordinator's shell: what is written when, moves, and other kinds of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.errors import ErrorCode
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.records import put
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic_messages import GroupCaller, MemberIdentity
from tidelog_node.groups.heartbeat_answer import HeartbeatAnswer
from tidelog_node.groups.share.share_group import ShareGroup, SharePhase

from tests.node.coordinator.share_members import heartbeat, partitions
from tests.support.consumer_members import enter as enter_consumer
from tests.support.coordinator_node import Node, lead_offsets, node, play
from tests.support.group_requests import join
from tests.support.memory_store import MemoryMetadataStore

Scenario = Callable[[MemoryMetadataStore], Awaitable[None]]


async def beat(
    broker: Node, member: str, epoch: int, *, group: str = "g", **fields: Any
) -> HeartbeatAnswer:
    return await broker.coordinator.share_heartbeat(group, heartbeat(member, epoch, **fields))


async def enter(
    broker: Node, member: str, *topics: str, group: str = "g", **fields: Any
) -> HeartbeatAnswer:
    names = topics or ("t",)
    return await beat(broker, member, 0, group=group, subscribed_topics=names, **fields)


async def found(broker: Node, group: str = "g") -> ShareGroup:
    loaded = await broker.coordinator.describe(group)
    assert isinstance(loaded, ShareGroup)
    return loaded


def test_heartbeats_that_change_nothing_write_nothing() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a")
            await enter(broker, "b")
            epoch = (await beat(broker, "a", 1)).member_epoch
            count = len(store.commits)
            for _ in range(100):
                await asyncio.sleep(5)
                for member in ("a", "b"):
                    answer = await beat(broker, member, epoch)
                    assert (answer.error, answer.assigned) == (ErrorCode.none, None)
            assert len(store.commits) == count

    play(scenario)


def test_a_groups_own_settings_count_from_its_next_heartbeat_on() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a")
            configs = {
                "share.session.timeout.ms": "60000",
                "share.heartbeat.interval.ms": "9000",
            }
            await store.commit([put(GroupConfigOverrides(group_id="g", configs=configs))])
            await broker.view.refresh()
            assert (await beat(broker, "a", 1)).heartbeat_interval_ms == 9000
            await asyncio.sleep(59)
            assert not (await found(broker)).is_empty
            await asyncio.sleep(2)
            assert (await found(broker)).is_empty

    play(scenario)


def test_members_that_come_during_a_write_share_the_next_one() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "first")
            store.latency = 1.0
            store.commits.clear()
            answers = await asyncio.gather(*(enter(broker, f"m{n}") for n in range(50)))
            assert {answer.error for answer in answers} == {ErrorCode.none}
            assert len(store.commits) <= 2
            assert len(list((await found(broker)).members)) == 51

    play(scenario)


def test_a_change_that_could_not_be_stored_is_not_answered() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            store.on_commit = lambda _: StoreUnavailable("away")
            answer = await enter(broker, "a")
            assert answer.error is ErrorCode.coordinator_not_available
            store.on_commit = lambda _: None
            assert await broker.coordinator.describe("g") is None
            assert (await enter(broker, "a")).member_epoch == 1

    play(scenario)


def test_the_members_notice_nothing_of_a_coordinator_that_takes_over() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as old, node(store, broker_id=2) as new:
            await enter(old, "a")
            await enter(old, "b")
            before = await beat(old, "a", 1)
            await lead_offsets(store, new.view, 2)
            for member in ("a", "b"):
                answer = await beat(new, member, before.member_epoch)
                assert (answer.error, answer.member_epoch) == (ErrorCode.none, before.member_epoch)
                assert answer.assigned is None
            group = await found(new)
            assert (group.phase, group.epoch) == (SharePhase.STABLE, 2)

    play(scenario)


def test_a_coordinator_of_before_changes_nothing_any_more() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as old, node(store, broker_id=2) as new:
            await enter(old, "a")
            await lead_offsets(store, new.view, 2)
            await enter(new, "b")
            answer = await beat(old, "a", -1)
            assert answer.error is ErrorCode.not_coordinator
            members = [member.member_id for member in (await found(new)).members]
            assert members == ["a", "b"]

    play(scenario)


def test_members_that_a_new_coordinator_never_hears_of_are_removed() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as old, node(store, broker_id=2) as new:
            await enter(old, "a")
            await lead_offsets(store, new.view, 2)
            await enter(new, "b")
            await asyncio.sleep(40)
            await beat(new, "b", 2)
            await asyncio.sleep(10)
            assert [member.member_id for member in (await found(new)).members] == ["b"]
            assert (await beat(new, "b", 2)).assigned == partitions(0, 1)

    play(scenario)


def test_members_of_other_protocols_stay_outside() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a")
            coordinator = broker.coordinator
            refused = await enter_consumer(broker, "c")
            assert refused.error is ErrorCode.group_id_not_found
            assert refused.message == "Group g is not a consumer group."
            answer = await broker.join(join())
            assert answer.error is ErrorCode.inconsistent_group_protocol
            assert (await broker.sync("a", 1)).error is ErrorCode.unknown_member_id
            assert (
                await coordinator.heartbeat("g", GroupCaller("a", None, 1))
                is ErrorCode.unknown_member_id
            )
            (left,) = await coordinator.leave("g", [MemberIdentity("a")])
            assert left is ErrorCode.unknown_member_id
            assert await broker.commit(5) is ErrorCode.group_id_not_found
            error, _ = await coordinator.delete_offsets("g", {"t": [0]})
            assert error is ErrorCode.group_id_not_found
            assert [member.member_id for member in (await found(broker)).members] == ["a"]

    play(scenario)


def test_a_group_of_another_kind_is_no_share_group_even_while_it_is_empty() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await broker.stable("m", group="classic")
            await enter_consumer(broker, "c")
            await broker.commit(5, group="offsets")
            for group in ("classic", "g", "offsets"):
                for answer in (
                    await enter(broker, "a", group=group),
                    await beat(broker, "a", 1, group=group),
                    await beat(broker, "a", -1, group=group),
                ):
                    assert answer.error is ErrorCode.group_id_not_found
                    assert answer.message == f"Group {group} is not a share group."
            assert await broker.offset(group="offsets") == 5

    play(scenario)


def test_a_member_that_is_still_joining_a_classic_group_keeps_it_classic() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            joining = asyncio.create_task(broker.member("m"))
            await asyncio.sleep(0.05)
            assert (await enter(broker, "a")).error is ErrorCode.group_id_not_found
            assert (await joining).error is ErrorCode.none
            assert isinstance(await broker.coordinator.describe("g"), ClassicGroup)

    play(scenario)


def test_a_group_that_nobody_made_is_not_there() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            answer = await beat(broker, "a", 1)
            assert answer.error is ErrorCode.group_id_not_found
            assert answer.message == "Share group g not found."
            answer = await beat(broker, "a", -1)
            assert answer.message == "Group g not found."
            assert await broker.coordinator.list_groups() == []
            assert store.commits == []

    play(scenario)


def test_an_empty_share_group_stays_one_and_is_not_swept_away() -> None:
    """It would forget how far it has got."""

    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a")
            await beat(broker, "a", -1)
            await asyncio.sleep(30 * 24 * 3600)
            assert (await found(broker)).phase is SharePhase.EMPTY
            assert (await enter_consumer(broker, "c")).error is ErrorCode.group_id_not_found
            assert (await enter(broker, "a")).member_epoch == 3

    play(scenario)
