"""The verdicts on whole runs beside Apache Kafka."""

from __future__ import annotations

from bench.peers import throughput
from bench.peers.figures import Figure
from bench.peers.goals import KAFKA
from bench.sustained import goals

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
