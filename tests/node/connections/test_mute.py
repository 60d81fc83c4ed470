"""The time for which nothing is read from a connection, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from tidelog_node.connections.mute import Mute

from tests.support.virtual_time import run

Scene = Callable[[Mute, list[float]], Coroutine[None, None, None]]


def ends_of(scene: Scene) -> list[float]:
    """Return when the muted time ended, by seconds since the scene began."""

    async def play() -> list[float]:
        loop, ends = asyncio.get_running_loop(), list[float]()
        began = loop.time()
        mute = Mute(loop, lambda: ends.append(loop.time() - began))
        await scene(mute, ends)
        await asyncio.sleep(100)
        assert not mute.is_on
        return ends

    return run(play())


def test_it_ends_once_after_the_longest_of_several_times() -> None:
    async def scene(mute: Mute, ends: list[float]) -> None:
        assert not mute.is_on
        assert mute.extend(2, None)
        assert not mute.extend(1, None)
        assert mute.extend(5, None)
        await asyncio.sleep(4)
        assert mute.is_on
        assert not ends

    assert ends_of(scene) == [5]


def test_it_goes_on_for_as_long_as_its_caller_says_at_the_end() -> None:
    left = [3.0, 0.5, 0.0]

    async def scene(mute: Mute, _: list[float]) -> None:
        assert mute.extend(2, lambda: left.pop(0))

    assert ends_of(scene) == [5.5]
    assert left == []


def test_a_longer_time_takes_the_place_of_what_the_caller_before_would_say() -> None:
    async def scene(mute: Mute, _: list[float]) -> None:
        assert mute.extend(2, lambda: 50.0)
        assert mute.extend(3, None)

    assert ends_of(scene) == [3]


def test_nothing_is_called_at_the_end_of_a_time_that_was_cancelled() -> None:
    async def scene(mute: Mute, _: list[float]) -> None:
        assert mute.extend(2, None)
        mute.cancel()
        assert not mute.is_on
        mute.cancel()

    assert ends_of(scene) == []
