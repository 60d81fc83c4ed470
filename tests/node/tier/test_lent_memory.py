"""Memory that is lent piece by piece."""

from __future__ import annotations

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
