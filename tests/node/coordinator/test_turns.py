"""Tasks by the thousand that wait for one group."""

from __future__ import annotations

import asyncio

import pytest
from tidelog_node.coordinator.turns import AT_ONCE, Turns


class Desk:
    """One task uses it at a time; every look at whether it is free is counted."""

    def __init__(self) -> None:
        self.is_free = True
        self.check_count = 0
        self.served: list[int] = []
        self.turns = Turns(self.may_go_on)

    def may_go_on(self) -> bool:
        self.check_count += 1
        return self.is_free

    async def use(self, number: int) -> None:
        await self.turns.wait()
        assert self.is_free
        self.is_free = False
        await asyncio.sleep(0)
        self.served.append(number)
        self.is_free = True
        self.turns.go_on()


async def test_each_gets_a_turn_and_those_who_wait_are_not_woken_for_all_the_others() -> None:
    desk, count = Desk(), 5 * AT_ONCE
    await asyncio.gather(*(desk.use(number) for number in range(count)))
    assert sorted(desk.served) == list(range(count))
    assert desk.check_count < count * (AT_ONCE + 10)


async def test_those_who_need_not_wait_for_each_other_go_on_in_slices() -> None:
    desk = Desk()
    desk.is_free = False
    order: list[int] = []
    sizes: list[int] = []

    async def one(number: int) -> None:
        await desk.turns.wait()
        order.append(number)

    tasks = [asyncio.create_task(one(number)) for number in range(3 * AT_ONCE + 1)]
    await asyncio.sleep(0)
    desk.is_free = True
    desk.turns.go_on()
    while len(order) < len(tasks):
        before = len(order)
        await asyncio.sleep(0)
        sizes.append(len(order) - before)
    assert order == list(range(len(tasks)))
    assert max(sizes) == AT_ONCE
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("is_woken", [False, True])
async def test_a_task_that_is_cancelled_keeps_nobody_waiting(is_woken: bool) -> None:
    desk = Desk()
    desk.is_free = False
    tasks = [asyncio.create_task(desk.use(number)) for number in range(3)]
    await asyncio.sleep(0)
    if is_woken:
        desk.is_free = True
        desk.turns.go_on()
        tasks[0].cancel()
    else:
        tasks[0].cancel()
        await asyncio.sleep(0)
        desk.is_free = True
        desk.turns.go_on()
    await asyncio.wait_for(asyncio.gather(*tasks[1:]), 60)
    assert desk.served == [1, 2]
