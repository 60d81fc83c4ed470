"""Whatever the coordinator is doing when it dies, a transaction commits everywhere or nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from kio.schema.errors import ErrorCode

from tests.node.transactions.world import (
    PARTITIONS,
    Client,
    Fate,
    Strike,
    TransactionWorld,
    a_world,
)
from tests.support.virtual_time import run

MEMORY_DIR = Path("/dev/shm")
VERSIONS = pytest.mark.parametrize("version", [0, 2], ids=["before KIP-890", "with KIP-890"])
STRIKES = pytest.mark.parametrize("strike", list(Strike), ids=[s.name.lower() for s in Strike])
OUTCOMES = pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory: hundreds of logs are opened, and nothing here is about the disk."""
    with TemporaryDirectory(dir=MEMORY_DIR if MEMORY_DIR.is_dir() else None) as path:
        yield Path(path)


@VERSIONS
@STRIKES
@OUTCOMES
def test_a_transaction_ends_alike_everywhere_wherever_its_coordinator_is_struck(
    folder: Path, version: int, strike: Strike, is_commit: bool
) -> None:
    step_count = run(_two_transactions(folder / "unstruck", None, strike, version, is_commit))
    assert step_count > 15
    for step in range(step_count):
        run(_two_transactions(folder / str(step), step, strike, version, is_commit))


@STRIKES
def test_a_transaction_that_nobody_ends_is_aborted_wherever_its_coordinator_is_struck(
    folder: Path, strike: Strike
) -> None:
    step_count = run(_abandoned(folder / "unstruck", None, strike))
    for step in range(step_count):
        run(_abandoned(folder / str(step), step, strike))


@STRIKES
def test_a_second_producer_fences_the_first_wherever_the_coordinator_is_struck(
    folder: Path, strike: Strike
) -> None:
    step_count = run(_fenced(folder / "unstruck", None, strike))
    for step in range(step_count):
        run(_fenced(folder / str(step), step, strike))


def test_offsets_that_come_when_their_transaction_has_ended_do_not_stay_pending(
    folder: Path,
) -> None:
    step_count = run(_late_offsets(folder / "unstruck", None))
    for step in range(step_count):
        run(_late_offsets(folder / str(step), step))


async def _two_transactions(
    folder: Path, step: int | None, strike: Strike, version: int, is_commit: bool
) -> int:
    async with a_world(folder, step=step, strike=strike) as world:
        first = world.node.fate
        client = await Client.begin(world, version=version)
        told = await _transaction(client, "one", 5, is_commit=is_commit)
        # Without waiting for the first to be everywhere: that is the coordinator's affair.
        assert await client.write("two", PARTITIONS[:2]) is ErrorCode.none
        assert await client.commit_offset(9) is ErrorCode.none
        # Late: also a marker of the first transaction, while the second is open.
        await _go_on(world, first)
        assert await client.end(is_commit=not is_commit) is ErrorCode.none
        await world.settle()
        if not is_commit:
            told = {"one": told["one"], "two": "committed"}
        else:
            told = {"one": told["one"], "two": "aborted"}
        assert world.outcomes() == {value: {outcome} for value, outcome in told.items()}, step
        assert await world.offset() == (5 if is_commit else 9), step
        _check_stable(world)
        return first.step_count


async def _transaction(
    client: Client, value: str, offset: int, *, is_commit: bool
) -> dict[str, str]:
    assert await client.write(value, PARTITIONS) is ErrorCode.none
    assert await client.commit_offset(offset) is ErrorCode.none
    assert await client.end(is_commit=is_commit) is ErrorCode.none
    return {value: "committed" if is_commit else "aborted"}


async def _abandoned(folder: Path, step: int | None, strike: Strike) -> int:
    async with a_world(folder, step=step, strike=strike) as world:
        first = world.node.fate
        client = await Client.begin(world, version=2)
        assert await client.write("left", PARTITIONS) is ErrorCode.none
        assert await client.commit_offset(5) is ErrorCode.none
        await asyncio.sleep(15)
        await world.settle()
        await _go_on(world, first)
        assert world.outcomes() == {"left": {"aborted"}}, step
        assert await world.offset() is None, step
        _check_stable(world)
        # Its producer has missed the end, and finds out.
        assert await client.write("late", PARTITIONS[:1]) is ErrorCode.producer_fenced
        return first.step_count


async def _fenced(folder: Path, step: int | None, strike: Strike) -> int:
    async with a_world(folder, step=step, strike=strike) as world:
        first = world.node.fate
        zombie, client = Client(world, version=2), Client(world, version=2)
        assert await zombie.init() is ErrorCode.none
        assert await zombie.write("zombie", PARTITIONS) is ErrorCode.none
        assert await client.init() is ErrorCode.none
        assert (client.producer_id, client.epoch) > (zombie.producer_id, zombie.epoch)
        assert await client.write("heir", PARTITIONS) is ErrorCode.none
        assert await zombie.end(is_commit=True) is ErrorCode.producer_fenced
        assert await zombie.commit_offset(3) is ErrorCode.invalid_producer_epoch
        await _go_on(world, first)
        assert await client.end(is_commit=True) is ErrorCode.none
        await world.settle()
        assert world.outcomes() == {"zombie": {"aborted"}, "heir": {"committed"}}, step
        assert await world.offset() is None, step
        _check_stable(world)
        return first.step_count


async def _late_offsets(folder: Path, step: int | None) -> int:
    async with a_world(folder, step=step, strike=Strike.STALL) as world:
        first = world.node.fate
        client = await Client.begin(world, version=2)
        assert await client.write("one", PARTITIONS[:1]) is ErrorCode.none
        await client.commit_offset(5, tries_again=False)
        assert await client.end(is_commit=False) is ErrorCode.none
        await world.settle()
        await _go_on(world, first)
        assert await world.offset() is None, step
        assert await world.pending_offsets() == [], step
        return first.step_count


async def _go_on(world: TransactionWorld, fate: Fate) -> None:
    """Let a node that was struck and only stalled do what it was about to do."""
    fate.may_go_on.set()
    await asyncio.sleep(5)


def _check_stable(world: TransactionWorld) -> None:
    for log in world.logs.values():
        log.advance_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == log.log_end_offset
