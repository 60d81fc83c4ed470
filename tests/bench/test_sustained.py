"""The verdicts on whole runs beside Apache Kafka."""

from __future__ import annotations

import os

from bench.peers import throughput
from bench.peers.figures import BARE, Figure
from bench.peers.goals import KAFKA
from bench.sustained import bare_loops, goals, replication

FETCH, PRODUCE = "fetch_cpu_s_per_gb", "produce_cpu_s_per_gb"


def run(own: float | None, kafka: float | None = 2.0) -> list[Figure]:
    return [
        Figure(throughput.WORKLOAD, throughput.BASE, goals.OWN, 0, FETCH, own),
        Figure(throughput.WORKLOAD, throughput.BASE, KAFKA, 0, FETCH, kafka),
    ]


def verdict(runs: goals.Runs, text: str = "CPU per GB fetched") -> str:
    (line,) = [one for one in goals.table(runs).splitlines() if text in one]
    return line.split("|")[-2].strip()


def test_a_ratio_is_judged_only_if_each_run_has_it() -> None:
    assert verdict([run(1.0), run(3.0), run(1.5)]) == "held"
    assert verdict([run(1.0), run(3.0), run(2.5)]) == "missed"
    assert verdict([run(1.0)]) == "held"
    assert verdict([run(1.0), run(None), run(1.0, None)]) == "not measured"
    assert verdict([run(None)]) == "not measured"


def test_a_spread_is_of_all_runs_together() -> None:
    def many(value: float) -> list[Figure]:
        return [Figure(throughput.WORKLOAD, goals.MANY, goals.OWN, 0, PRODUCE, value)]

    text = "greatest of all rounds"
    assert verdict([many(1.0), many(1.4)], text) == "held"
    assert verdict([many(1.0), many(1.6)], text) == "missed"


def test_bare_loops_whose_rounds_differ_give_no_ratio() -> None:
    def replicated(*bare: float) -> list[Figure]:
        place = (replication.WORKLOAD, replication.NAME)
        metric = replication.ITSELF
        loops = [Figure(*place, BARE, number, metric, one) for number, one in enumerate(bare)]
        return [Figure(*place, goals.OWN, 0, metric, 1.2), *loops]

    text = "replication itself"
    steady, unsteady = replicated(1.0, 1.1, 1.2), replicated(1.0, 1.1, 1.3)
    assert verdict([steady, steady], text) == "held"
    assert verdict([steady, unsteady], text) == "not measured"
    assert "valid in 1 of 2 runs" in goals.table([steady, unsteady])


def test_bare_loops_move_every_byte() -> None:
    core = min(os.sched_getaffinity(0))
    costs = bare_loops.measure(65, follower_count=2, client_core=core)
    assert all(cost > 0 for cost in costs)
