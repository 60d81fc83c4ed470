"""A gateway whose objects are slow does not keep the others from a leader's reads."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tidelog_node.diskless.gateway.read_slots import ReadSlots


async def turns() -> None:
    """Let the tasks do what they can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Requests:
    """Requests of gateways that hold their slots until told to give them back."""

    def __init__(self, slots: ReadSlots) -> None:
        self.slots = slots
        self.began: list[tuple[int, int]] = []
        self.tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._ends: dict[tuple[int, int], asyncio.Event] = {}

    async def begin(self, gateway: int, count: int) -> None:
        for _ in range(count):
            number = sum(name[0] == gateway for name in self.tasks)
            self._ends[gateway, number] = asyncio.Event()
            self.tasks[gateway, number] = asyncio.create_task(self._run((gateway, number)))
        await turns()

    async def _run(self, name: tuple[int, int]) -> None:
        async with self.slots.of(name[0]):
            self.began.append(name)
            await self._ends[name].wait()

    async def end(self, *names: tuple[int, int]) -> None:
        for name in names:
            self._ends[name].set()
        await asyncio.gather(*(self.tasks[name] for name in names))
        await turns()

    def count_of(self, gateway: int) -> int:
        return sum(name[0] == gateway for name in self.began)


async def test_one_slow_gateway_leaves_slots_to_others() -> None:
    requests = Requests(ReadSlots(slots_max=4, own_max=3))
    await requests.begin(1, 10)
    assert requests.count_of(1) == 3
    await requests.begin(2, 5)
    assert requests.count_of(2) == 1
    await requests.begin(3, 5)
    assert requests.count_of(3) == 1, "a gateway that has none gets one in any case"
    await requests.end((2, 0), (2, 1), (2, 2), (2, 3), (2, 4))
    assert requests.count_of(2) == 5
    assert requests.count_of(1) == 3


async def test_the_requests_of_a_gateway_get_their_slots_in_order_and_gateways_take_turns() -> None:
    requests = Requests(ReadSlots(slots_max=4, own_max=3))
    await requests.begin(1, 5)
    await requests.begin(2, 5)
    await requests.begin(3, 5)
    assert requests.began == [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]
    await requests.end((1, 0), (1, 1))
    assert requests.began[5:] == [(1, 3)]
    await requests.end((1, 2), (1, 3))
    assert requests.began[6:] == [(2, 1), (3, 1), (1, 4)]


async def test_a_request_that_is_cancelled_takes_no_slot_along() -> None:
    slots = ReadSlots(slots_max=1, own_max=1)
    requests = Requests(slots)
    await requests.begin(1, 4)
    requests.tasks[1, 1].cancel()
    await turns()
    requests._ends[1, 0].set()
    # It gets its slot, and is cancelled before it runs.
    requests.tasks[1, 2].cancel()
    await asyncio.gather(*(requests.tasks[1, n] for n in (0, 1, 2)), return_exceptions=True)
    await turns()
    assert requests.began == [(1, 0), (1, 3)]
    await requests.end((1, 3))
    async with AsyncExitStack() as stack:
        for gateway in range(5):
            await stack.enter_async_context(slots.of(gateway))
    assert not slots._held
    assert not slots._waiting
