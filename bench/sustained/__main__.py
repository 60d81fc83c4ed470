"""``python -m bench.sustained``: several whole runs of a node and three, beside Apache Kafka.

Each run starts new servers: one broker of each kind for starts, memory, produce and fetch, then
three of each for acks=all. It prints the goals last, and writes to ``bench/results/sustained``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.free_memory import touch_free_memory
from bench.machine_facts import machine_facts
from bench.peers import report, start, throughput
from bench.peers.clients import Load
from bench.peers.figures import Case, Figure
from bench.peers.peer import Kafka, Peer, Tidelog
from bench.peers.run import run_cases
from bench.sustained import goals, replication
from bench.sustained.trios import KafkaTrio, TidelogTrio

_RESULTS = Path(__file__).resolve().parent.parent / "results" / "sustained"
_PEERS = {"tidelog": "Tidelog", "kafka": "Kafka"}
_LOAD_BYTES, _QUICK_BYTES = 300_000_000, 20_000_000


def main() -> None:
    """Run all cases several times; print the goals last."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    arguments = _parser().parse_args()
    began, load_before = time.monotonic(), os.getloadavg()[0]
    touch_free_memory()
    groups = _groups(is_quick=arguments.quick, has_kafka=not arguments.without_kafka)
    for _, peers in groups:
        for peer in peers:
            peer.install()
    runs: list[list[Figure]] = []
    for number in range(arguments.runs):
        runs.append([])
        for cases, peers in groups:
            wanted = [one for one in cases if arguments.only in (None, one.workload)]
            with tempfile.TemporaryDirectory(prefix="bench-sustained-") as folder:
                measured = run_cases(wanted, peers, repeats=arguments.repeats, folder=Path(folder))
                for figure in measured:
                    runs[-1].append(figure)
                    _tell(number, figure, time.monotonic() - began)
    facts = _facts(arguments, load_before, time.monotonic() - began)
    _write(runs, facts)
    print(goals.table(runs))
    print(f"written to {_RESULTS}")


def _groups(*, is_quick: bool, has_kafka: bool) -> list[tuple[list[Case], tuple[Peer, ...]]]:
    """Return groups of cases, each with its servers: those of the others would use the core."""
    total_bytes = _QUICK_BYTES if is_quick else _LOAD_BYTES
    work, many = (
        throughput.Work(Load(total_bytes=total_bytes, partition_count=count)) for count in (1, 100)
    )
    alone = [
        *(dataclasses.replace(case, repeats_max=1) for case in start.cases()),
        Case(throughput.WORKLOAD, throughput.BASE, work, warm_up_rounds=2),
        Case(throughput.WORKLOAD, goals.MANY, many, warm_up_rounds=1),
    ]
    three = replication.cases(total_bytes)
    if not has_kafka:
        return [(alone, (Tidelog(),)), (three, (TidelogTrio(),))]
    return [(alone, (Tidelog(), Kafka())), (three, (TidelogTrio(), KafkaTrio()))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sustained",
        description="Compares one and three nodes with as many brokers of Apache Kafka.",
    )
    workloads = [start.WORKLOAD, throughput.WORKLOAD, replication.WORKLOAD]
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="whole runs (3)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds of each (3)")
    parser.add_argument("--only", choices=workloads, help="one of the workloads")
    parser.add_argument(
        "--without-kafka",
        action="store_true",
        help="only nodes, and the bare loops of replication",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small loads, which show only that every cell runs"
    )
    return parser


def _write(runs: Sequence[Sequence[Figure]], facts: Sequence[str]) -> None:
    """Write the goals, and tables and rounds of each run."""
    _RESULTS.mkdir(parents=True, exist_ok=True)
    parts = ["# Sustained figures", "\n".join(f"- {fact}" for fact in facts), goals.table(runs)]
    for number, figures in enumerate(runs, start=1):
        report.write_csv(figures, _RESULTS / f"figures-{number}.csv")
        parts.append(report.page(figures, (), title=f"Run {number}", goals=(), peers=_PEERS))
    (_RESULTS / "report.md").write_text("\n\n".join(parts))


def _tell(number: int, figure: Figure, seconds: float) -> None:
    value = f"failed: {figure.problem}" if figure.value is None else f"{figure.value:.4g}"
    where = f"run {number + 1}, {figure.workload}, {figure.case}, {figure.peer}"
    print(f"{seconds:6.0f} s  {where}: {figure.metric} {value}", flush=True)


def _facts(arguments: argparse.Namespace, load_before: float, seconds: float) -> list[str]:
    return [
        *machine_facts(seconds=seconds, load_before=load_before),
        "servers on one core, all clients on another",
        f"{arguments.runs} whole runs, each with {arguments.repeats} rounds, the servers in turns",
        *(["quick: the loads are too small for the figures to count"] if arguments.quick else []),
        Tidelog().description(),
        Kafka().description(),
    ]


if __name__ == "__main__":
    main()
