"""The functions' process of one machine: what it is told of, and what it does then."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog_core.metadata.records import SegmentMeta, Topic
from tidelog_functions.local.runner import Handlers, LocalRunner
from tidelog_functions.local.watch import IndexWatch
from tidelog_functions.retention import handler as retention
from tidelog_functions.scrub import handler as scrub

from tests.support.function_world import DAY_MS, FunctionWorld, folder_world

SECONDS_MAX = 30.0
AT_ONCE = {"file.delete.delay.ms": "0", "retention.ms": "3600000"}


async def old_segment(world: FunctionWorld, topic: Topic, base: int) -> SegmentMeta:
    return await world.copy(topic, base, age_ms=DAY_MS)


async def test_new_index_objects_are_told_of_and_old_ones_are_not(tmp_path: Path) -> None:
    async with folder_world(tmp_path) as world:
        topic, other = await world.create_topic("a"), await world.create_topic("b")
        await world.copy(topic, 0)
        await asyncio.sleep(0.2)  # longer than file times are coarse
        watch = IndexWatch(tmp_path / "objects")
        assert watch.poll() == []
        second, first = await world.copy(topic, 10), await world.copy(other, 0)
        expected = {world.keys(topic, second).index, world.keys(other, first).index}
        assert set(watch.poll()) == expected
        await asyncio.sleep(0.2)
        watch.poll()  # may tell of them again
        await asyncio.sleep(0.2)
        assert watch.poll() == []
        keys = world.keys(topic, second)
        await world.objects.delete([keys.log, keys.index])
        assert watch.poll() == []
        third = await world.copy(topic, 20)
        assert watch.poll() == [world.keys(topic, third).index]


def test_a_folder_that_is_not_there_yet_has_nothing(tmp_path: Path) -> None:
    assert IndexWatch(tmp_path / "objects").poll() == []


async def test_objects_written_one_after_the_other_are_all_told_of(tmp_path: Path) -> None:
    """Also those that come while it looks, and in the same tick of the clock."""
    async with folder_world(tmp_path) as world:
        topic = await world.create_topic()
        watch, told, written = IndexWatch(tmp_path / "objects"), set[str](), set[str]()
        ended = threading.Event()

        def poll() -> None:
            while not ended.is_set():
                told.update(watch.poll())
            told.update(watch.poll())

        polling = threading.Thread(target=poll)
        polling.start()
        for number in range(40):
            segment = await world.start_copy(topic, 10 * number)
            written.add(world.keys(topic, segment).index)
        ended.set()
        await asyncio.to_thread(polling.join)
        assert told == written


@pytest.fixture
def run_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[int], bool]], None]:
    """Run the real handlers until ``next_round`` (its number in, whether to stop out) says so."""
    monkeypatch.setenv("TIDELOG_METADATA", f"sqlite://{tmp_path}/metadata.db")
    monkeypatch.setenv("TIDELOG_OBJECTS", f"file://{tmp_path}/objects")

    def run(next_round: Callable[[int], bool]) -> None:
        rounds = 0

        def wait(timeout_s: float) -> bool:
            nonlocal rounds
            if timeout_s == 0.0 and rounds:
                return False  # A handler asks for its time.
            rounds += 1
            return next_round(rounds)

        LocalRunner(
            Handlers(retention=retention.handle, scrub=scrub.handle),
            objects_url=f"file://{tmp_path}/objects",
            retention_interval_s=3600,
            wait=wait,
        ).run()

    return run


def test_a_written_index_object_brings_retention_about(
    tmp_path: Path, run_runner: Callable[[Callable[[int], bool]], None]
) -> None:
    """The timer is an hour away: after its first round only events do."""

    async def prepare() -> Topic:
        async with folder_world(tmp_path) as world:
            topic = await world.create_topic(configs=AT_ONCE)
            await old_segment(world, topic, 0)
            return topic

    topic = asyncio.run(prepare())
    left: list[list[int]] = []

    async def step(rounds: int) -> None:
        async with folder_world(tmp_path) as world:
            left.append([meta.base_offset for meta in await world.segments(topic.topic_id)])
            if rounds == 2:
                await old_segment(world, topic, 10)
            if rounds == 4:
                assert len(await world.present()) == 0

    def next_round(rounds: int) -> bool:
        asyncio.run(step(rounds))
        return rounds == 4

    run_runner(next_round)
    assert left == [[0], [], [], []]


def test_no_function_is_called_before_a_node_has_made_the_folder(
    tmp_path: Path,
    run_runner: Callable[[Callable[[int], bool]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_runner(lambda rounds: rounds == 3)
    assert "function failed" not in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_fails_is_called_again(
    tmp_path: Path,
    run_runner: Callable[[Callable[[int], bool]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def prepare() -> Topic:
        async with folder_world(tmp_path) as world:
            topic = await world.create_topic(configs=AT_ONCE)
            segment = await old_segment(world, topic, 0)
            await world.corrupt(segment.item_id)
            return await world.create_topic("other", configs=AT_ONCE)

    other = asyncio.run(prepare())

    async def step(rounds: int) -> None:
        async with folder_world(tmp_path) as world:
            if rounds == 2:
                await old_segment(world, other, 0)
            if rounds == 3:
                assert await world.segments(other.topic_id) == []

    def next_round(rounds: int) -> bool:
        asyncio.run(step(rounds))
        return rounds == 3

    run_runner(next_round)
    assert "function failed" in caplog.text


def test_the_process_ends_with_its_parent_and_names_wrong_settings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidelog_functions.local"]
    stores = ["--metadata", f"sqlite://{tmp_path}/metadata.db"]
    stores += ["--objects", f"file://{tmp_path}/objects"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
    process = subprocess.Popen(
        [*command, *stores, "--until-stdin-ends"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=kept,
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"tidelog functions ready\n"
        process.stdin.close()
        assert process.wait(SECONDS_MAX) == 0
    refused = subprocess.run(
        [*command, *stores, "--set", "no.such=1", "--set", "num.partitions=many"],
        capture_output=True,
        timeout=SECONDS_MAX,
        env=kept,
        check=False,
    )
    assert refused.returncode == 2
    assert b"TIDELOG_CONFIG_NO_SUCH names no setting" in refused.stderr
