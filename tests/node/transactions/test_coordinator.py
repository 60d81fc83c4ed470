"""The coordinator's own housekeeping, and what it does when the store fails it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    InvalidRequest,
    NotCoordinator,
    OutcomeUnknown,
    StoreUnavailable,
    VersionConflict,
)
from tidelog_core.metadata.coordination.transactions import TransactionState
from tidelog_core.metadata.records import Topic, put, topic_key
from tidelog_core.metadata.store import Write
from tidelog_node.transactions.coordinator import TransactionCoordinator

from tests.node.transactions.world import PARTITIONS, TXN, Client, TransactionWorld, play

DAY_SECONDS = 86_400
TIMEOUT_SECONDS = 10  # of the client's transactions


def test_an_id_that_nobody_uses_is_forgotten(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        world.config = NodeConfig(
            transactional_id_expiration_ms=DAY_SECONDS * 1000,
            transaction_remove_expired_transaction_cleanup_interval_ms=600_000,
            transaction_max_timeout_ms=2**31 - 1,
        )
        client = await Client.begin(world, version=2)
        await client.write("one", PARTITIONS[:1])
        await client.end(is_commit=True)
        await world.settle()
        await asyncio.sleep(DAY_SECONDS / 2)
        assert await world.record() is not None
        world.is_clock_trusted = False
        await asyncio.sleep(DAY_SECONDS)
        assert await world.record() is not None
        world.is_clock_trusted = True
        await asyncio.sleep(DAY_SECONDS / 2)
        assert await world.record() is None
        mapping = ErrorCode.invalid_producer_id_mapping
        assert await client.write("late", PARTITIONS[:1]) is mapping
        old_id = client.producer_id
        await client.init()
        assert (client.producer_id != old_id, client.epoch) == (True, 0)

    play(tmp_path, scene)


@pytest.mark.parametrize("has_moved", [True, False])
def test_a_transaction_that_is_open_for_too_long_is_aborted(
    tmp_path: Path, has_moved: bool
) -> None:
    """By the next coordinator too, and once the store takes the abort."""

    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        await client.write("one", PARTITIONS)
        if has_moved:
            await world.take_over()
            assert (await world.node.transactions.describe(TXN)) is not None
        failures = [StoreUnavailable("away"), StoreUnavailable("away")]
        world.store.on_commit = lambda _: failures.pop() if failures else None
        await asyncio.sleep(TIMEOUT_SECONDS - 1)
        assert world.outcomes()["one"] == {"open"}
        assert len(failures) == 2
        await asyncio.sleep(10)
        await world.settle()
        assert world.outcomes()["one"] == {"aborted"}
        assert not failures

    play(tmp_path, scene)


def test_ids_without_an_open_transaction_are_not_looked_at(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client, timing_out = Client(world, version=2), world.node.transactions.hosted.timing_out
        await client.init()
        assert len(timing_out) == 0
        await client.write("one", PARTITIONS)
        assert len(timing_out) == 1
        await client.end(is_commit=True)
        await world.settle()
        assert len(timing_out) == 0

    play(tmp_path, scene)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_write_of_which_nobody_knows_is_looked_up(tmp_path: Path, is_written: bool) -> None:
    """The store says no more than that it may have happened."""

    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        await client.write("one", PARTITIONS)
        failure = OutcomeUnknown if is_written else StoreUnavailable
        failures = [failure("the connection broke")]
        world.store.on_commit = lambda _: failures.pop() if failures else None
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert not failures
        assert world.outcomes() == {"one": {"committed"}}

    play(tmp_path, scene)


def test_the_end_is_stored_again_and_again_while_the_store_is_away(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        await client.write("one", PARTITIONS)
        assert await client.end(is_commit=True) is ErrorCode.none
        world.store.is_available = False
        await asyncio.sleep(30)
        world.store.is_available = True
        await world.settle()
        assert world.outcomes() == {"one": {"committed"}}
        assert await client.write("two", PARTITIONS) is ErrorCode.none

    play(tmp_path, scene)


def test_what_waits_for_a_deleted_topic_goes_on(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        client = await Client.begin(world, version=2)
        await client.write("one", PARTITIONS)
        await world.delete_topic("t")
        assert await client.end(is_commit=True) is ErrorCode.none
        await asyncio.sleep(5)
        await world.node.view.refresh()
        await world.settle()
        record = await world.record()
        assert record is not None
        assert record.state is TransactionState.COMPLETE_COMMIT

    play(tmp_path, scene)


def test_ids_of_other_nodes_and_impossible_ids_are_refused(tmp_path: Path) -> None:
    async def scene(world: TransactionWorld) -> None:
        first = world.node
        await Client.begin(world, version=2)
        await world.take_over()
        await first.view.refresh()
        with pytest.raises(NotCoordinator):
            await first.transactions.describe(TXN)
        transactions = world.node.transactions
        assert await transactions.describe(TXN) is not None
        assert await transactions.describe("another") is None
        assert [each.transactional_id for each in await transactions.list_transactions()] == [TXN]
        with pytest.raises(InvalidRequest):
            await transactions.describe("x" * 1001)

    play(tmp_path, scene)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_first_write_of_which_nobody_knows_is_looked_up(tmp_path: Path, is_written: bool) -> None:
    """The id is not known yet: whether it is now, only the store can say."""

    async def scene(world: TransactionWorld) -> None:
        client = Client(world, version=2)
        failure = OutcomeUnknown if is_written else StoreUnavailable
        failures = [failure("the connection broke")]

        def on_commit(writes: Sequence[Write]) -> Exception | None:
            return failures.pop() if failures and writes[0].id.key == TXN else None

        world.store.on_commit = on_commit
        async with asyncio.timeout(60):
            assert await client.init() is ErrorCode.none
        assert not failures
        assert await client.write("one", PARTITIONS) is ErrorCode.none

    play(tmp_path, scene)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("was_commit", [True, False])
def test_a_coordinator_that_has_not_heard_of_the_next_one_ends_nothing_from_memory(
    tmp_path: Path, was_commit: bool, is_commit: bool
) -> None:
    """It remembers the end of the transaction before; the next one is open elsewhere.

    Neither «it is committed» nor INVALID_TXN_STATE would be true.
    """

    async def scene(world: TransactionWorld) -> None:
        old = world.node.transactions
        client = await Client.begin(world, version=0)
        await client.write("one", PARTITIONS)
        await client.end(is_commit=was_commit)
        await world.settle()
        await world.take_over()
        assert await client.write("two", PARTITIONS) is ErrorCode.none
        with pytest.raises(VersionConflict):
            await old.end_transaction(
                TXN, client.producer_id, client.epoch, is_commit=is_commit, client_version=0
            )
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert world.outcomes()["two"] == {"committed"}

    play(tmp_path, scene)


REFUSED: dict[str, Callable[[TransactionCoordinator, int, int], Awaitable[object]]] = {
    "add": lambda old, *who: old.add_partitions(TXN, *who, PARTITIONS, client_version=0),
    "verify": lambda old, *who: old.verify_partitions(TXN, *who, PARTITIONS[:1]),
    "end": lambda old, *who: old.end_transaction(TXN, *who, is_commit=True, client_version=0),
}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("request_name", REFUSED)
def test_a_coordinator_that_has_not_heard_of_the_next_one_refuses_nothing_from_memory(
    tmp_path: Path, request_name: str, is_known: bool
) -> None:
    """Its refusals would make the producer give its transaction up, or itself."""

    async def scene(world: TransactionWorld) -> None:
        old = world.node.transactions
        if is_known:
            await Client(world, version=0).init()
        assert (await old.describe(TXN) is not None) is is_known
        await world.take_over()
        client = await Client.begin(world, version=0)
        assert await client.write("one", PARTITIONS[:1]) is ErrorCode.none
        with pytest.raises(VersionConflict):
            await REFUSED[request_name](old, client.producer_id, client.epoch)
        # It has looked who coordinates the id, and does not take it from that node.
        with pytest.raises(NotCoordinator):
            await REFUSED[request_name](old, client.producer_id, client.epoch)
        assert await client.write("one", PARTITIONS[1:]) is ErrorCode.none
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert world.outcomes() == {"one": {"committed"}}

    play(tmp_path, scene)


def test_partitions_are_not_added_to_a_transaction_that_another_coordinator_has_ended(
    tmp_path: Path,
) -> None:
    async def scene(world: TransactionWorld) -> None:
        old = world.node.transactions
        client = await Client.begin(world, version=0)
        await client.write("one", PARTITIONS)
        await world.take_over()
        await client.end(is_commit=True)
        await world.settle()
        who = (TXN, client.producer_id, client.epoch)
        with pytest.raises(VersionConflict):
            await old.add_partitions(*who, PARTITIONS, client_version=0)

    play(tmp_path, scene)


async def make_diskless(world: TransactionWorld) -> None:
    item = await world.store.get(topic_key("t"))
    assert item is not None
    topic = dataclasses.replace(Topic.from_item(item), configs={"diskless.enable": "true"})
    await world.store.commit([put(topic)])
    await world.node.view.refresh()


@pytest.mark.parametrize("version", [2, 5])
def test_an_end_is_told_when_diskless_partitions_have_their_markers(
    tmp_path: Path, version: int
) -> None:
    """So the bucket has the outcome, if all nodes and the metadata store are lost then."""

    async def scene(world: TransactionWorld) -> None:
        await make_diskless(world)
        client = await Client.begin(world, version=version)
        for number in range(3):
            await client.write(f"value {number}", PARTITIONS)
            assert await client.end(is_commit=number != 1) is ErrorCode.none
            outcome = "aborted" if number == 1 else "committed"
            assert world.outcomes()[f"value {number}"] == {outcome}

    play(tmp_path, scene)


@pytest.mark.parametrize("version", [2, 5])
def test_an_end_whose_markers_cannot_be_stored_is_asked_for_again(
    tmp_path: Path, version: int
) -> None:
    async def scene(world: TransactionWorld) -> None:
        await make_diskless(world)
        client = await Client.begin(world, version=version)
        await client.write("one", PARTITIONS)
        world.gone.add("t")  # Its leaders answer nobody.

        async def end() -> ErrorCode:
            decision = await world.node.transactions.end_transaction(
                TXN, client.producer_id, client.epoch, is_commit=True, client_version=version
            )
            return decision.error

        assert await end() is ErrorCode.concurrent_transactions
        assert await end() is ErrorCode.concurrent_transactions
        assert world.outcomes() == {"one": {"open"}}
        world.gone.clear()
        await world.settle()
        assert world.outcomes() == {"one": {"committed"}}
        assert await end() is ErrorCode.none

    play(tmp_path, scene)
