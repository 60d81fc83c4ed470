"""Reads the CPU time of Spark: of its JVM and of its Python processes."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

CpuSeconds = dict[int, tuple[str, float]]  # by process id: "jvm" or "python", and its time so far


def spark_jvm_pid() -> int:
    """Return the process id of the JVM of this process's Spark session."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    [pid] = [
        child for child in children if b"SparkSubmit" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return int(pid)


def spark_cpu(jvm_pid: int) -> CpuSeconds:
    """Return the user and system time of the JVM and of its child processes."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    found: CpuSeconds = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended since.
        head, _, rest = text.rpartition(")")
        fields, pid = rest.split(), int(head.split()[0])
        children[int(fields[1])].append(pid)
        kind = "jvm" if pid == jvm_pid else "python"
        found[pid] = (kind, (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND)
    spark = [jvm_pid]
    for pid in spark:
        spark.extend(children[pid])
    return {pid: found[pid] for pid in spark}


def cpu_used(before: CpuSeconds, after: CpuSeconds) -> dict[str, float]:
    """Return the times used by "jvm" and "python". An ended process does not count."""
    used = {"jvm": 0.0, "python": 0.0}
    for pid, (kind, seconds) in after.items():
        used[kind] += seconds - before.get(pid, (kind, 0.0))[1]
    return used
