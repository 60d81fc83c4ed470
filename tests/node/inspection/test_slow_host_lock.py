"""Turns that cannot be interrupted: hosts whose turns are long leave room for those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog_node.inspection.slow_host_lock import QUICK_SECONDS, SLOW_SECONDS, SlowHostLock


class World:
    """A lock, a clock that a test moves, and what was asked for later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.turns = SlowHostLock(clock=lambda: self.now, call_later=self._call_later)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append((self.now + seconds, call))

    async def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        for at, call in sorted(self._timers, key=lambda one: one[0]):
            if at <= until:
                self._timers.remove((at, call))
                self.now = at
                call()
                await settled()
        self.now = until
        await settled()

    async def turn(self, host: str, seconds: float) -> None:
        """Have one turn of the host, which gets it at once."""
        acquiring = asyncio.create_task(self.turns.acquire(host))
        await settled()
        assert acquiring.done(), f"{host} has to wait"
        await self.pass_time(seconds)
        self.turns.release()
        await settled()

    async def waiting(self, host: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self.turns.acquire(host))
        await settled()
        return task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_hosts_take_turns() -> None:
    world = World()
    first = await world.waiting("a")
    rest = [await world.waiting(host) for host in ("a", "a", "b", "c")]
    order = []
    current = first
    while True:
        assert current.done()
        world.turns.release()
        await settled()
        following = [number for number, one in enumerate(rest) if one.done()]
        new = [number for number in following if number not in order]
        if not new:
            break
        order += new
        current = rest[new[0]]
    assert order == [0, 2, 3, 1]


async def test_a_quick_host_has_half_of_the_time_beside_slow_ones() -> None:
    """In rotation it would have one turn for each of ten seconds."""
    world = World()
    await world.turn("quick", 0.1)
    slow = [await world.waiting(host) for host in ("slow", "other")]
    await world.pass_time(10.0)
    world.turns.release()
    await settled()
    assert slow[1].done(), "nobody knows yet that it is slow"
    await world.pass_time(10.0)
    world.turns.release()
    again = [await world.waiting(host) for host in ("slow", "other")]
    for _ in range(50):
        await world.turn("quick", 0.1)
    assert not any(one.done() for one in again)
    await world.pass_time(5.0)
    assert [one.done() for one in again] == [True, False]


async def test_a_slow_host_rests_for_nobody_but_quick_ones() -> None:
    world = World()
    for _ in range(3):
        await world.turn("slow", 10.0)
    for _ in range(3):
        await world.turn("other", 8.0)
        await world.turn("slow", 10.0)
    await world.turn("quick", 0.1)
    await world.pass_time(QUICK_SECONDS)
    await world.turn("slow", 10.0)
    await world.turn("slow", 10.0)


async def test_a_host_is_quick_again_after_a_while() -> None:
    world = World()
    await world.turn("slow", 10.0)
    await world.pass_time(SLOW_SECONDS)
    await world.turn("quick", 0.1)
    await world.turn("another", 10.0)
    await world.turn("slow", 0.1)
    waiting = await world.waiting("another")
    assert not waiting.done()
    await world.pass_time(10.0)
    assert waiting.done()


async def test_those_that_give_up_leave_the_lock_to_others() -> None:
    world = World()
    await world.turn("quick", 0.1)
    await world.turn("slow", 10.0)
    resting = [await world.waiting("slow") for _ in range(3)]
    resting[0].cancel()
    await settled()
    await world.pass_time(10.0)
    assert [one.done() for one in resting] == [True, True, False]
    # This one is cancelled when the lock was handed to it, and has not run since.
    world.turns.release()
    resting[2].cancel()
    await settled()
    await world.turn("slow", 0.1)
    assert not world.turns._queue
    assert world.turns._pause_count == 0
