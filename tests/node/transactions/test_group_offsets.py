"""Offsets that wait for the end of a transaction."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.group_admin import GroupAdmin
from tidelog_core.errors import InvalidProducerEpoch, NotCoordinator
from tidelog_core.log.values import TransactionCoordinatorFenced
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog_node.groups.classic_messages import GroupCaller

from tests.node.transactions.world import GROUP, TXN, Client, Node, TransactionWorld, play
from tests.support.coordinator_node import topic_id


class HeldVerifier:
    """The real one, whose answers are held back."""

    def __init__(self, verifier: Any) -> None:
        self._verifier = verifier
        self.has_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def ask(self, *arguments: Any, **options: Any) -> Any:
        answer = await self._verifier.ask(*arguments, **options)
        self.has_asked.set()
        await self.may_answer.wait()
        return answer


class CountedStore:
    """The real one; notes what is called."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._store, name)


async def commit(
    node: Node, client: Client, offset: int, *, caller: GroupCaller | None = None, **options: Any
) -> Any:
    given = {
        "transactional_id": TXN,
        "producer_id": client.producer_id,
        "producer_epoch": client.epoch,
        "api_version": 5,
        "verifier": node.verifier,
        **options,
    }
    value = CommittedOffset(offset, -1, "", 1)
    return await node.offsets.commit(
        GROUP, {("t", topic_id("t")): {0: value}}, caller or GroupCaller(), **given
    )


def test_offsets_are_not_kept_if_their_transaction_ends_while_its_coordinator_is_asked(
    tmp_path: Path,
) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=0)
        shard = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
        await world.node.transactions.add_partitions(
            TXN, client.producer_id, client.epoch, [shard], client_version=0
        )
        verifier: Any = HeldVerifier(world.node.verifier)
        world.node.verifier = verifier
        late = asyncio.create_task(commit(world.node, client, 5, api_version=3))
        await verifier.has_asked.wait()
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        verifier.may_answer.set()
        assert await late is ErrorCode.invalid_txn_state
        assert await world.pending_offsets() == []

    play(tmp_path, scene)


