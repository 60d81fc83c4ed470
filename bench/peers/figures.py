"""Measured figures and their medians, and the problems that replaced figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bench.peers.arena import Arena
from bench.peers.peer import Peer

BARE = "bare"
"""In place of a peer's name: the bare loops of the machine."""


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the matrix: work that runs against every peer in turn."""

    workload: str
    name: str
    run: Callable[[Arena, Peer], Mapping[str, float]]
    """Measure once and return figures by metric; an exception becomes the cell's problem."""
    bare: Callable[[Arena], Mapping[str, float]] | None = None
    """The same without a broker, called on the server core."""
    warm_up_rounds: int = 1
    """Rounds that are run first and not counted."""
    repeats_max: int | None = None
    """Slow cases are repeated less often."""
    peers: tuple[str, ...] | None = None
    """The only peers with this case; ``None`` means all."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, or the reason for its absence."""

    workload: str
    case: str
    peer: str
    round_index: int
    metric: str
    value: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one metric in all rounds."""

    median: float
    lowest: float
    highest: float


Key = tuple[str, str, str, str]
"""Workload, case, metric, peer."""


def spreads(figures: Iterable[Figure]) -> dict[Key, Spread]:
    """Return the metrics' medians and extremes, in the order of measurement."""
    values: dict[Key, list[float]] = {}
    for figure in figures:
        if figure.value is not None:
            key = (figure.workload, figure.case, figure.metric, figure.peer)
            values.setdefault(key, []).append(figure.value)
    return {
        key: Spread(statistics.median(some), min(some), max(some)) for key, some in values.items()
    }


def problems(figures: Iterable[Figure]) -> dict[tuple[str, str, str], str]:
    """Return the first problem of each workload, case and peer that had one."""
    found: dict[tuple[str, str, str], str] = {}
    for figure in figures:
        if figure.problem:
            found.setdefault((figure.workload, figure.case, figure.peer), figure.problem)
    return found
