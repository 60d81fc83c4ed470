"""Consumer groups in the coordinator's shell: what is written when, moves, and both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.group_admin import GroupAdmin
from tidelog_core.config import NodeConfig
from tidelog_core.errors import NonEmptyGroup, StoreUnavailable
from tidelog_core.metadata.coordination.consumer_groups import (
    LEFT_FOR_NOW_EPOCH,
    Partitions,
    TopicIdPartition,
)
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import Write
from tidelog_core.model import TopicPartition
from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.assignment.target_computation import TargetComputation, in_thread
from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.classic_messages import GroupCaller
from tidelog_node.groups.consumer.consumer_group import ConsumerPhase
from tidelog_node.groups.heartbeat_answer import LEAVE_EPOCH
from tidelog_node.groups.migration.consumer_protocol import decode_assignment, encode_assignment

from tests.support.consumer_members import beat, consumer_group_of, enter
from tests.support.coordinator_node import Node, lead_offsets, node, play, topic_id
from tests.support.group_requests import join
from tests.support.memory_store import MemoryMetadataStore

Scenario = Callable[[MemoryMetadataStore], Awaitable[None]]


def partitions(*numbers: int, topic: str = "t") -> Partitions:
    return frozenset(TopicIdPartition(topic_id(topic), number) for number in numbers)


async def share(broker: Node, *members: str) -> None:
    """Have the members, new ones, share topic t's two partitions."""
    for member in members:
        await enter(broker, member)
    for _ in range(4):
        group = await consumer_group_of(broker)
        for member in members:
            state = group.member(member)
            await beat(broker, member, state.epoch, owned=state.assigned)
    assert (await consumer_group_of(broker)).phase is ConsumerPhase.STABLE


def test_heartbeats_that_change_nothing_write_nothing() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await share(broker, "a", "b")
            count = len(store.commits)
            epoch = (await consumer_group_of(broker)).epoch
            for _ in range(100):
                await asyncio.sleep(5)
                for member in ("a", "b"):
                    answer = await beat(broker, member, epoch)
                    assert (answer.error, answer.assigned) == (ErrorCode.none, None)
            assert len(store.commits) == count

    play(scenario)


def test_settings_of_the_group_are_obeyed_from_the_next_heartbeat_on() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await share(broker, "a")
            configs = {
                "consumer.session.timeout.ms": "60000",
                "consumer.heartbeat.interval.ms": "9000",
            }
            await store.commit([put(GroupConfigOverrides(group_id="g", configs=configs))])
            await broker.view.refresh()
            epoch = (await consumer_group_of(broker)).epoch
            assert (await beat(broker, "a", epoch)).heartbeat_interval_ms == 9000
            await asyncio.sleep(59)
            assert "a" in (await consumer_group_of(broker)).roster
            await asyncio.sleep(2)
            assert (await consumer_group_of(broker)).is_empty

    play(scenario)


def test_heartbeats_that_come_during_a_write_share_the_next_one() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "first")
            store.latency = 1.0
            store.commits.clear()
            answers = await asyncio.gather(*(enter(broker, f"m{n}") for n in range(50)))
            assert {answer.error for answer in answers} == {ErrorCode.none}
            # The first is written by itself, those that came meanwhile together, or all at once.
            assert len(store.commits) <= 2
            assert len((await consumer_group_of(broker)).roster) == 51

    play(scenario)


