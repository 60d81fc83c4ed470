"""Turns of large requests: others come between them, and nobody gets ahead."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter

from tidelog_node.fairness import request_turns
from tidelog_node.fairness.request_turns import LargeRequests, RequestTurn

WORK_SECONDS = 0.05


async def _work(turn: RequestTurn, notes: list[str], name: str, *, seconds: float) -> None:
    """Use the processor for so long, step by step, and note each turn."""
    ends_at = time.thread_time() + seconds
    while time.thread_time() < ends_at:
        step_ends_at = time.perf_counter() + request_turns.TURN_SECONDS
        while time.perf_counter() < step_ends_at:
            pass
        await turn.step()
        notes.append(name)


async def test_large_requests_have_turns_one_after_the_other() -> None:
    notes: list[str] = []
    names = ("a", "b", "c")
    await asyncio.gather(
        *(_work(RequestTurn(), notes, name, seconds=WORK_SECONDS) for name in names)
    )
    rounds = notes[: 3 * (len(notes) // 6)]  # while all have something to do
    assert rounds == ["a", "b", "c"] * (len(rounds) // 3)
    assert rounds


async def test_between_two_turns_the_loop_is_everybody_elses() -> None:
    notes: list[str] = []
    ticks: Counter[int] = Counter()  # by the turns before

    async def tick() -> None:
        while True:
            await asyncio.sleep(0)
            ticks[len(notes)] += 1

    ticking = asyncio.create_task(tick())
    await _work(RequestTurn(), notes, "a", seconds=WORK_SECONDS)
    ticking.cancel()
    # Handing over alone would be one or two for each turn. A busy machine takes others away.
    assert max(ticks.values()) > 20


async def test_a_request_about_few_things_stands_in_no_line_after_it_has_waited() -> None:
    turn = RequestTurn()
    await asyncio.sleep(2 * request_turns.TURN_SECONDS)  # for the store
    seen = []
    each = turn.each(range(request_turns.ITEMS_PER_CHECK - 1))
    while True:
        try:
            each.__anext__().send(None)
        except StopIteration as item:
            seen.append(item.value)
        except StopAsyncIteration:
            break
        else:
            raise AssertionError("it waits")
    assert seen == list(range(request_turns.ITEMS_PER_CHECK - 1))


async def test_a_request_that_is_given_up_does_not_keep_its_place_in_line() -> None:
    notes: list[str] = []
    given_up = asyncio.create_task(_work(RequestTurn(), notes, "a", seconds=60))
    other = asyncio.create_task(_work(RequestTurn(), notes, "b", seconds=WORK_SECONDS))
    await asyncio.sleep(0)
    given_up.cancel()
    await other
    assert set(notes) == {"b"}


def test_a_loop_that_has_ended_leaves_no_line() -> None:
    async def scenario() -> weakref.ref[asyncio.AbstractEventLoop]:
        await _work(RequestTurn(), [], "a", seconds=2 * request_turns.TURN_SECONDS)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(scenario())
    gc.collect()
    assert loop() is None


async def test_connections_enter_the_lane_in_turn() -> None:
    lane = LargeRequests()
    order: list[str] = []

    async def connection(name: str) -> None:
        for _ in range(3):
            async with lane.turn("host") as turn:
                order.append(name)
                await turn.work(lambda: None)

    await asyncio.gather(*(connection(name) for name in ("a", "b", "c")))
    lane.close()
    assert order == ["a", "b", "c"] * 3


async def test_hosts_enter_the_lane_in_turn_however_many_connections_they_have() -> None:
    lane = LargeRequests()
    order: list[str] = []

    async def connection(host: str) -> None:
        async with lane.turn(host):
            order.append(host)

    await asyncio.gather(*(connection(host) for host in "aaaabbc"))
    lane.close()
    assert order == list("aabcaba")


async def test_requests_that_are_given_up_do_not_keep_the_lane() -> None:
    lane = LargeRequests()

    async def enter() -> None:
        async with lane.turn("host"):
            pass

    async with lane.turn("host"):
        waits, is_let_in, last = (asyncio.create_task(enter()) for _ in range(3))
        await asyncio.sleep(0)
        waits.cancel()
    # As soon as it has been let in, and before it runs.
    asyncio.get_running_loop().call_later(0, is_let_in.cancel)
    await asyncio.wait_for(last, 60)
    assert waits.cancelled()
    assert is_let_in.cancelled()
    lane.close()


async def test_the_lane_rests_longer_than_it_works() -> None:
    def work() -> None:
        ends_at = time.thread_time() + WORK_SECONDS
        while time.thread_time() < ends_at:
            pass

    lane = LargeRequests()
    async with lane.turn("host") as turn:
        await turn.work(work)
    began = time.monotonic()
    async with lane.turn("host"):
        rested_seconds = time.monotonic() - began
    lane.close()
    assert rested_seconds > 1.8 * WORK_SECONDS


async def test_a_request_that_waits_for_others_does_not_keep_the_lane() -> None:
    lane = LargeRequests()
    second_is_in = asyncio.Event()

    async def waits() -> None:
        async with lane.turn("host"):
            await second_is_in.wait()

    first = asyncio.create_task(waits())
    await asyncio.sleep(0)
    began = time.monotonic()
    async with lane.turn("host"):
        second_is_in.set()
    await first
    lane.close()
    assert time.monotonic() - began >= request_turns.HOLD_SECONDS_MAX * 0.9
