"""Calls that an heir makes at once: bounded, without rounds, and with the first error as it is."""

from __future__ import annotations

import asyncio

import pytest
from tidelog_core.errors import StoreUnavailable
from tidelog_node.diskless.recovery.concurrent_calls import for_each


async def test_the_answers_are_in_order_however_the_calls_end() -> None:
    events = [asyncio.Event() for _ in range(6)]

    async def call(number: int) -> int:
        if number < 5:
            await events[number + 1].wait()  # Each ends after the next one.
        events[number].set()
        return number * number

    async with asyncio.timeout(30):
        assert await for_each(range(6), call, at_once_max=6) == [0, 1, 4, 9, 16, 25]
        assert await for_each([], call, at_once_max=6) == []


async def test_a_slow_call_holds_up_no_other() -> None:
    active, greatest, done = 0, 0, set[int]()
    last = asyncio.Event()

    async def call(number: int) -> None:
        nonlocal active, greatest
        active += 1
        greatest = max(greatest, active)
        if number == 0:
            await last.wait()
        else:
            await asyncio.sleep(0)
        active -= 1
        done.add(number)
        if number == 19:
            last.set()

    async with asyncio.timeout(30):
        await for_each(range(20), call, at_once_max=3)
    assert (greatest, len(done)) == (3, 20)


async def test_the_first_error_is_raised_and_ends_the_rest() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def call(number: int) -> None:
        begun.append(number)
        try:
            if number == 1:
                raise StoreUnavailable("away")
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async with asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="away"):
            await for_each(range(100), call, at_once_max=4)
    assert sorted(ended) == sorted(begun)
    assert len(begun) <= 4


async def test_what_is_cancelled_leaves_no_call_behind() -> None:
    ended: list[int] = []
    all_begun = asyncio.Event()

    async def call(number: int) -> None:
        if number == 2:
            all_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    calling = asyncio.create_task(for_each(range(3), call, at_once_max=3))
    async with asyncio.timeout(30):
        await all_begun.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert sorted(ended) == [0, 1, 2]
