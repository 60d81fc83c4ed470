"""Tidelog's goals, as ratios within one run, and whether a run has reached them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.peers import latency, partitions, requests, start, throughput
from bench.peers.figures import BARE, Key, Spread

KAFKA, TANSU = "kafka", "tansu"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a metric of Tidelog, absolute or relative to another peer's."""

    text: str
    workload: str
    case: str
    metric: str
    bound: float
    relative_to: str | None
    is_at_least: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal and the run's value for it, ``None`` if it was not measured."""

    goal: Goal
    value: float | None

    @property
    def verdict(self) -> str:
        """Return «held», «missed» or «not measured»."""
        if self.value is None:
            return "not measured"
        is_held = (
            self.value >= self.goal.bound
            if self.goal.is_at_least
            else self.value <= self.goal.bound
        )
        return "held" if is_held else "missed"


def judge(spreads: Mapping[Key, Spread], goals: Sequence[Goal] | None = None) -> list[Judged]:
    """Return every goal, by default ``GOALS``, with the ratio of the medians."""
    wanted = GOALS if goals is None else goals
    return [Judged(goal, _value(goal, spreads)) for goal in wanted]


def _value(goal: Goal, spreads: Mapping[Key, Spread]) -> float | None:
    def median(peer: str) -> float | None:
        spread = spreads.get((goal.workload, goal.case, goal.metric, peer))
        return None if spread is None else spread.median

    own = median("tidelog")
    if own is None or goal.relative_to is None:
        return own
    other = median(goal.relative_to)
    if not other:
        return None
    # A cost is compared as a cost, even if the goal is stated for its inverse.
    return other / own if goal.relative_to == BARE else own / other


def _both(
    text: str, workload: str, case: str, metric: str, bound: float, *, is_at_least: bool = False
) -> list[Goal]:
    """Return the goal against Kafka, and the goal to be better than Tansu."""
    return [
        Goal(f"{text}, of {name}'s", workload, case, metric, limit, peer, is_at_least)
        for peer, name, limit in ((KAFKA, "Kafka", bound), (TANSU, "Tansu", 1.0))
    ]


_BASE = (throughput.WORKLOAD, throughput.BASE)
_START = (start.WORKLOAD, start.NAME)
_MANY = (partitions.WORKLOAD, partitions.name_of(partitions.COUNTS[-1]))

GOALS: tuple[Goal, ...] = (
    *_both("CPU per GB produced, 1 KB records", *_BASE, "produce_cpu_s_per_gb", 0.5),
    *_both("CPU per GB fetched, 1 KB records", *_BASE, "fetch_cpu_s_per_gb", 0.5),
    Goal(
        "GB fetched per CPU-second, of the bare sendfile loop's",
        *_BASE,
        "fetch_cpu_s_per_gb",
        0.6,
        BARE,
        is_at_least=True,
    ),
    *_both(
        "small produce requests per CPU-second",
        requests.WORKLOAD,
        requests.NAME,
        "requests_per_cpu_s",
        1.0,
        is_at_least=True,
    ),
    *_both("end-to-end p99 at 10 MB/s", latency.WORKLOAD, latency.name_of(10), "p99_ms", 0.5),
    *_both("start to first record", *_START, "first_record_s", 0.1),
    *_both("idle memory", *_START, "idle_memory_mb", 0.15),
    Goal(
        "start to first record with 10,000 partitions, s",
        *_MANY,
        "restart_first_record_s",
        10.0,
        None,
    ),
    Goal("memory with 10,000 partitions, MB", *_MANY, "idle_memory_mb", 1000.0, None),
)
