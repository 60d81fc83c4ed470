"""Measures a dimension from its first step to its last, on one cluster."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.peers.cores import pinned_to, server_and_client_core
from bench.scaling.brokers import Server
from bench.scaling.cluster import HOT, Cluster
from bench.scaling.dimension import Dimension, Measure
from bench.scaling.workload import Workload, p99

Figures = Mapping[Measure, float]

MEMORY_DIR = Path("/dev/shm")
_QUIET_SECONDS_MAX = 30.0
_QUIET_MS = 3.0  # a second; two quiet intervals differ by at most this, or by a tenth


@dataclass(frozen=True, slots=True)
class Effort:
    """The durations of the measurements."""

    idle_seconds: float  # of each of two windows; nodes renew their leases every 3 s
    operations: int
    rounds: int  # into which the operations are divided
    warm_up: int
    quiet_step_seconds: float = 1.0  # two such intervals of about the same CPU time are quiet


FULL = Effort(idle_seconds=3.0, operations=2_000, rounds=5, warm_up=200)
QUICK = Effort(idle_seconds=1.5, operations=300, rounds=3, warm_up=30)


def measure(
    dimension: Dimension,
    server: Server,
    steps: Sequence[int],
    effort: Effort,
    *,
    tell: Callable[[int, Figures], None],
) -> None:
    """Grow to every step in turn, and report each step's figures to ``tell``.

    All brokers run on one core, the clients on another. An error is raised after the reports of
    the earlier steps.
    """
    place = MEMORY_DIR if MEMORY_DIR.is_dir() else None
    server_core, client_core = server_and_client_core()
    with tempfile.TemporaryDirectory(dir=place) as folder, pinned_to(client_core):
        cluster = Cluster(server, Path(folder), dimension.nodes, core=server_core)
        cluster.start()
        try:
            cluster.create_topics(
                {HOT: 1}, replicas=dimension.nodes, settings=dimension.hot_settings
            )
            cluster.await_record()
            if dimension.is_kept:
                # Every later step follows a restart, so the first does too.
                cluster.stop()
                cluster.start()
            grow_through(cluster, dimension, steps, effort, tell=tell)
        finally:
            cluster.stop()


def grow_through(
    cluster: Cluster,
    dimension: Dimension,
    steps: Sequence[int],
    effort: Effort,
    *,
    tell: Callable[[int, Figures], None],
) -> None:
    """Grow to every step in turn, on a running cluster with the workload's topic."""
    with closing(dimension.make()) as grown:
        workload = dimension.workload(grown)
        idle_ms = None
        for count in steps:
            grown.grow(cluster, count)
            figures = _step(cluster, dimension, workload, effort, usual_ms=idle_ms)
            idle_ms = figures[Measure.IDLE_CPU]
            tell(count, figures)


def _step(
    cluster: Cluster,
    dimension: Dimension,
    workload: Workload,
    effort: Effort,
    *,
    usual_ms: float | None,
) -> dict[Measure, float]:
    _await_quiet(cluster, effort.quiet_step_seconds, usual_ms=usual_ms)
    figures = _idle(cluster, effort.idle_seconds)
    figures[Measure.MEMORY] = cluster.memory_megabytes()
    figures |= _work(cluster, workload, effort, idle=figures)
    if dimension.is_kept:
        figures[Measure.START_CPU] = _restart(cluster, effort, idle_ms=figures[Measure.IDLE_CPU])
    return figures


def _idle(cluster: Cluster, seconds: float) -> dict[Measure, float]:
    """Return the lesser of two windows: delayed work of a start does not count as idle."""
    windows = []
    for _ in range(2):
        cpu, units, started = cluster.cpu_seconds(), cluster.units(), time.perf_counter()
        time.sleep(seconds)
        cpu, after = cluster.cpu_seconds() - cpu, cluster.units()
        passed = time.perf_counter() - started
        windows.append(
            {
                Measure.IDLE_CPU: cpu / passed * 1000,
                Measure.READ_UNITS: (after.reads - units.reads) / passed,
                Measure.WRITE_UNITS: (after.writes - units.writes) / passed,
            }
        )
    return min(windows, key=lambda figures: figures[Measure.IDLE_CPU])


def _work(
    cluster: Cluster, workload: Workload, effort: Effort, *, idle: Figures
) -> dict[Measure, float]:
    """Run the workload in rounds; its CPU is the cheapest's, since other work only adds to it."""
    units_a_second = idle[Measure.READ_UNITS] + idle[Measure.WRITE_UNITS]
    workload.run(cluster, effort.warm_up)
    rounds: list[tuple[float, float]] = []
    latencies: list[float] = []
    for _ in range(effort.rounds):
        cpu, units, started = cluster.cpu_seconds(), cluster.units(), time.perf_counter()
        done = workload.run(cluster, effort.operations // effort.rounds)
        seconds = time.perf_counter() - started
        # The idle cost is not the workload's.
        cpu = cluster.cpu_seconds() - cpu - idle[Measure.IDLE_CPU] / 1000 * seconds
        used = cluster.units()
        taken = used.reads + used.writes - units.reads - units.writes - units_a_second * seconds
        rounds.append((max(0.0, cpu) / len(done) * 1e6, max(0.0, taken) / len(done)))
        latencies += done
    return {
        Measure.WORK_CPU: min(cpu for cpu, _ in rounds),
        Measure.WORK_UNITS: min(units for _, units in rounds),
        Measure.WORK_P99: p99(latencies) * 1000,
    }


def _restart(cluster: Cluster, effort: Effort, *, idle_ms: float) -> float:
    """Stop and start; return the CPU seconds until a record is accepted and the nodes are quiet.

    Work that is delayed until after the first record is part of a start. The idle cost is not.
    """
    cluster.stop()
    cluster.start()
    started = time.perf_counter()
    cluster.await_record()
    _await_quiet(cluster, effort.quiet_step_seconds, usual_ms=idle_ms)
    return cluster.cpu_seconds() - idle_ms / 1000 * (time.perf_counter() - started)


def _await_quiet(cluster: Cluster, step_seconds: float, *, usual_ms: float | None) -> None:
    """Return once two intervals in a row take about the same CPU time.

    If ``usual_ms`` is known, they must also take no more than twice that per second: work of the
    start may be steady for a while. Returns after ``_QUIET_SECONDS_MAX``: work that does not end is
    not part of the start.
    """
    deadline = time.monotonic() + _QUIET_SECONDS_MAX
    before = None
    while time.monotonic() < deadline:
        cpu, started = cluster.cpu_seconds(), time.perf_counter()
        time.sleep(step_seconds)
        used_ms = (cluster.cpu_seconds() - cpu) / (time.perf_counter() - started) * 1000
        is_even = before is not None and abs(used_ms - before) <= max(_QUIET_MS, before / 10)
        if is_even and (usual_ms is None or used_ms <= 2 * usual_ms + _QUIET_MS):
            return
        before = used_ms
