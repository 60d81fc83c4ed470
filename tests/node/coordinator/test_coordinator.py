"""The coordinator's shell: time, the store and its failures, restarts and moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    InvalidGroupId,
    NotCoordinator,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    group_collection,
    shard_of_group,
)
from tidelog_core.metadata.records import topic_key
from tidelog_core.metadata.store import ANY_VERSION, ItemKey, Write
from tidelog_node.coordinator.failures import error_code
from tidelog_node.groups.classic.classic_group import Phase
from tidelog_node.groups.classic_messages import GroupCaller, JoinAnswer, MemberIdentity

from tests.support.coordinator_node import (
    Node,
    create_topic,
    delete_topic,
    lead_offsets,
    new_cluster,
    node,
    play,
    topic_id,
)
from tests.support.group_requests import join
from tests.support.memory_store import MemoryMetadataStore
from tests.support.virtual_time import VirtualTimeLoop, run

Scenario = Callable[[MemoryMetadataStore], Awaitable[None]]


async def code_of(awaitable: Awaitable[object]) -> ErrorCode:
    try:
        result = await awaitable
    except TidelogError as error:
        return error_code(error)
    if isinstance(result, ErrorCode):
        return result
    code = getattr(result, "error", None)
    assert isinstance(code, ErrorCode)
    return code


async def phase(broker: Node, group: str = "g") -> Phase | None:
    found = await broker.coordinator.describe(group)
    return None if found is None else found.phase


def touches_group(writes: Sequence[Write]) -> bool:
    return any(write.id.collection.startswith("group:") for write in writes)


def test_members_agree_on_a_generation_and_get_their_assignments() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            answers = await asyncio.gather(broker.member("a"), broker.member("b"))
            assert {answer.generation for answer in answers} == {1}
            follower = asyncio.create_task(broker.sync("b", 1))
            await asyncio.sleep(5)
            assert not follower.done()
            leader = await broker.sync("a", 1, {"a": b"1", "b": b"2"})
            assert (leader.assignment, (await follower).assignment) == (b"1", b"2")
            assert await phase(broker) is Phase.STABLE

    play(scenario)


def test_a_member_that_stops_sending_heartbeats_is_dropped_in_time() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await broker.stable("a", "b", session_timeout_ms=10_000)
            loop = asyncio.get_running_loop()
            begun = loop.time()
            while True:
                error = await broker.coordinator.heartbeat("g", GroupCaller("a", None, generation))
                if error is not ErrorCode.none:
                    break
                await asyncio.sleep(0.5)
            assert error is ErrorCode.rebalance_in_progress
            assert 10 <= loop.time() - begun <= 10.6

    play(scenario)


def test_a_coordinator_that_was_closed_takes_no_shard_over_again() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await broker.coordinator.close()
            await create_topic(store, "v")
            await broker.view.refresh()
            assert await code_of(broker.commit(1)) is ErrorCode.not_coordinator

    play(scenario)


def test_the_answer_comes_after_the_store_has_the_generation() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        store.latency = 0.5
        async with node(store) as broker:
            begun = asyncio.get_running_loop().time()
            assert (await broker.member("a")).generation == 1
            # Loading the shard and storing the generation take one call each.
            assert asyncio.get_running_loop().time() - begun >= 0.1 + 2 * store.latency
            assert touches_group(store.commits[-1])

    play(scenario)


def test_a_node_that_was_stopped_hears_its_members_before_it_drops_them() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await broker.stable("a", "b", session_timeout_ms=10_000)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            loop.stall(60)
            await asyncio.sleep(0.01)
            beat = await broker.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert beat is ErrorCode.none
            await asyncio.sleep(1.1)
            beat = await broker.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert beat is ErrorCode.rebalance_in_progress  # "b" has really gone

    play(scenario)


def test_a_group_survives_a_restart_with_its_members_and_generation() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await broker.stable("a", "b")
            assert await broker.commit(5, member_id="a", generation=generation) is ErrorCode.none
        async with node(store) as broker:
            beat = await broker.coordinator.heartbeat("g", GroupCaller("b", None, generation))
            assert beat is ErrorCode.none
            assert (await broker.sync("b", generation)).assignment == b"assigned b"
            assert await broker.commit(6, member_id="b", generation=generation) is ErrorCode.none
            assert await broker.offset() == 6

    play(scenario)


def test_members_that_died_with_the_node_are_dropped_after_a_session() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await broker.stable("a", session_timeout_ms=10_000)
        async with node(store) as broker:
            await asyncio.sleep(9.9)
            assert await phase(broker) is Phase.STABLE
            await asyncio.sleep(0.2)
            assert await phase(broker) is Phase.EMPTY

    play(scenario)


def test_a_crash_during_the_assignment_leaves_the_generation_to_be_completed() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            answers = await asyncio.gather(broker.member("a"), broker.member("b"))
            assert answers[0].generation == 1
        async with node(store) as broker:
            follower = asyncio.create_task(broker.sync("b", 1))
            await broker.sync("a", 1, {"b": b"2"})
            assert (await follower).assignment == b"2"

    play(scenario)


def test_who_waits_when_the_node_stops_is_sent_to_the_next_coordinator() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await broker.stable("a")
            joining = asyncio.create_task(broker.member("b"))
            await asyncio.sleep(0.1)
        assert (await joining).error is ErrorCode.not_coordinator

    play(scenario)


def test_a_shard_that_moves_takes_its_groups_along() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store, broker_id=1) as old, node(store, broker_id=2) as new:
            generation = await old.stable("a")
            waiting = asyncio.create_task(old.member("b"))
            await asyncio.sleep(0.1)
            await lead_offsets(store, new.view, 2)
            await old.view.refresh()
            assert (await waiting).error is ErrorCode.not_coordinator
            beat = old.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert await code_of(beat) is ErrorCode.not_coordinator
            beat = new.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert await code_of(beat) is ErrorCode.none

    play(scenario)


def test_a_coordinator_that_was_replaced_unnoticed_can_store_nothing() -> None:
    """It may answer heartbeats for a while, but no commit and no generation of it counts."""

    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store, broker_id=1) as old, node(store, broker_id=2) as new:
            generation = await old.stable("a")
            assert await old.commit(5, member_id="a", generation=generation) is ErrorCode.none
            await lead_offsets(store, new.view, 2)
            # The new one has a rebalance; the old one has not seen that it lost the shard.
            await asyncio.gather(
                new.member("b"),
                new.join(join("a")),
            )
            commit = old.commit(3, member_id="a", generation=generation)
            assert await code_of(commit) is ErrorCode.not_coordinator
            assert await new.offset() == 5
            # It has thrown its memory away and reads what the new one stored.
            beat = old.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert await code_of(beat) is ErrorCode.illegal_generation

    play(scenario)


def test_two_that_both_believe_they_coordinate_never_share_a_generation() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store, broker_id=1) as old, node(store, broker_id=2) as new:
            await old.stable("a")
            await lead_offsets(store, new.view, 2)
            await new.coordinator.describe("g")
            answers = await asyncio.gather(
                old.join(join("a")), new.join(join("a")), return_exceptions=True
            )
            told = [a for a in answers if isinstance(a, JoinAnswer)]
            assert len([a for a in told if a.error is ErrorCode.none]) == 1
            assert {a.error for a in told} <= {ErrorCode.none, ErrorCode.not_coordinator}

    play(scenario)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreUnavailable("away"), ErrorCode.coordinator_not_available),
        (OutcomeUnknown("who knows"), ErrorCode.coordinator_not_available),
        (VersionConflict([("group:0", "g")]), ErrorCode.not_coordinator),
    ],
)
def test_a_generation_that_cannot_be_stored_is_not_answered(
    failure: TidelogError, code: ErrorCode
) -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            failing = True
            store.on_commit = lambda _: failure if failing else None
            assert (await broker.member("a")).error is code
            failing = False
            answer = await broker.member("b")
            assert answer.error is ErrorCode.none
            # Where the outcome was unknown the generation of "a" may count.
            assert answer.generation in (1, 2)
            assert [member.member_id for member in answer.members] in (["b"], ["a", "b"])

    play(scenario)


def test_an_assignment_that_cannot_be_stored_is_asked_for_again() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await asyncio.gather(broker.member("a"), broker.member("b"))
            follower = asyncio.create_task(broker.sync("b", 1))
            await asyncio.sleep(0.1)
            store.is_available = False
            leader = await broker.sync("a", 1, {"a": b"1", "b": b"2"})
            assert leader.error is ErrorCode.coordinator_not_available
            assert (await follower).error is ErrorCode.coordinator_not_available
            unavailable = await code_of(broker.sync("a", 1, {}))
            assert unavailable is ErrorCode.coordinator_not_available
            store.is_available = True
            follower = asyncio.create_task(broker.sync("b", 1))
            leader = await broker.sync("a", 1, {"a": b"1", "b": b"2"})
            assert (leader.error, leader.assignment) == (ErrorCode.none, b"1")
            assert (await follower).assignment == b"2"

    play(scenario)


def test_heartbeats_need_no_store() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await broker.stable("a")
            store.is_available = False
            beat = await broker.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert beat is ErrorCode.none

    play(scenario)


def test_a_shard_that_cannot_be_loaded_is_tried_again_with_the_next_request() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            generation = await broker.stable("a")
        async with node(store, broker_id=2) as broker:
            await lead_offsets(store, broker.view, 2)
            store.is_available = False
            beat = broker.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert await code_of(beat) is ErrorCode.coordinator_not_available
            store.is_available = True
            beat = broker.coordinator.heartbeat("g", GroupCaller("a", None, generation))
            assert await code_of(beat) is ErrorCode.none

    play(scenario)


def test_a_group_that_cannot_be_read_does_not_take_the_others_with_it() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await broker.stable("a")
        shard = shard_of_group("g", 4)
        other = next(n for n in "hijklmnopq" if shard_of_group(n, 4) == shard)
        broken = Write(ItemKey(group_collection(shard), other), {"phase": 1}, 0, is_logged=False)
        await store.commit([broken])
        async with node(store) as broker:
            assert await phase(broker) is Phase.STABLE
            described = broker.coordinator.describe(other)
            assert await code_of(described) is ErrorCode.unknown_server_error
            assert [group.group_id for group in await broker.coordinator.list_groups()] == ["g"]

    play(scenario)


def test_groups_of_other_nodes_and_impossible_ids_are_refused() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store, broker_id=2) as broker:
            with pytest.raises(NotCoordinator):
                await broker.join(join())
            for group_id in ("", "x" * 1001):
                with pytest.raises(InvalidGroupId):
                    await broker.coordinator.describe(group_id)

    play(scenario)


def test_without_the_offsets_topic_nobody_coordinates() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        async with node(store) as broker:
            with pytest.raises(NotCoordinator):
                await broker.join(join())
            assert await broker.coordinator.list_groups() == []
            await new_cluster(store)
            await broker.view.refresh()
            assert (await broker.member("a")).generation == 1

    run(main())


def test_session_timeouts_outside_the_bounds_are_refused() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            for session_timeout_ms in (5999, 1_800_001):
                answer = await broker.join(join(session_timeout_ms=session_timeout_ms))
                assert answer.error is ErrorCode.invalid_session_timeout

    play(scenario)


def test_ids_given_out_and_never_used_leave_nothing_behind() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as broker:
            await broker.join(join(new="a", session_timeout_ms=6000))
            assert [g.group_id for g in await broker.coordinator.list_groups()] == ["g"]
            await asyncio.sleep(6.1)
            assert await broker.coordinator.list_groups() == []
            assert await store.list(group_collection(shard_of_group("g", 4))) == []

    play(scenario)


def test_a_caller_that_goes_away_does_not_stop_the_storing() -> None:
    async def scenario(store: MemoryMetadataStore) -> None:
        store.latency = 0.2
        async with node(store) as broker:
            await asyncio.gather(broker.member("a"), broker.member("b"))
            follower = asyncio.create_task(broker.sync("b", 1))
            leader = asyncio.create_task(broker.sync("a", 1, {"b": b"2"}))
            await asyncio.sleep(0.1)
            leader.cancel()
            assert (await follower).assignment == b"2"
            assert await phase(broker) is Phase.STABLE

    play(scenario)


class TestOffsets:
    def test_they_are_durable_when_they_are_acknowledged(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                assert await broker.offset() is None
                assert await broker.commit(5) is ErrorCode.none
                assert await broker.offset() == 5
            async with node(store) as broker:
                assert await broker.offset() == 5
                assert await broker.commit(4) is ErrorCode.none
                assert await broker.offset() == 4

        play(scenario)

    def test_commits_close_together_are_one_transaction(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                await broker.commit(0)
                before = len(store.commits)
                errors = await asyncio.gather(
                    *(
                        broker.commit(i, topic=topic, partition=i % 2)
                        for i in range(50)
                        for topic in ("t", "u")
                    )
                )
                assert set(errors) == {ErrorCode.none}
                assert len(store.commits) == before + 1
                assert len(store.commits[-1]) == 2
                assert (await broker.offset("t", 0), await broker.offset("u", 1)) == (48, 49)

        play(scenario)

    def test_many_partitions_take_several_transactions(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            await create_topic(store, "wide", 60)
            async with node(store) as broker:
                value = CommittedOffset(1, -1, "", 0)
                offsets = {("wide", topic_id("wide")): dict.fromkeys(range(64 * 200), value)}
                error = await broker.coordinator.commit_offsets("g", offsets, GroupCaller())
                assert error is ErrorCode.none
                found = await broker.coordinator.fetch_offsets("g", None)
                assert len(found) == 64 * 200

        play(scenario)

    def test_a_commit_is_refused_by_what_the_group_says(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                lost = await broker.commit(1, member_id="a", generation=1)
                assert lost is ErrorCode.group_id_not_found
                generation = await broker.stable("a")
                assert await broker.commit(1) is ErrorCode.unknown_member_id
                stale = await broker.commit(1, member_id="a", generation=generation - 1)
                assert stale is ErrorCode.illegal_generation
                assert await broker.offset() is None

        play(scenario)

    def test_a_commit_lands_before_the_next_generation_begins(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                generation = await broker.stable("a")
                commit = asyncio.create_task(broker.commit(7, member_id="a", generation=generation))
                await asyncio.sleep(0)
                rejoined = await broker.join(join("a"))
                assert rejoined.generation == generation + 1
                assert commit.done()
                assert commit.result() is ErrorCode.none

        play(scenario)

    @pytest.mark.parametrize("failure", [StoreUnavailable("away"), OutcomeUnknown("who knows")])
    def test_a_commit_that_fails_can_be_tried_again(self, failure: TidelogError) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                generation = await broker.stable("a")
                await broker.commit(1, member_id="a", generation=generation)
                store.on_commit = lambda _: failure
                commit = broker.commit(2, member_id="a", generation=generation)
                assert await code_of(commit) is ErrorCode.coordinator_not_available
                store.on_commit = lambda _: None
                again = await broker.commit(2, member_id="a", generation=generation)
                assert again is ErrorCode.none
                assert await broker.offset() == 2

        play(scenario)

    def test_a_commit_that_stores_nothing_leaves_no_group_behind(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                nothing = broker.coordinator.commit_offsets("g", {}, GroupCaller())
                assert await code_of(nothing) is ErrorCode.none
                assert await broker.coordinator.list_groups() == []
                store.on_commit = lambda _: StoreUnavailable("away")
                failed = broker.commit(1, group="h")
                assert await code_of(failed) is ErrorCode.coordinator_not_available
                assert await broker.coordinator.list_groups() == []
                store.on_commit = lambda _: None
                assert await broker.commit(1, group="h") is ErrorCode.none
                assert [g.group_id for g in await broker.coordinator.list_groups()] == ["h"]

        play(scenario)

    def test_a_page_changed_by_someone_else_is_read_again(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, broker_id=1) as old, node(store, broker_id=2) as new:
                await old.commit(1, partition=0)
                await lead_offsets(store, new.view, 2)
                await new.commit(2, partition=1)
                await lead_offsets(store, old.view, 1)
                assert await old.commit(3, partition=0) is ErrorCode.none
                assert (await old.offset(partition=0), await old.offset(partition=1)) == (3, 2)

        play(scenario)

    def test_a_topic_created_again_has_no_offsets(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                await broker.commit(5)
                await delete_topic(store, broker.view, "t")
                assert await broker.offset() is None
                await create_topic(store, "t", id=UUID(int=99))
                await broker.view.refresh()
                assert await broker.offset() is None
                value = {("t", UUID(int=99)): {1: CommittedOffset(8, -1, "", 0)}}
                await broker.coordinator.commit_offsets("g", value, GroupCaller())
                assert (await broker.offset(partition=0), await broker.offset(partition=1)) == (
                    None,
                    8,
                )

        play(scenario)


class TestDeleting:
    def test_offsets_of_topics_that_members_consume_stay(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                generation = await broker.stable("a")
                for topic in ("t", "u"):
                    await broker.commit(5, topic=topic, member_id="a", generation=generation)
                result = await broker.coordinator.delete_offsets("g", {"t": [0], "u": [0, 1]})
                assert result == (ErrorCode.none, frozenset({"t"}))
                assert (await broker.offset("t"), await broker.offset("u")) == (5, None)

        play(scenario)

    def test_offsets_of_workers_of_another_kind_stay_while_there_are_any(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                await broker.stable("a", protocol_type="connect")
                error, _ = await broker.coordinator.delete_offsets("g", {"t": [0]})
                assert error is ErrorCode.non_empty_group

        play(scenario)

    def test_an_empty_group_goes_with_its_offsets(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store) as broker:
                generation = await broker.stable("a")
                await broker.commit(5, member_id="a", generation=generation)
                assert await broker.coordinator.delete_group("g") is ErrorCode.non_empty_group
                await broker.coordinator.leave("g", [MemberIdentity("a")])
                assert await broker.coordinator.delete_group("g") is ErrorCode.none
                assert await broker.coordinator.delete_group("g") is ErrorCode.group_id_not_found
                assert await broker.offset() is None
                assert await broker.coordinator.list_groups() == []
                assert (await broker.member("b")).generation == 1

        play(scenario)


class TestExpiry:
    CONFIG = NodeConfig(
        group_initial_rebalance_delay_ms=0,
        offsets_retention_minutes=10,
        offsets_retention_check_interval_ms=60_000,
    )

    async def _commit(self, broker: Node, **options: object) -> None:
        now_ms = int(asyncio.get_running_loop().time() * 1000) + 5_000_000
        error = await broker.commit(5, committed_ms=now_ms, **options)  # type: ignore[arg-type]
        assert error is ErrorCode.none

    def test_a_simple_groups_offsets_go_by_their_own_age(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                await self._commit(broker, topic="t")
                await asyncio.sleep(5 * 60)
                await self._commit(broker, topic="u")
                await asyncio.sleep(6.5 * 60)
                assert (await broker.offset("t"), await broker.offset("u")) == (None, 5)
                await asyncio.sleep(5 * 60)
                assert await phase(broker) is None

        play(scenario)

    def test_offsets_do_not_go_by_a_clock_that_is_in_doubt(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            is_trusted = False
            async with node(store, config=self.CONFIG, may_expire=lambda: is_trusted) as broker:
                await self._commit(broker, topic="t")
                await asyncio.sleep(20 * 60)
                assert await broker.offset("t") == 5
                is_trusted = True
                await asyncio.sleep(2 * 60)
                assert await broker.offset("t") is None

        play(scenario)

    def test_a_group_keeps_its_offsets_for_the_retention_after_its_last_member(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                generation = await broker.stable("a", session_timeout_ms=1_800_000)
                await self._commit(broker, member_id="a", generation=generation)
                await asyncio.sleep(25 * 60)
                assert await broker.offset() == 5
                await broker.coordinator.leave("g", [MemberIdentity("a")])
            # The time is counted over a restart.
            await asyncio.sleep(9 * 60)
            async with node(store, config=self.CONFIG) as broker:
                await asyncio.sleep(30)
                assert await broker.offset() == 5
                await asyncio.sleep(2 * 60)
                assert await broker.offset() is None
                assert await phase(broker) is None

        play(scenario)

    def test_members_lose_offsets_only_of_topics_that_they_no_longer_consume(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                generation = await broker.stable("a", session_timeout_ms=1_800_000)
                for topic in ("t", "u"):
                    await self._commit(broker, topic=topic, member_id="a", generation=generation)
                await asyncio.sleep(12 * 60)
                assert (await broker.offset("t"), await broker.offset("u")) == (5, None)
                assert await phase(broker) is Phase.STABLE

        play(scenario)

    def test_offsets_of_deleted_topics_are_removed(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                for topic in ("t", "u"):
                    await self._commit(broker, topic=topic)
                await delete_topic(store, broker.view, "t")
                await asyncio.sleep(61)
                assert [item.id.key for item in await store.list("offset:g")] == ["u/000000"]

        play(scenario)

    def test_offsets_of_a_topic_that_cannot_be_read_are_kept(self) -> None:
        """It may be the same topic still."""

        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                for topic in ("t", "u"):
                    await self._commit(broker, topic=topic)
            await store.commit([Write(topic_key("t"), {"of": "tomorrow"}, ANY_VERSION)])
            async with node(store, config=self.CONFIG) as broker:
                assert broker.view.image.topic("t") is None
                await asyncio.sleep(61)
                kept = [item.id.key for item in await store.list("offset:g")]
                assert kept == ["t/000000", "u/000000"]

        play(scenario)

    def test_a_group_in_which_nothing_can_end_is_not_read_again(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                await self._commit(broker, topic="t")
                await asyncio.sleep(2.5 * 60)
                before = store.list_count
                await asyncio.sleep(5 * 60)
                assert store.list_count == before
                await self._commit(broker, topic="u")
                await asyncio.sleep(3.5 * 60)
                assert (await broker.offset("t"), await broker.offset("u")) == (None, 5)

        play(scenario)

    def test_a_group_with_members_is_not_read_again_while_it_goes_on_as_it_is(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                generation = await broker.stable("a", session_timeout_ms=1_800_000)
                await self._commit(broker, member_id="a", generation=generation)
                await asyncio.sleep(2.5 * 60)
                before = store.list_count
                await self._commit(broker, member_id="a", generation=generation)
                await asyncio.sleep(5 * 60)
                assert store.list_count == before
                await broker.coordinator.leave("g", [MemberIdentity("a")])
                await asyncio.sleep(11.5 * 60)
                assert await broker.offset() is None

        play(scenario)

    def test_offsets_committed_since_the_last_look_end_with_their_topic(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                await self._commit(broker, topic="u")
                await asyncio.sleep(2.5 * 60)
                await self._commit(broker, topic="t")
                await delete_topic(store, broker.view, "t")
                await asyncio.sleep(61)
                assert [item.id.key for item in await store.list("offset:g")] == ["u/000000"]

        play(scenario)

    def test_an_explicit_retention_counts_in_a_group_that_was_looked_at(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                await self._commit(broker, topic="u")
                await asyncio.sleep(2.5 * 60)
                now_ms = int(asyncio.get_running_loop().time() * 1000) + 5_000_000
                offset = CommittedOffset(1, -1, "", now_ms, now_ms + 30_000)
                await broker.coordinator.commit_offsets(
                    "g",
                    {("t", topic_id("t")): {0: offset}},
                    GroupCaller(),
                )
                await asyncio.sleep(91)
                assert (await broker.offset("t"), await broker.offset("u")) == (None, 5)

        play(scenario)

    def test_an_explicit_retention_counts_instead(self) -> None:
        async def scenario(store: MemoryMetadataStore) -> None:
            async with node(store, config=self.CONFIG) as broker:
                now_ms = int(asyncio.get_running_loop().time() * 1000) + 5_000_000
                offsets = {
                    ("t", topic_id("t")): {
                        0: CommittedOffset(1, -1, "", now_ms, now_ms + 30_000),
                        1: CommittedOffset(2, -1, "", now_ms, now_ms + 3_600_000),
                    }
                }
                await broker.coordinator.commit_offsets("g", offsets, GroupCaller())
                await asyncio.sleep(61)
                assert (await broker.offset(partition=0), await broker.offset(partition=1)) == (
                    None,
                    2,
                )
                await asyncio.sleep(20 * 60)
                assert await broker.offset(partition=1) == 2

        play(scenario)


def test_a_commit_of_a_coordinator_that_was_replaced_overtakes_none_of_the_next_one() -> None:
    """It was under way when the next coordinator took over: it comes before or not at all."""

    async def scenario(store: MemoryMetadataStore) -> None:
        async with node(store) as old, node(store, broker_id=2) as new:
            assert await old.commit(10) is ErrorCode.none
            store.latency = 0.1
            late = asyncio.create_task(code_of(old.commit(20)))
            await asyncio.sleep(0.05)
            store.latency = 0.001
            await lead_offsets(store, new.view, 2)
            assert await new.commit(30) is ErrorCode.none
            assert await late is ErrorCode.not_coordinator
            assert await new.offset() == 30
            assert await new.commit(40) is ErrorCode.none
            assert await new.offset() == 40

    play(scenario)
