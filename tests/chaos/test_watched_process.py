"""Processes, phases and runs that stand still are ended, and it is said where they were."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.chaos.checker import Kind
from tests.chaos.options import ChaosOptions
from tests.chaos.supervised import run_supervised
from tests.chaos.watchdog import Watchdog
from tests.chaos.watched_process import StandsStill, WatchedProcess
from tests.support.waiting import eventually

# Waits in C with the interpreter's lock in its hands, as confluent-kafka's close does.
HOLDS_THE_LOCK = """
import ctypes, faulthandler, os, signal, subprocess, sys
faulthandler.register(signal.SIGUSR1, all_threads=True)
def hold_the_lock():
    while True:
        ctypes.PyDLL(None).sleep(1000)
child = subprocess.Popen(["sleep", "1000"])
print("comparison", child.pid, flush=True)
hold_the_lock()
"""


def command(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def is_gone(pid: int) -> bool:
    """Whether nothing of the process is left but what its parent has yet to take note of."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return True
    return fields[0] == "Z"


async def test_a_process_that_holds_the_interpreters_lock_is_asked_where_and_killed(
    tmp_path: Path,
) -> None:
    said: list[bytes] = []

    async def listen() -> None:
        process = WatchedProcess(
            command(HOLDS_THE_LOCK),
            log_path=tmp_path / "log",
            silent_s_max=2,
            has_children=True,
        )
        async with process:
            async for line in process.lines():
                said.append(line)  # noqa: PERF401 - what was said before it stood still, too

    with pytest.raises(StandsStill, match="in hold_the_lock"):
        await listen()
    child = int(said[0].split()[1])
    eventually(lambda: is_gone(child))


async def test_a_process_that_speaks_is_left_alone(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('words'); [print(n) for n in range(3)]; sys.exit(3)"
    process = WatchedProcess(command(code), log_path=tmp_path / "log", silent_s_max=60)
    async with process:
        assert [line async for line in process.lines()] == [b"0\n", b"1\n", b"2\n"]
        assert await process.status() == 3
        assert process.log == "words"


async def test_a_run_whose_loop_does_not_turn_is_an_anomaly_that_says_where(tmp_path: Path) -> None:
    options = ChaosOptions(directory=tmp_path / "chaos", seed=1)
    result = await run_supervised(options, command=command(HOLDS_THE_LOCK), silent_s_max=2)
    (anomaly,) = result.anomalies
    assert anomaly.kind is Kind.STALLED
    assert "'comparison" in anomaly.detail
    assert "in hold_the_lock" in anomaly.detail
    assert anomaly.detail.splitlines()[0] in (tmp_path / "chaos/report.txt").read_text()


async def test_a_run_that_ends_without_a_result_is_an_anomaly_with_its_last_words(
    tmp_path: Path,
) -> None:
    code = "print('faults', flush=True); raise SystemExit('out of memory')"
    options = ChaosOptions(directory=tmp_path / "chaos", seed=1)
    result = await run_supervised(options, command=command(code))
    (anomaly,) = result.anomalies
    assert "ended with 1 in the phase 'faults': out of memory" in anomaly.detail


async def test_a_phase_that_takes_too_long_is_cancelled_and_says_where_everyone_was() -> None:
    ended: list[str] = []

    async def wait_for_nobody() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    async def run() -> None:
        async with Watchdog() as watchdog:
            watchdog.enter("quick", seconds_max=60)
            await asyncio.sleep(0)
            watchdog.enter("slow", seconds_max=0.05)
            await wait_for_nobody()

    with pytest.raises(StandsStill, match=r"(?s)'slow'.*> wait_for_nobody"):
        await run()
    assert ended == ["in order"]


async def test_phases_that_end_in_time_leave_the_task_as_it_was() -> None:
    async with Watchdog() as watchdog:
        watchdog.enter("only", seconds_max=0.05)
    await asyncio.sleep(0.1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancelling_from_outside_is_no_standstill() -> None:
    async def run() -> None:
        async with Watchdog() as watchdog:
            watchdog.enter("long", seconds_max=60)
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
