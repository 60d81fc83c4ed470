"""Deadlines of things that wait, and what is kept of those that wait no more."""

from __future__ import annotations

import asyncio
import gc
import weakref

from tidelog_core.due_queue import STALE_ENTRIES_MIN
from tidelog_node.coordinator.wakeups import Wakeups

from tests.support.virtual_time import run

HOUR_MS = 3_600_000


class Waiting:
    """What a deadline is of."""


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def test_those_that_are_due_are_woken_once_and_in_order() -> None:
    async def scenario() -> None:
        woken: list[str] = []
        wakeups: Wakeups[str] = Wakeups(now_ms, woken.append)
        begun_ms = now_ms()
        for key, delay_ms in (("b", 2000), ("a", 1000), ("gone", 1500), ("a", 3000), ("b", 500)):
            wakeups.schedule(key, begun_ms + delay_ms)
        wakeups.cancel("gone")
        await asyncio.sleep(0.6)
        assert woken == ["b"]
        await asyncio.sleep(5)
        assert woken == ["b", "a"]
        wakeups.close()

    run(scenario())


def test_nothing_is_kept_of_many_that_wait_no_more() -> None:
    """Their deadlines may be hours away: a client chooses them."""

    async def scenario() -> None:
        wakeups: Wakeups[Waiting] = Wakeups(now_ms, lambda _: None)
        alive: weakref.WeakSet[Waiting] = weakref.WeakSet()
        for number in range(10 * STALE_ENTRIES_MIN):
            one = Waiting()
            alive.add(one)
            wakeups.schedule(one, now_ms() + HOUR_MS + number)
            wakeups.cancel(one)
            del one
        gc.collect()
        assert len(alive) <= STALE_ENTRIES_MIN
        wakeups.close()

    run(scenario())
