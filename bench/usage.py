"""Reads the resources used by a process and its children from the kernel."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2  # the clock of a whole process: the time of all its threads, with ended ones


def process_tree(pid: int) -> list[int]:
    """Return the ids of the process and of all its descendants."""
    found = [pid]
    for parent in found:
        for thread in Path(f"/proc/{parent}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # The thread has just ended.
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return user and system time of the processes so far, and of children that have ended.

    The processes' own times are exact to nanoseconds. Source: clock_gettime(2), dynamic clocks.
    """
    return sum(time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED) + _ended_cpu(pid) for pid in pids)


def resident_megabytes(pids: list[int]) -> float:
    """Return the resident memory, 10^6 bytes; pages that several processes share count once."""
    return sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in pids) * 1024 / 1e6


def rss_megabytes(pid: int) -> float:
    """Return the resident memory of one process with all that it shares, 10^6 bytes."""
    return _kilobytes(pid, "status", "VmRSS:") * 1024 / 1e6


def _ended_cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND


def _kilobytes(pid: int, file: str, name: str) -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(name)]
    return int(line.split()[1])
