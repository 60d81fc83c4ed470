"""Waiting for an event or a time, whichever comes first."""

from __future__ import annotations

import asyncio

from tidelog_core.waiting import wait_and_clear


async def test_an_event_that_is_set_ends_the_wait_and_is_clear_for_the_next() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    async with asyncio.timeout(60):
        await wait_and_clear(event, 60)
    assert not event.is_set()


async def test_a_time_ends_the_wait_too() -> None:
    event = asyncio.Event()
    async with asyncio.timeout(60):
        await wait_and_clear(event, 0.01)
    assert not event.is_set()


async def test_a_wait_that_is_cancelled_leaves_the_event_alone() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_and_clear(event, 60))
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert event.is_set()
