"""A process is told of the signals that end it, also while its loop waits for nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = """
import asyncio, sys, time
from tidelog_node.ending_signals import on_ending_signals
async def main():
    stop, count = asyncio.Event(), 0
    def note():
        nonlocal count
        count += 1
        print("told", count, flush=True)
        if count == 2:
            stop.set()
    with on_ending_signals(note):
        print("ready", flush=True)
        await stop.wait()
    print("left", flush=True)
    time.sleep(600)
asyncio.run(main())
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_the_loop_is_told_until_the_block_ends(
    process: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert process.stdout is not None
    told = iter(process.stdout)
    assert next(told) == "ready\n"
    process.send_signal(number)
    assert next(told) == "told 1\n"
    process.send_signal(number)
    assert [next(told), next(told)] == ["told 2\n", "left\n"]
    process.send_signal(number)
    assert process.wait(60) == -number