class TestTargetsOfLargeGroups:
    """Which are computed while the group goes on."""

    def test_members_are_answered_while_targets_are_computed(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            is_allowed = asyncio.Event()

            async def held(computation: TargetComputation) -> Mapping[str, Partitions]:
                await is_allowed.wait()
                return computation.run()

            async with node(store, assigned_at_once_members_max=1, compute=held) as broker:
                await enter(broker, "a")
                answers = await asyncio.gather(*(enter(broker, f"m{n}") for n in range(9)))
                assert {(a.error, a.member_epoch) for a in answers} == {(ErrorCode.none, 1)}
                assert (await beat(broker, "a", 1)).error is ErrorCode.none
                is_allowed.set()
                await asyncio.sleep(1.1)
                for _ in range(2):
                    for member in [m.member_id for m in (await consumer_group_of(broker)).roster]:
                        state = (await consumer_group_of(broker)).member(member)
                        await beat(broker, member, state.epoch, owned=state.assigned)
                    await asyncio.sleep(1.1)
                group = await consumer_group_of(broker)
                assert group.assignment_epoch == group.epoch
            async with node(store, broker_id=1) as again:
                assert (await consumer_group_of(again)).assignment_epoch == group.epoch

        play(scenario)

    def test_a_computation_that_fails_is_made_again(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            failures = [RuntimeError("no"), RuntimeError("no again")]

            async def failing(computation: TargetComputation) -> Mapping[str, Partitions]:
                if failures:
                    raise failures.pop()
                return computation.run()

            async with node(store, assigned_at_once_members_max=1, compute=failing) as broker:
                await enter(broker, "a")
                await enter(broker, "b")
                for _ in range(4):
                    await asyncio.sleep(1)
                    await beat(broker, "a", 1)
                assert not failures
                assert (await consumer_group_of(broker)).assignment_epoch == 2

        play(scenario)

    async def test_a_thread_computes_them(self) -> None:
        computation = TargetComputation(
            epoch=1,
            assignor="uniform",
            subscribers={"a": Subscriber(instance_id=None, topic_ids=frozenset({topic_id("t")}))},
            partition_counts={topic_id("t"): 2},
        )
        assert await in_thread(computation) == {"a": partitions(0, 1)}


def test_a_change_that_could_not_be_stored_is_not_answered() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a")
            store.on_commit = lambda _: StoreUnavailable("away")
            joined, beaten = await asyncio.gather(enter(broker, "b"), beat(broker, "a", 1))
            assert joined.error is ErrorCode.coordinator_not_available
            # What it would have been told came from the same step.
            assert beaten.error is ErrorCode.coordinator_not_available
            store.on_commit = lambda _: None
            assert (await beat(broker, "a", 1)).member_epoch == 1
            assert "b" not in (await consumer_group_of(broker)).roster

    play(scenario)


def test_a_heartbeat_without_news_waits_for_those_that_it_would_tell() -> None:
    """A repeated request is told what the first one has changed, and nobody has stored yet."""

    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a")
            await enter(broker, "b")
            store.on_commit = lambda _: StoreUnavailable("away")
            everything = {
                "rebalance_timeout_ms": 60_000,
                "subscribed_topics": ("t",),
                "owned": partitions(0, 1),
            }
            answers = await asyncio.gather(*(beat(broker, "a", 1, **everything) for _ in range(2)))
            assert [a.error for a in answers] == [ErrorCode.coordinator_not_available] * 2

    play(scenario)


def test_a_move_of_the_shard_is_not_noticed() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as old, node(store, broker_id=2) as new:
            await share(old, "a", "b")
            before = await consumer_group_of(old)
            state = before.to_record(shard=0, clock_offset_ms=0, version=0).consumer
            for leader, broker in ((2, new), (1, old), (2, new)):
                await lead_offsets(store, broker.view, leader)
                for member in ("a", "b"):
                    answer = await beat(broker, member, before.epoch)
                    assert (answer.error, answer.member_epoch) == (ErrorCode.none, before.epoch)
                    assert answer.assigned is None
                after = await consumer_group_of(broker)
                assert after.to_record(shard=0, clock_offset_ms=0, version=0).consumer == state

    play(scenario)


def test_what_the_old_coordinator_has_under_way_comes_before_the_new_ones_answers_or_never() -> (
    None
):
    """Else a member could be told an epoch that the new coordinator does not know."""

    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as old, node(store, broker_id=2) as new:
            await share(old, "a", "b")
            epoch = (await consumer_group_of(old)).epoch
            held = asyncio.Event()
            released = asyncio.Event()
            commit = store.commit

            async def slow_commit(writes: Sequence[Write], **options: Any) -> None:
                held.set()
                await released.wait()
                await commit(writes, **options)

            store.commit = slow_commit  # type: ignore[method-assign]
            leaving = asyncio.create_task(beat(old, "b", -1))
            await held.wait()
            store.commit = commit  # type: ignore[method-assign]
            await lead_offsets(store, new.view, 2)
            assert (await beat(new, "a", epoch)).error is ErrorCode.none
            released.set()
            assert (await leaving).error is ErrorCode.not_coordinator
            assert (await beat(new, "b", epoch)).error is ErrorCode.none

    play(scenario)


def test_a_member_that_is_silent_for_a_session_is_removed() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await share(broker, "a", "b")
            epoch = (await consumer_group_of(broker)).epoch
            for _ in range(10):
                await asyncio.sleep(5)
                await beat(
                    broker, "a", min(epoch, (await consumer_group_of(broker)).member("a").epoch)
                )
            assert (await beat(broker, "b", epoch)).error is ErrorCode.unknown_member_id
            answer = await beat(broker, "a", (await consumer_group_of(broker)).member("a").epoch)
            assert answer.member_epoch == epoch + 1
            assert (await consumer_group_of(broker)).member("a").assigned == partitions(0, 1)

    play(scenario)


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a", rebalance_timeout_ms=30_000)
            await enter(broker, "b")
            told = await beat(broker, "a", 1)
            assert told.assigned is not None
            for _ in range(5):
                await asyncio.sleep(5)
                await beat(broker, "a", 1, owned=partitions(0, 1))
                await beat(broker, "b", 2)
            assert "a" in (await consumer_group_of(broker)).roster
            await asyncio.sleep(6)
            assert (await beat(broker, "a", 1)).error is ErrorCode.unknown_member_id
            await beat(broker, "b", 2)
            assert (await consumer_group_of(broker)).member("b").assigned == partitions(0, 1)

    play(scenario)


def test_a_restart_gives_members_who_are_giving_up_their_time_again() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a", rebalance_timeout_ms=30_000)
            await enter(broker, "b")
            await beat(broker, "a", 1)
            await asyncio.sleep(25)
        async with node(store) as broker:
            await asyncio.sleep(25)
            assert "a" in (await consumer_group_of(broker)).roster
            await asyncio.sleep(6)
            assert "a" not in (await consumer_group_of(broker)).roster

    play(scenario)


def of_all() -> dict[str, bytes]:
    both = encode_assignment([TopicPartition("t", 0), TopicPartition("t", 1)], version=0)
    return {"old": both}


async def stable_classic(broker: Node) -> int:
    answer = await broker.member("old")
    await broker.sync("old", answer.generation, of_all())
    return answer.generation


def test_a_consumer_joins_a_classic_group_and_shares_with_its_member() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await stable_classic(broker)
            answer = await enter(broker, "new")
            assert (answer.member_epoch, answer.assigned) == (generation + 1, frozenset())
            told = await broker.coordinator.heartbeat("g", GroupCaller("old", None, generation))
            assert told is ErrorCode.rebalance_in_progress
            # It is eager: it has given everything up when it joins.
            joined = await broker.join(join("old"))
            assert (joined.error, joined.generation) == (ErrorCode.none, generation + 1)
            assert (joined.leader, joined.members) == ("", ())
            synced = await broker.sync("old", joined.generation)
            (kept,) = decode_assignment(synced.assignment)
            last = await beat(broker, "new", generation + 1)
            assert last.assigned is not None
            taken = {p.partition for p in last.assigned}
            assert taken | {kept.partition} == {0, 1}
            assert (await consumer_group_of(broker)).phase is ConsumerPhase.STABLE

    play(scenario)


def test_a_classic_group_that_waits_for_joins_is_told_to_join_again() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await stable_classic(broker)
            await broker.join(join(new="late"))
            waiting = asyncio.create_task(broker.join(join("late")))
            await asyncio.sleep(1)
            assert not waiting.done()
            assert (await enter(broker, "new")).error is ErrorCode.none
            assert (await waiting).error is ErrorCode.rebalance_in_progress
            assert (await broker.join(join("late"))).generation > generation

    play(scenario)


@pytest.mark.parametrize(
    ("policy", "can_upgrade", "can_downgrade"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_the_migration_policy_is_followed(
    policy: str, can_upgrade: bool, can_downgrade: bool
) -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        config = NodeConfig(
            group_initial_rebalance_delay_ms=0, group_consumer_migration_policy=policy
        )
        async with node(store, config=config) as broker:
            generation = await stable_classic(broker)
            answer = await enter(broker, "new")
            if not can_upgrade:
                assert answer.error is ErrorCode.group_id_not_found
                assert answer.message is not None
                assert "online upgrade is disabled" in answer.message
                told = await broker.coordinator.heartbeat("g", GroupCaller("old", None, generation))
                assert told is ErrorCode.none
                return
            assert answer.error is ErrorCode.none
            assert (await beat(broker, "new", -1)).error is ErrorCode.none
            group = await broker.coordinator.describe("g")
            assert isinstance(group, ClassicGroup) == can_downgrade

    play(scenario)


def test_the_last_consumer_leaves_a_group_to_its_classic_members() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await stable_classic(broker)
            await enter(broker, "new")
            joined = await broker.join(join("old"))
            await broker.sync("old", joined.generation)
            await beat(broker, "new", -1)
            group = await broker.coordinator.describe("g")
            assert isinstance(group, ClassicGroup)
            assert group.phase is Phase.PREPARING_REBALANCE
            told = await broker.coordinator.heartbeat(
                "g", GroupCaller("old", None, joined.generation)
            )
            assert told is ErrorCode.rebalance_in_progress
            again = await broker.join(join("old"))
            assert (again.leader, again.generation > generation + 1) == ("old", True)
        async with node(store) as broker:
            group = await broker.coordinator.describe("g")
            assert isinstance(group, ClassicGroup)
            assert group.generation == again.generation

    play(scenario)


def test_an_empty_group_takes_either_protocol_and_its_epochs_go_on() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            assert await broker.commit(7) is ErrorCode.none
            assert (await enter(broker, "a")).member_epoch == 1
            await beat(broker, "a", -1)
            joined = await broker.member("old")
            assert joined.generation == 3
            await broker.sync("old", 3, of_all())
            assert await broker.offset() == 7

    play(scenario)


def test_commits_and_fetches_are_held_to_the_members_epoch() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await enter(broker, "a")
            assert await broker.commit(1, member_id="a", generation=1) is ErrorCode.none
            for epoch in (0, 2):
                error = await broker.commit(2, member_id="a", generation=epoch)
                assert error is ErrorCode.stale_member_epoch
                fetched = await broker.coordinator.validate_fetch("g", "a", epoch)
                assert fetched is ErrorCode.stale_member_epoch
            for member_id, generation in (("nobody", 1), ("", -1)):
                error = await broker.commit(2, member_id=member_id, generation=generation)
                assert error is ErrorCode.unknown_member_id
            assert await broker.coordinator.validate_fetch("g", None, -1) is ErrorCode.none
            assert await broker.offset() == 1
            await beat(broker, "a", -1)
            assert await broker.commit(3) is ErrorCode.none

    play(scenario)


def test_subscribed_topics_keep_their_offsets_while_there_are_members() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        config = NodeConfig(offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
        async with node(store, config=config) as broker:
            await enter(broker, "a")
            wall_ms = int(asyncio.get_running_loop().time() * 1000) + 5_000_000
            for topic in ("t", "u"):
                error = await broker.commit(
                    1, member_id="a", generation=1, topic=topic, committed_ms=wall_ms
                )
                assert error is ErrorCode.none
            deleted = await broker.coordinator.delete_offsets("g", {"t": [0]})
            assert deleted == (ErrorCode.none, frozenset({"t"}))
            for _ in range(30):
                await asyncio.sleep(5)
                await beat(broker, "a", 1)
            assert (await broker.offset("t"), await broker.offset("u")) == (1, None)
            assert await broker.coordinator.delete_group("g") is ErrorCode.non_empty_group
            await beat(broker, "a", -1)
            await asyncio.sleep(50)
            assert await broker.offset("t") == 1
            await asyncio.sleep(30)
            assert await broker.offset("t") is None
            assert await broker.coordinator.describe("g") is None

    play(scenario)


def test_offsets_end_in_time_once_their_topic_is_not_subscribed_to_any_more() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        config = NodeConfig(
            offsets_retention_minutes=10, offsets_retention_check_interval_ms=60_000
        )
        async with node(store, config=config) as broker:
            await enter(broker, "a", ("t", "u"))
            now_ms = int(asyncio.get_running_loop().time() * 1000) + 5_000_000
            for topic in ("t", "u"):
                fields = {"member_id": "a", "generation": 1, "committed_ms": now_ms}
                assert await broker.commit(1, topic=topic, **fields) is ErrorCode.none
            await stay(broker, "a", seconds=12.5 * 60)
            before = await consumer_group_of(broker)
            assert before.phase is ConsumerPhase.STABLE
            epoch = before.member("a").epoch
            await beat(broker, "a", epoch, subscribed_topics=("t",))
            await stay(broker, "a", seconds=60)
            after = await consumer_group_of(broker)
            # Seen from one sweep to the next, nothing but the subscription is another.
            assert after.phase is before.phase
            assert after.phase_since_ms == before.phase_since_ms
            assert (await broker.offset("t"), await broker.offset("u")) == (1, None)

    play(scenario)


async def stay(broker: Node, member: str, *, seconds: float) -> None:
    """Let time pass for a member that has what it is to have."""
    for _ in range(int(seconds / 5)):
        await asyncio.sleep(5)
        state = (await consumer_group_of(broker)).member(member)
        await beat(broker, member, state.epoch, owned=state.assigned)


def test_an_administrator_without_a_node_moves_the_offsets_of_an_empty_group_only() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            admin = GroupAdmin(store=store, view=broker.view)
            await enter(broker, "a")
            await broker.commit(1, member_id="a", generation=1)
            offsets = {TopicPartition("t", 0): 9}
            with pytest.raises(NonEmptyGroup, match="1 member"):
                await admin.reset_offsets("g", offsets)
            await beat(broker, "a", -1)
            epoch = (await consumer_group_of(broker)).epoch
            await admin.reset_offsets("g", offsets)
            assert (await enter(broker, "a")).member_epoch == epoch + 1
            assert await broker.offset() == 9
            await beat(broker, "a", -1)
            await admin.delete_group("g")
            await broker.view.refresh()  # tells that the record has changed, to be read again
            await asyncio.sleep(1)
            assert (await beat(broker, "a", 5)).error is ErrorCode.group_id_not_found

    play(scenario)


def test_a_list_of_no_assignors_allows_them_all() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        config = NodeConfig(group_consumer_assignors=())
        async with node(store, config=config) as broker:
            assert broker.coordinator.assignors == ("uniform", "range")
            assert (await enter(broker, "a", assignor="range")).assigned == partitions(0, 1)
            assert broker.coordinator.preferred_assignor(await consumer_group_of(broker)) == "range"

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "epoch", "config"),
    [
        ({"instance_id": "i"}, LEFT_FOR_NOW_EPOCH, {}),
        ({"instance_id": "i"}, LEAVE_EPOCH, {}),
        ({}, LEAVE_EPOCH, {"group_consumer_max_size": 2}),
    ],
    ids=["static member that comes back", "static member that left", "full group"],
)
def test_a_join_is_decided_after_the_leave_before_it(
    fields: dict[str, str], epoch: int, config: dict[str, int]
) -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        settings = NodeConfig(group_initial_rebalance_delay_ms=100, **config)
        async with node(store, config=settings) as broker:
            await enter(broker, "other")
            await enter(broker, "m", **fields)
            store.latency = 1.0
            writing = asyncio.create_task(beat(broker, "other", 1, subscribed_topics=("t", "u")))
            await asyncio.sleep(0.5)  # The write takes in nothing more.
            leaving = asyncio.create_task(beat(broker, "m", epoch, **fields))
            await asyncio.sleep(0.1)
            joined = await enter(broker, "again", **fields)
            await writing
            assert (await leaving).error is ErrorCode.none
            assert joined.error is ErrorCode.none

    play(scenario)