def test_a_coordinator_that_takes_over_finds_what_is_pending(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        assert await client.commit_offset(5) is ErrorCode.none
        await world.take_over()
        unstable = {("t", topic_id("t"), 0)}
        assert await world.node.offsets.unstable(GROUP) == unstable
        assert await world.node.offsets.unstable("another") == frozenset()
        assert await client.commit_offset(6) is ErrorCode.none
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert await world.node.offsets.unstable(GROUP) == frozenset()
        assert await world.offset() == 6

    play(tmp_path, scene)


def test_a_coordinator_of_before_does_not_say_that_nothing_is_pending(tmp_path: Path) -> None:
    """Its memory is from before, the offsets that it would answer with are not."""

    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        before = world.node
        assert await before.offsets.unstable(GROUP) == frozenset()
        await world.take_over()
        assert await client.commit_offset(5) is ErrorCode.none
        with pytest.raises(NotCoordinator):
            await before.offsets.unstable(GROUP)
        # The one of before has taken nothing away from the one of now.
        assert await world.node.offsets.unstable(GROUP) == {("t", topic_id("t"), 0)}
        assert await client.end(is_commit=True) is ErrorCode.none

    play(tmp_path, scene)


def test_a_coordinator_of_before_does_not_say_that_it_has_ended_a_transaction(
    tmp_path: Path,
) -> None:
    """Otherwise what is pending at the next one stays, and the group reads nothing any more."""

    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        before = world.node
        assert await before.offsets.unstable(GROUP) == frozenset()
        await world.take_over()
        assert await client.commit_offset(5) is ErrorCode.none
        with pytest.raises(NotCoordinator):
            await before.offsets.complete_transaction(
                0, client.producer_id, client.epoch, is_commit=True, coordinator_epoch=0
            )
        await world.node.offsets.complete_transaction(
            0, client.producer_id, client.epoch, is_commit=True, coordinator_epoch=0
        )
        assert await world.pending_offsets() == []
        assert await world.offset() == 5

    play(tmp_path, scene)


def test_what_is_pending_costs_one_read_and_nothing_before_the_first_transaction(
    tmp_path: Path,
) -> None:
    async def scene(world: TransactionWorld) -> None:
        offsets, view = world.node.offsets, world.node.view
        await offsets.unstable(GROUP)  # The first time it claims the shard.
        store: Any = CountedStore(offsets._node.store)
        offsets._node = replace(offsets._node, store=store)
        await offsets.unstable(GROUP)
        assert store.calls == ["get"]
        await world.delete_topic(TRANSACTION_STATE_TOPIC)
        await view.refresh()
        await offsets.unstable(GROUP)
        assert store.calls == ["get"]

    play(tmp_path, scene)


def test_offsets_committed_later_outside_of_the_transaction_stay(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        assert await client.commit_offset(5) is ErrorCode.none
        await asyncio.sleep(1)
        later = CommittedOffset(7, -1, "", world.now_ms())
        error = await world.node.groups.commit_offsets(
            GROUP,
            {("t", topic_id("t")): {0: later}},
            GroupCaller(),
        )
        assert error is ErrorCode.none
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert await world.offset() == 7

    play(tmp_path, scene)


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_clock_that_goes_back_changes_nothing_of_what_is_later(
    tmp_path: Path, is_pending: bool
) -> None:
    """Neither what a transaction commits after something, nor what is committed after that."""

    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)

        async def commit_plainly(offset: int, committed_ms: int) -> None:
            value = CommittedOffset(offset, -1, "", committed_ms)
            error = await world.node.groups.commit_offsets(
                GROUP,
                {("t", topic_id("t")): {0: value}},
                GroupCaller(),
            )
            assert error is ErrorCode.none

        await commit_plainly(4, committed_ms=world.now_ms() + 1_000_000)
        assert await commit(world.node, client, 5) is ErrorCode.none
        if is_pending:
            await commit_plainly(6, committed_ms=2)
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert await world.offset() == (6 if is_pending else 5)

    play(tmp_path, scene)


def test_members_of_other_generations_cannot_commit_with_a_transaction(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        node = world.node
        caller = GroupCaller(member_id="m", generation=3)
        error = await commit(node, client, 5, caller=caller)
        assert error is ErrorCode.illegal_generation
        assert await client.commit_offset(5) is ErrorCode.none
        error = await commit(node, client, 5, caller=caller)
        assert error is ErrorCode.unknown_member_id

    play(tmp_path, scene)


def test_markers_of_old_producers_and_old_coordinators_are_refused(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        assert await client.commit_offset(5) is ErrorCode.none
        offsets = world.node.offsets
        who = client.producer_id
        with pytest.raises(InvalidProducerEpoch):
            await offsets.complete_transaction(
                0, who, client.epoch - 1, is_commit=True, coordinator_epoch=0
            )
        assert await world.offset() is None
        await offsets.complete_transaction(
            0, who, client.epoch, is_commit=True, coordinator_epoch=3
        )
        assert await world.offset() == 5
        with pytest.raises(TransactionCoordinatorFenced):
            await offsets.complete_transaction(
                0, who, client.epoch, is_commit=False, coordinator_epoch=2
            )

    play(tmp_path, scene)


async def delete_group(world: TransactionWorld, by: str) -> None:
    """Delete the group by its coordinator, or in the store; then the coordinator hears of it."""
    if by == "coordinator":
        assert await world.node.groups.delete_group(GROUP) is ErrorCode.none
    else:
        await GroupAdmin(store=world.store, view=world.node.view).delete_group(GROUP)
        await world.node.view.refresh()


@pytest.mark.parametrize("by", ["coordinator", "admin"])
def test_a_deleted_group_gets_nothing_from_transactions_of_before(tmp_path: Path, by: str) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        assert await client.commit_offset(5) is ErrorCode.none
        await delete_group(world, by)
        assert await world.pending_offsets() == []
        assert await world.node.offsets.unstable(GROUP) == frozenset()
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert await world.offset() is None
        assert await world.node.groups.describe(GROUP) is None

    play(tmp_path, scene)


@pytest.mark.parametrize("by", ["coordinator", "admin"])
def test_what_a_transaction_commits_after_the_deletion_makes_the_group_again(
    tmp_path: Path, by: str
) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        assert await client.commit_offset(5) is ErrorCode.none
        await delete_group(world, by)
        assert await client.commit_offset(6) is ErrorCode.none
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert await world.offset() == 6

    play(tmp_path, scene)


def test_deleted_offsets_are_not_brought_back_by_a_transaction_of_before(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        assert await client.commit_offset(5) is ErrorCode.none
        deleted = await world.node.groups.delete_offsets(GROUP, {"t": [1]})
        assert deleted == (ErrorCode.none, frozenset())
        assert await world.node.offsets.unstable(GROUP) == {("t", topic_id("t"), 0)}
        await world.node.groups.delete_offsets(GROUP, {"t": [0]})
        assert await world.node.offsets.unstable(GROUP) == frozenset()
        assert await world.pending_offsets() == []
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert await world.offset() is None

    play(tmp_path, scene)


def test_a_group_without_offsets_stays_while_a_transaction_holds_some(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        world.config = dataclasses.replace(world.config, offsets_retention_check_interval_ms=1000)
        await world.take_over()
        client = await Client.begin(world, version=2)
        assert await client.commit_offset(5) is ErrorCode.none
        await asyncio.sleep(3)
        assert await world.node.groups.describe(GROUP) is not None
        assert await client.end(is_commit=False) is ErrorCode.none
        await asyncio.sleep(3)
        assert await world.node.groups.describe(GROUP) is None

    play(tmp_path, scene)
