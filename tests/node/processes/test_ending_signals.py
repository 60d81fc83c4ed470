"""A process is told of the signals that end it, also while its loop waits for nothing else.

It ends in order, however many more it gets.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tidelog import Consumer, Producer

from tests.support.node_process import NodeProcess

PROGRAM = """
import asyncio, sys, time
from tidelog_node.processes.ending_signals import on_ending_signals
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
    sys.stdin.read()
asyncio.run(main())
"""
STARTING = """
import os, sys, time
from tidelog_node.processes.early_signals import let_signals_end
let_signals_end()
print(os.getpid(), flush=True)
while True:  # A handler in Python runs between two calls, and this one may just have begun.
    time.sleep(0.01)
"""
NUMBERS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"]
)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.kill()


@NUMBERS
def test_the_loop_is_told_until_the_block_ends_and_later_signals_do_nothing(
    process: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert process.stdout is not None
    assert process.stdin is not None
    told = iter(process.stdout)
    assert next(told) == "ready\n"
    process.send_signal(number)
    assert next(told) == "told 1\n"
    process.send_signal(number)
    assert [next(told), next(told)] == ["told 2\n", "left\n"]
    process.send_signal(number)
    process.stdin.close()
    assert process.wait(60) == 0


@NUMBERS
def test_a_process_that_starts_is_ended_at_once(number: signal.Signals) -> None:
    command = [sys.executable, "-c", STARTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == -number


def test_a_node_that_gets_one_signal_after_the_other_ends_in_order(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node").start()
    process = node.process
    assert process is not None
    with Producer(node.address).sync() as producer:
        producer.send("t", b"v", partition=0).result(60)
        count = 0
        while process.poll() is None:
            process.send_signal((signal.SIGTERM, signal.SIGINT)[count % 2])
            count += 1
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.001)
    assert count > 1
    assert node.stop() == 0
    assert "node stopped" in node.log
    with node, Consumer(node.address, auto_offset_reset="earliest").sync() as consumer:
        consumer.assign([("t", 0)])
        assert [one.value for one in consumer.poll(timeout_ms=30_000)] == [b"v"]


def test_a_node_that_gets_a_signal_while_it_starts_ends_without_serving(tmp_path: Path) -> None:
    """Here it waits for the lease of an earlier process, for longer than its stop may take."""
    store = f"sqlite://{tmp_path}/metadata.db"
    config = {"broker.session.timeout.ms": "600000"}
    earlier = NodeProcess(tmp_path / "earlier", metadata_store=store, config=config).start()
    earlier.kill()
    node = NodeProcess(tmp_path / "node", metadata_store=store, config=config)
    node.spawn()
    node.wait_logged("waits for the lease of an earlier process")
    assert node.stop() == 0
    assert "node stopped" in node.log
    assert "node serves" not in node.log
