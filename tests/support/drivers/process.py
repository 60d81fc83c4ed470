"""Start client drivers and talk to them."""

from __future__ import annotations

import base64
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.drivers.lines import Message, from_line, to_line
from tools.kernel_machine import EMULATED

ROOT = Path(__file__).resolve().parents[3]
PRODUCE_SECONDS_MAX = 900.0 if os.environ.get(EMULATED) else 90.0


@dataclass(frozen=True, slots=True)
class Driver:
    """One client library: the command of its driver, and its features."""

    name: str
    command: tuple[str, ...]
    assignors: tuple[str, ...]  # those to test: the node sees only their protocol type
    environment: Mapping[str, str] = field(default_factory=dict)
    has_static_members: bool = True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        is_idempotent: bool = False,
    ) -> list[tuple[int, int]]:
        """Send the messages and return their (partition, offset), in the order acknowledged."""
        done = subprocess.run(
            [*self.command, "produce", bootstrap, topic, codec, "1" if is_idempotent else "0"],
            input="".join(to_line(message) + "\n" for message in messages),
            env={**os.environ, **self.environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PRODUCE_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{self.name} could not produce: {done.stderr[-2000:]}"
        acks = [line.split() for line in done.stdout.splitlines() if line.startswith("acked ")]
        return [(int(partition), int(offset)) for _, partition, offset in acks]

    def produce_until(
        self, bootstrap: str, topic: str, is_over: Callable[[], bool], *, seconds_max: float
    ) -> int:
        """Send a record every 20 ms until it is over; return their number. All must be stored."""
        with subprocess.Popen(
            [*self.command, "produce", bootstrap, topic, "none", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment},
            cwd=ROOT,
            text=True,
        ) as running:
            assert running.stdin is not None
            sent = 0
            deadline = time.monotonic() + seconds_max
            while not is_over() and time.monotonic() < deadline:
                running.stdin.write(to_line(Message(b"v", partition=0)) + "\n")
                running.stdin.flush()
                sent += 1
                time.sleep(0.02)
            out, errors = running.communicate(timeout=seconds_max)
        assert running.returncode == 0, f"{self.name} could not produce: {errors[-2000:]}"
        assert out.count("acked ") == sent
        return sent

    def member(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        *,
        assignor: str | None = None,
        instance: str | None = None,
        session_ms: int = 6000,
    ) -> Member:
        """Start a group member; the caller closes or kills it."""
        arguments = [topic, group, assignor or self.assignors[0], instance or "-", str(session_ms)]
        return Member([*self.command, "consume", bootstrap, *arguments], self.environment)

    def share_member(
        self, bootstrap: str, topic: str, group: str, *, mode: str = "explicit"
    ) -> Member:
        """Start a member of a share group; the caller closes or kills it.

        In ``explicit`` mode it does with a record what its value begins with: ``reject`` it,
        ``release`` it the first time, ``hold`` it for ever, else accept it.
        """
        return Member([*self.command, "share", bootstrap, topic, group, mode], self.environment)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that a member of a share group was given."""

    partition: int
    offset: int
    delivery_count: int
    value: bytes


class Member:
    """A running consumer: the partitions it owns and the records it has read so far.

    A thread reads the driver's lines; everything else happens in the test's thread.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.owned: set[int] | None = None  # None until the first assignment
        self.assignment_count = 0
        self.records: list[tuple[int, Message]] = []  # offset, message
        self.deliveries: list[Delivery] = []  # of a share group
        self.commit_count = 0  # of a share group, each of one partition
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            cwd=ROOT,
            text=True,
        )
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The driver's process id."""
        return self._process.pid

    def take_in(self, timeout_s: float) -> bool:
        """Process one line if it comes in time; return whether it did."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return False
        if line is None:
            raise AssertionError(f"the consumer ended: {''.join(self._errors)[-2000:]}")
        word, _, rest = line.partition(" ")
        if word == "assigned":
            self.owned = {int(part) for part in rest.strip().split(",") if part}
            self.assignment_count += 1
        elif word == "record":
            offset, _, message = rest.partition(" ")
            self.records.append((int(offset), from_line(message)))
        elif word == "delivered":
            partition, offset, count, value = rest.split()
            self.deliveries.append(
                Delivery(int(partition), int(offset), int(count), base64.b64decode(value))
            )
        elif word == "committed":
            self.commit_count += 1
        elif word == "error":
            raise AssertionError(f"the consumer met an error: {rest}")
        return True

    def close(self, timeout_s: float = 30) -> None:
        """Let the consumer leave the group and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(timeout_s)
        self._join()
        assert code == 0, f"the consumer failed: {''.join(self._errors)[-2000:]}"

    def kill(self) -> None:
        """Kill the process, which does not leave the group."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(60)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue  # a killed driver takes no commands

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)


def wait_until(
    members: Sequence[Member], condition: Callable[[], bool], *, what: str, timeout_s: float = 45
) -> None:
    """Process the members' lines until the condition holds. Fails naming ``what`` if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            state = [(member.owned, len(member.records)) for member in members]
            raise AssertionError(f"{what} did not happen in {timeout_s} s; members: {state}")
        for member in members:
            while member.take_in(0.02):
                if condition():
                    return


def python_driver(module: str) -> tuple[str, ...]:
    """Return the command of a driver that is one of our Python modules."""
    return (sys.executable, "-m", f"tests.support.drivers.{module}")
