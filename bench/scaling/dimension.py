"""A thing that a cluster can have many of, and the allowed cost of one more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from bench.scaling.cluster import Cluster
from bench.scaling.fit import Noise
from bench.scaling.workload import ProduceAndFetch, Workload


class Measure(Enum):
    """The measures of every step, named as in the table."""

    IDLE_CPU = "idle CPU, ms a second"
    WORK_CPU = "workload, CPU µs an operation"
    WORK_P99 = "workload, p99 ms"
    MEMORY = "memory, MB"
    START_CPU = "start, CPU s"
    READ_UNITS = "store, read units a second"
    WRITE_UNITS = "store, write units a second"
    WORK_UNITS = "store, units of both an operation"


JUDGED: Mapping[Measure, Noise] = {
    Measure.IDLE_CPU: Noise(2.5, 0.15),
    Measure.WORK_CPU: Noise(30.0, 0.2),  # a busy machine evicts caches
    Measure.MEMORY: Noise(3.0, 0.05),
    Measure.START_CPU: Noise(0.25, 0.15),
    Measure.READ_UNITS: Noise(2.0, 0.2),  # a busy machine polls late
    Measure.WRITE_UNITS: Noise(1.0, 0.1),
    Measure.WORK_UNITS: Noise(0.5, 0.1),
}
"""Measures that fail if too steep, with the noise between two runs. p99 is time: informative."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The allowed cost of one more, in the measure's unit, and the reason."""

    per_unit: float
    why: str


class Grown(Protocol):
    """The things of a dimension on one cluster."""

    def grow(self, cluster: Cluster, count: int) -> None:
        """Increase their number to ``count``."""

    def close(self) -> None:
        """Release the client's resources: connections, threads."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A thing that can be numerous. Measures not in ``may_grow`` must stay constant."""

    name: str
    what: str
    """The unit, and the workload that is measured beside it."""
    steps: Sequence[int]
    make: Callable[[], Grown]
    may_grow: Mapping[Measure, Growth]
    nodes: int = 1
    is_kept: bool = True
    """Whether the things outlive a restart, so that a start is measured at each step."""
    hot_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the workload's topic."""
    workload: Callable[[Grown], Workload] = lambda _: ProduceAndFetch()
    can_be_kafka: bool = True
    """Whether the dimension can be measured on Kafka."""
