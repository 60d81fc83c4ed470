"""The first process of a container reaps orphans, forwards signals, and ends as its program."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tools.server_process import children_running

ALONE = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
NUMBERS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"]
)
# Each child that the program waits for leaves two orphans: one ends before it, one after it.
ORPHANS = """
import asyncio, os, time
from tidelog_node.processes.init_process import leave_first_process
leave_first_process()

def process_count():
    return sum(name.isdecimal() for name in os.listdir("/proc"))

async def main():
    statuses = []
    for number in range(20):
        script = f"true & sleep 0.02 & sleep 0.01; exit {number}"
        process = await asyncio.create_subprocess_exec("sh", "-c", script)
        statuses.append(await process.wait())
    print(os.getpid(), os.getppid(), statuses, flush=True)

asyncio.run(main())
deadline = time.monotonic() + 60
while process_count() > 2 and time.monotonic() < deadline:
    time.sleep(0.01)
print(process_count(), flush=True)
"""
HANDLING = """
import signal
from tidelog_node.processes.init_process import leave_first_process
leave_first_process()
numbers = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
number = 0
while number != signal.SIGTERM:
    number = signal.sigwait(numbers)
    print("got", signal.Signals(number).name, flush=True)
raise SystemExit(3)
"""
STARTING = """
import time
from tidelog_node.processes.early_signals import let_signals_end
from tidelog_node.processes.init_process import leave_first_process
leave_first_process()
let_signals_end()
print("ready", flush=True)
while True:  # A handler in Python runs between two calls, and this one may just have begun.
    time.sleep(0.01)
"""

pytestmark = pytest.mark.usefixtures("namespaces", "no_ignored_signals")


@pytest.fixture(scope="module")
def namespaces() -> None:
    if shutil.which(ALONE[0]) is None or subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("no namespaces of processes here")


@contextmanager
def first_process(program: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a program in a namespace of its own, once it has said «ready»; give its first process."""
    command = [*ALONE, sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            (inside,) = children_running(process.pid, program)
            yield process, inside
        finally:
            process.kill()


def test_orphans_are_reaped_and_the_programs_own_children_keep_their_statuses() -> None:
    ended = subprocess.run(
        [*ALONE, sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True, check=True
    )
    of_children, left = ended.stdout.splitlines()
    program, first, statuses = of_children.split(" ", 2)
    assert program != first == "1"
    assert statuses == str(list(range(20)))
    assert left == "2"  # the first process and the program


@pytest.mark.parametrize(
    ("ending", "status"),
    [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)],
    ids=["exits", "is killed"],
)
def test_the_container_ends_with_the_status_of_the_program(ending: str, status: int) -> None:
    begin = "import os, sys; from tidelog_node.processes.init_process import leave_first_process"
    program = f"{begin}; leave_first_process(); {ending}"
    ended = subprocess.run([*ALONE, sys.executable, "-c", program], check=False)
    assert ended.returncode == status


def test_the_container_ends_where_the_signal_of_ended_children_was_ignored() -> None:
    """What has started the container may have ignored it; the kernel then sends none."""
    program = (
        "import signal; from tidelog_node.processes.init_process import leave_first_process;"
        " signal.signal(signal.SIGCHLD, signal.SIG_IGN); leave_first_process(); raise SystemExit(7)"
    )
    ended = subprocess.run([*ALONE, sys.executable, "-c", program], check=False, timeout=60)
    assert ended.returncode == 7


def test_signals_to_the_container_reach_the_program() -> None:
    with first_process(HANDLING) as (process, inside):
        assert process.stdout is not None
        os.kill(inside, signal.SIGINT)
        assert process.stdout.readline() == "got SIGINT\n"
        os.kill(inside, signal.SIGTERM)
        assert process.stdout.readline() == "got SIGTERM\n"
        assert process.wait(60) == 3


OTHERS = [signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("number", OTHERS, ids=lambda number: number.name)
def test_other_signals_reach_a_program_too_and_end_one_without_a_handler(
    number: signal.Signals,
) -> None:
    with first_process(STARTING) as (process, inside):
        os.kill(inside, number)
        assert process.wait(60) == 128 + number


def test_a_terminal_that_is_closed_ends_the_program() -> None:
    """The kernel says so to the first process only, which is the leader of the session."""
    terminal, inner = pty.openpty()
    of_session = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    process = subprocess.Popen(
        [*ALONE, sys.executable, "-c", of_session + STARTING],
        stdin=inner,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            os.close(inner)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            os.close(terminal)
            assert process.wait(60) == 128 + signal.SIGHUP
        finally:
            process.kill()


@NUMBERS
def test_a_program_that_starts_is_ended_at_once_in_a_container_too(number: signal.Signals) -> None:
    with first_process(STARTING) as (process, inside):
        os.kill(inside, number)
        assert process.wait(60) == 128 + number


def test_an_interrupt_at_a_terminal_reaches_the_program_once() -> None:
    """The terminal sends it to all processes in its foreground, the program among them."""
    terminal, inner = pty.openpty()
    try:
        process = subprocess.Popen(
            [*ALONE, sys.executable, "-c", HANDLING],
            stdin=inner,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY),  # noqa: PLW1509
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            (inside,) = children_running(process.pid, HANDLING)
            os.write(terminal, b"\x03")
            assert process.stdout.readline() == "got SIGINT\n"
            os.kill(inside, signal.SIGTERM)
            assert process.stdout.readline() == "got SIGTERM\n"
            assert process.wait(60) == 3
    finally:
        os.close(terminal)
        os.close(inner)
