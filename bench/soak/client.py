"""The protocol of the soak's client processes: orders on stdin, reports on stdout.

A client gets one order per line and ends at ``stop`` or the end of stdin. It writes a report,
one JSON object per line, every ``REPORT_SECONDS``, and a last one with ``"final": true``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any

REPORT_SECONDS = 5.0
STOP_SECONDS_MAX = 180.0
Report = dict[str, Any]


class Orders:
    """The orders received, in the client process."""

    def __init__(self) -> None:
        self._orders: deque[list[str]] = deque()
        self.is_stopped = False
        threading.Thread(target=self._listen, daemon=True).start()

    def take(self) -> list[str] | None:
        """Return the next order's words, or None without one."""
        return self._orders.popleft() if self._orders else None

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                break
            self._orders.append(line.split())
        self.is_stopped = True


class Reporter:
    """Latencies and counts, in the client process; reports them every few seconds."""

    def __init__(self) -> None:
        self._next_at = time.monotonic() + REPORT_SECONDS
        self.latencies_ms: dict[str, list[float]] = {}

    def note(self, name: str, latency_ms: float) -> None:
        """Count a latency in the next report."""
        self.latencies_ms.setdefault(name, []).append(latency_ms)

    def is_due(self) -> bool:
        """Whether the next report is due."""
        return time.monotonic() >= self._next_at

    def tell(self, report: Report) -> None:
        """Write a report with the percentiles of latencies since the last one."""
        self._next_at = time.monotonic() + REPORT_SECONDS
        for name, noted in self.latencies_ms.items():
            noted.sort()
            report[f"{name} p50 ms"] = round(noted[len(noted) // 2], 2)
            report[f"{name} p99 ms"] = round(noted[len(noted) * 99 // 100], 2)
        self.latencies_ms.clear()
        print(json.dumps(report), flush=True)


class Client:
    """A client process and its last report, in the bench's process."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.name = module.rpartition(".")[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.last: Report = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def order(self, *words: str) -> None:
        """Send an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()

    def require_alive(self) -> None:
        """Raise ``RuntimeError`` if the client has exited."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}")

    def stop(self) -> Report:
        """Stop the client; return its last report. Raises ``RuntimeError`` if it failed."""
        self.order("stop")
        status = self._process.wait(STOP_SECONDS_MAX)
        self._reader.join(10)
        if status != 0 or not self.last.get("final"):
            raise RuntimeError(f"{self.name} ended with {status}")
        return self.last

    def kill(self) -> None:
        """Kill the client."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = json.loads(line)
