"""Consumers as processes of their own, and what they tell a test."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from types import TracebackType

PARTITIONS = [0, 1, 2, 3]


class Member:
    """A consumer process and what it has told so far."""

    def __init__(self, bootstrap: str, *settings: str, group: str = "g", topic: str = "t") -> None:
        self.told: list[tuple[str, list[int]]] = []
        self._buffer = b""
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.node.coordinator.group_member",
                bootstrap,
                group,
                topic,
                *settings,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def hear(self, seconds: float = 0.0) -> None:
        """Take what it says within the time."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 0)
            if not select.select([self._process.stdout], [], [], left)[0]:
                return
            part = self._process.stdout.read1()  # type: ignore[attr-defined]
            if not part:
                return
            *lines, self._buffer = (self._buffer + part).split(b"\n")
            self.told += [tuple(json.loads(line)) for line in lines]

    @property
    def partitions(self) -> list[int]:
        """What it has, by what it told."""
        mine: set[int] = set()
        for what, some in self.told:
            if what == "assigned":
                mine |= set(some)
            elif what in ("revoked", "lost"):
                mine -= set(some)
        return sorted(mine)

    def commit(self, offset: int) -> str:
        """Have it commit the offset for what it has; return how that went."""
        assert self._process.stdin is not None
        before = len(self.told)
        self._process.stdin.write(f"{offset}\n".encode())
        self._process.stdin.flush()
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            self.hear(0.1)
            for what, _ in self.told[before:]:
                if what not in ("assigned", "revoked", "lost"):
                    return what
        raise AssertionError(f"no commit: {self.told}")

    def leave(self) -> None:
        """Have it close its consumer, and wait for that."""
        self._process.communicate(timeout=30)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.communicate(timeout=30)


def wait_for_shares(*members: Member, seconds: float = 30) -> None:
    """Wait until the members have all partitions, each at least one and each by one only."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for member in members:
            member.hear(0.05)
        shares = [member.partitions for member in members]
        if all(shares) and sorted(p for share in shares for p in share) == PARTITIONS:
            return
    raise AssertionError(f"partitions are not shared: {[m.told for m in members]}")
