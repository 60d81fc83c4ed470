"""Events in any order, doubled and lost, and a crash at any operation: what must hold.

At every moment: no object goes while metadata points readers at it, nor before the log
start passed it, the bucket was told so, and the delay is over; the log start never goes
further than the limits say, nor what the bucket is told further than the log start. In the end: what retention says must go is gone, and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.function_world import (
    folder_world,
)
from tests.support.retention_drama import (
    DELAY_MS,
    RETENTION_MS,
    Drama,
    prepare,
    processes,
    quick_folder,
)
from tests.support.watched_stores import (
    Fault,
    Process,
)


@asynccontextmanager
async def drama() -> AsyncIterator[Drama]:
    with quick_folder() as folder:
        async with folder_world(folder) as world:
            made = Drama(world)
            await made.start()
            yield made


scenes = st.one_of(
    st.tuples(
        st.just("copy"),
        st.sampled_from([0, 1, 2]),
        st.sampled_from([10, 100, 200]),
        st.sampled_from([0, 3_000_000, RETENTION_MS + 1]),
        st.booleans(),
    ),
    st.tuples(
        st.just("delete records"), st.sampled_from([0, 1, 2]), st.sampled_from([-10, 0, 5, 10, 20])
    ),
    st.tuples(st.just("delete topic")),
    st.tuples(st.just("wait"), st.sampled_from([1, DELAY_MS // 2, DELAY_MS, RETENTION_MS // 2])),
    st.tuples(
        st.just("events"),
        st.lists(st.integers(0, 30), min_size=1, max_size=3),
        st.lists(processes, min_size=1, max_size=2),
    ),
    st.tuples(st.just("scrub"), processes),
    st.tuples(
        st.just("schedule"),
        st.lists(processes, min_size=1, max_size=3),
        st.sampled_from([1_000_000, 6, 3]),
    ),
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(scenes, min_size=6, max_size=24))
@example([("copy", 0, 100, 0, False), ("delete records", 0, -10)])  # below it before it ends
async def test_nothing_goes_too_soon_and_all_that_must_go_goes(script: list[Any]) -> None:
    async with drama() as cluster:
        for scene in script:
            await play(cluster, scene)
        await cluster.end()


async def play(cluster: Drama, scene: Any) -> None:
    match scene:
        case ("copy", which, size, age_ms, ends):
            await cluster.copy(which, size, age_ms, ends=ends)
        case ("delete records", which, back):
            await cluster.delete_records(which, back)
        case ("delete topic",):
            await cluster.delete_topic()
        case ("wait", for_ms):
            cluster.world.clock.now_ms += for_ms
        case ("events", which, running):
            await cluster.call(tuple(which), running, 1_000_000)
        case ("scrub", process):
            await cluster.scrub(process)
        case ("schedule", running, steps):
            await cluster.call((), running, steps)
        case _:
            raise AssertionError(scene)


async def count_operations() -> int:
    async with drama() as cluster:
        await prepare(cluster)
        process = Process()
        await cluster.call((), [process], 1_000_000)
        cluster.world.clock.now_ms += DELAY_MS + 1
        await cluster.call((), [process], 1_000_000)
        return process.operation_count


async def test_a_crash_or_failure_at_any_operation_is_made_up_for() -> None:
    """The first of two passes dies at each operation in turn, then the second one."""
    total = await count_operations()
    assert total > 40

    async def run(number: int, fault: Fault) -> None:
        async with drama() as cluster:
            await prepare(cluster)
            process = Process(number, fault)
            await cluster.call((), [process], 1_000_000)
            cluster.world.clock.now_ms += DELAY_MS + 1
            await cluster.call((), [process], 1_000_000)
            await cluster.end()

    faults = list(Fault)
    for number in range(total):
        # Every operation is met by one or two kinds of faults, in turn.
        for fault in faults[number % 3 :: 3]:
            await run(number, fault)
