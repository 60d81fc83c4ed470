"""Slots that hosts share: how many one of them has, and who is next."""

from __future__ import annotations

import asyncio

import pytest
from tidelog_node.registry.host_slots import HostSlots, TooManyWait


class Holder:
    """A task that holds a slot until it is told to leave it."""

    def __init__(self, slots: HostSlots, host: str) -> None:
        self.is_in = False
        self._leave = asyncio.Event()
        self.task = asyncio.create_task(self._hold(slots, host))

    async def _hold(self, slots: HostSlots, host: str) -> None:
        async with slots.slot(host):
            self.is_in = True
            await self._leave.wait()

    async def leave(self) -> None:
        self._leave.set()
        await self.task
        await asyncio.sleep(0)


async def holders(slots: HostSlots, *hosts: str) -> list[Holder]:
    found = [Holder(slots, host) for host in hosts]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return found


async def test_a_host_has_a_few_and_leaves_the_rest_to_others() -> None:
    slots = HostSlots(3, of_host_max=2, waiting_max=9)
    found = await holders(slots, "many", "many", "many", "one", "other")
    assert [one.is_in for one in found] == [True, True, False, True, False]
    await found[3].leave()
    assert [one.is_in for one in found[2:]] == [False, True, True], "the next host's turn"
    await found[0].leave()
    assert found[2].is_in
    for one in (found[1], found[2], found[4]):
        await one.leave()
    assert slots._free_count == 3
    assert (slots._held, slots._waiting) == ({}, {})


async def test_hosts_that_wait_are_served_in_rotation() -> None:
    slots = HostSlots(1, of_host_max=1, waiting_max=9)
    found = await holders(slots, "x", "many", "many", "one")
    order = []
    for _ in range(4):
        (inside,) = [
            number for number, one in enumerate(found) if one.is_in and not one.task.done()
        ]
        order.append(inside)
        await found[inside].leave()
    assert order == [0, 1, 3, 2]


async def test_a_host_has_a_limited_line() -> None:
    slots = HostSlots(1, of_host_max=1, waiting_max=2)
    found = await holders(slots, "many", "many", "many", "many", "one")
    with pytest.raises(TooManyWait):
        await found[3].task
    for number in (0, 1, 4, 2):
        await found[number].leave()


async def test_those_that_give_up_leave_their_place() -> None:
    slots = HostSlots(1, of_host_max=1, waiting_max=9)
    found = await holders(slots, "a", "b", "b", "c")
    found[1].task.cancel()
    await asyncio.sleep(0)
    # This one is cancelled after the slot was handed to it.
    found[0]._leave.set()
    while not found[0].task.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    found[2].task.cancel()
    await asyncio.gather(found[1].task, found[2].task, return_exceptions=True)
    await asyncio.sleep(0)
    assert found[3].is_in
    await found[3].leave()
    assert slots._free_count == 1
    assert (slots._held, slots._waiting) == ({}, {})


async def test_a_slot_goes_past_those_that_are_cancelled_in_the_same_turn() -> None:
    """They have not run since, and are still in the line."""
    slots = HostSlots(1, of_host_max=1, waiting_max=9)
    found = await holders(slots, "a", "b", "b", "c")
    found[0]._leave.set()
    found[1].task.cancel()
    found[2].task.cancel()
    ends = [one.task for one in found[:3]]
    await asyncio.gather(*ends, return_exceptions=True)
    await asyncio.sleep(0)
    assert found[0].task.exception() is None
    assert found[3].is_in
    await found[3].leave()
    assert slots._free_count == 1
    assert (slots._held, slots._waiting) == ({}, {})
