"""The bounds on a node's and three nodes' costs, and whether several whole runs stay within them.

Ratios are taken within each run, and their median counts: how well a virtual machine has compiled
Kafka differs from run to run. A run in which the bare loops' rounds differ by more than
``BARE_SPREAD_MAX`` has no ratio to them: it has measured the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.peers import start, throughput
from bench.peers.figures import BARE, Figure, Key, Spread, spreads
from bench.peers.goals import KAFKA
from bench.sustained import replication

Runs = Sequence[Sequence[Figure]]
OWN = "tidelog"
MANY = "100 partitions"
BARE_SPREAD_MAX = 1.25  # the greatest of the rounds by the least


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a value may be."""

    text: str
    most: float
    seen: Callable[[Runs], list[float]]
    """Return the value of each run; of some, if others have failed."""
    is_of_all: bool = False  # ``seen`` returns one value, of all runs together


def ratio(workload: str, case: str, metric: str, other: str) -> Callable[[Runs], list[float]]:
    """Return the ratios of the runs' medians to those of another peer, or of the bare loops."""

    def of(medians: Mapping[Key, Spread]) -> float | None:
        own, others = (medians.get((workload, case, metric, name)) for name in (OWN, other))
        if own is None or not others or not others.median:
            return None
        if other == BARE and others.highest > BARE_SPREAD_MAX * others.lowest:
            return None
        return own.median / others.median

    def seen(runs: Runs) -> list[float]:
        return [value for run in runs if (value := of(spreads(run))) is not None]

    return seen


def spread(workload: str, case: str, metric: str) -> Callable[[Runs], list[float]]:
    """Return the greatest value of all rounds of all runs by the least."""

    def seen(runs: Runs) -> list[float]:
        found = spreads(figure for run in runs for figure in run)
        one = found.get((workload, case, metric, OWN))
        return [] if one is None else [one.highest / one.lowest]

    return seen


_BASE = (throughput.WORKLOAD, throughput.BASE)
_MANY = (throughput.WORKLOAD, MANY)
_THREE = (replication.WORKLOAD, replication.NAME)
_START = (start.WORKLOAD, start.NAME)
_PRODUCE, _FETCH = "produce_cpu_s_per_gb", "fetch_cpu_s_per_gb"

BOUNDS = (
    Bound(
        "CPU per GB, acks=all, three replicas, of three Kafka brokers'",
        0.6,
        ratio(*_THREE, replication.THREE, KAFKA),
    ),
    Bound(
        "CPU per GB of replication itself (three replicas less one), of the bare loops'",
        1.2,
        ratio(*_THREE, replication.ITSELF, BARE),
    ),
    Bound(
        "three replicas as a multiple of one, of the bare loops' multiple",
        1.2,
        ratio(*_THREE, replication.TIMES, BARE),
    ),
    Bound("CPU per GB produced, of Kafka's", 0.5, ratio(*_BASE, _PRODUCE, KAFKA)),
    Bound("CPU per GB fetched, of Kafka's", 1.0, ratio(*_BASE, _FETCH, KAFKA)),
    Bound("start to first record, of Kafka's", 0.1, ratio(*_START, "first_record_s", KAFKA)),
    Bound("idle memory, of Kafka's", 0.15, ratio(*_START, "idle_memory_mb", KAFKA)),
    Bound("CPU per GB produced to 100 partitions, of Kafka's", 0.5, ratio(*_MANY, _PRODUCE, KAFKA)),
    Bound(
        "the same of Tidelog, greatest of all rounds by the least",
        1.5,
        spread(*_MANY, _PRODUCE),
        is_of_all=True,
    ),
)


def table(runs: Runs) -> str:
    """Return a table of the bounds and the medians of the runs' values, with each of them."""
    lines = ["| goal | bound | seen | held |", "|---|---|---|---|"]
    for bound in BOUNDS:
        values = bound.seen(runs)
        if not values or len(values) != (1 if bound.is_of_all else len(runs)):
            seen, verdict = f"valid in {len(values)} of {len(runs)} runs", "not measured"
        else:
            median = statistics.median(values)
            each = ", ".join(f"{value:.3g}" for value in values)
            seen = f"{median:.3g}" + (f" ({each})" if len(values) > 1 else "")
            verdict = "held" if median <= bound.most else "missed"
        lines.append(f"| {bound.text} | ≤ {bound.most:g} | {seen} | {verdict} |")
    return "\n".join(lines)
