"""Memory that is lent piece by piece."""

from __future__ import annotations

import asyncio
import os
from random import Random

import pytest
from tidelog_node.tier.lent_memory import PAGE_BYTES, LentMemory, Loan, map_shared

SIZE_BYTES = 64 * PAGE_BYTES


@pytest.fixture
def memory() -> LentMemory:
    return LentMemory(SIZE_BYTES, is_shared=False)


def is_whole(memory: LentMemory) -> bool:
    loan = memory.lend(memory.size_bytes)
    if loan is not None:
        loan.give_back()
    return loan is not None


@pytest.mark.parametrize("seed", range(5))
def test_no_two_loans_have_a_byte_in_common(memory: LentMemory, seed: int) -> None:
    chance = Random(seed)
    loans: dict[Loan, bytes] = {}
    for _ in range(2_000):
        if loans and chance.random() < 0.5:
            loan = chance.choice(list(loans))
            assert bytes(loan.view) == loans.pop(loan)
            loan.give_back()
            continue
        size_bytes = chance.choice([1, 100, PAGE_BYTES, PAGE_BYTES + 1, 20 * PAGE_BYTES])
        lent = memory.lend(size_bytes)
        if lent is not None:
            assert len(lent.view) == size_bytes
            loans[lent] = chance.randbytes(size_bytes)
            lent.view[:] = loans[lent]
    for loan, content in loans.items():
        assert bytes(loan.view) == content
        loan.give_back()
    assert is_whole(memory)


def test_the_lowest_free_place_is_lent(memory: LentMemory) -> None:
    """So what is seldom needed at once is seldom touched."""
    loans = [memory.lend(PAGE_BYTES) for _ in range(4)]
    assert [loan.position for loan in loans if loan] == [number * PAGE_BYTES for number in range(4)]
    assert loans[1]
    loans[1].give_back()
    again = memory.lend(10)
    assert again
    assert again.position == PAGE_BYTES


def test_loans_of_no_bytes_leave_the_memory_in_one_piece(memory: LentMemory) -> None:
    """An object that is empty, though none should be, is read with one."""
    before = memory.lend(PAGE_BYTES)
    empty = memory.lend(0)
    assert before
    assert empty
    assert not empty.view
    before.give_back()
    around = memory.lend(2 * PAGE_BYTES)
    assert around
    empty.give_back()
    around.give_back()
    assert is_whole(memory)


def test_what_does_not_fit_is_not_lent(memory: LentMemory) -> None:
    assert memory.lend(SIZE_BYTES + 1) is None
    first = memory.lend(SIZE_BYTES - PAGE_BYTES)
    assert first
    assert memory.lend(PAGE_BYTES + 1) is None
    assert memory.lend(PAGE_BYTES)
    assert memory.lend(1) is None


def test_a_loan_ends_once(memory: LentMemory) -> None:
    loan = memory.lend(10)
    assert loan
    loan.give_back()
    loan.give_back()
    assert is_whole(memory)
    with pytest.raises(ValueError, match="released"):
        loan.view[0]


async def test_those_that_wait_get_their_turn(memory: LentMemory) -> None:
    """Nobody overtakes, not even one that wants little."""
    first = await memory.lend_in_turn(SIZE_BYTES - PAGE_BYTES)
    waiting = [
        asyncio.create_task(memory.lend_in_turn(size_bytes))
        for size_bytes in (SIZE_BYTES // 2, SIZE_BYTES // 2, 1)
    ]
    await asyncio.sleep(0)
    assert memory.lend(1) is None
    first.give_back()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [one.done() for one in waiting] == [True, True, False]
    waiting[0].result().give_back()
    assert (await waiting[2]).position == 0
    waiting[1].result().give_back()
    waiting[2].result().give_back()
    assert is_whole(memory)


async def test_one_that_waits_no_longer_lets_others_go_on(memory: LentMemory) -> None:
    held = await memory.lend_in_turn(PAGE_BYTES)
    large = asyncio.create_task(memory.lend_in_turn(SIZE_BYTES))
    await asyncio.sleep(0)
    small = asyncio.create_task(memory.lend_in_turn(1))
    await asyncio.sleep(0)
    large.cancel()
    loan = await small
    loan.give_back()
    held.give_back()
    with pytest.raises(asyncio.CancelledError):
        await large
    assert is_whole(memory)


async def test_a_loan_that_comes_with_the_cancellation_is_given_back(memory: LentMemory) -> None:
    held = await memory.lend_in_turn(SIZE_BYTES)
    waiting = asyncio.create_task(memory.lend_in_turn(1))
    await asyncio.sleep(0)
    held.give_back()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert is_whole(memory)


def test_what_another_process_maps_is_the_same_memory() -> None:
    memory = LentMemory(SIZE_BYTES, is_shared=True)
    loan = memory.lend(10)
    assert loan
    mapped = map_shared(memory.descriptor, memory.size_bytes)
    mapped[loan.position : loan.position + 10] = b"0123456789"
    assert bytes(loan.view) == b"0123456789"
    memory.close()
    memory.close()
    assert bytes(loan.view) == b"0123456789"


def test_memory_that_cannot_be_had_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - a path would be opened, too
    with pytest.raises((OSError, ValueError, OverflowError)):
        LentMemory(1 << 60, is_shared=True)  # more than any address space has
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
