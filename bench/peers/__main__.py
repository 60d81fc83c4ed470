"""``python -m bench.peers``: measure, then write tables, CSV and plots to bench/results.

``--quick`` measures only the goals' figures, in a few minutes, and writes to files of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.free_memory import touch_free_memory
from bench.machine_facts import machine_facts
from bench.peers import (
    cold,
    kafka_tools,
    latency,
    partitions,
    plots,
    report,
    requests,
    start,
    throughput,
)
from bench.peers.cores import server_and_client_core
from bench.peers.figures import Case, Figure, spreads
from bench.peers.goals import judge
from bench.peers.peer import PEERS
from bench.peers.run import run_cases
from tools.places import ToolAbsent

_RESULTS = Path(__file__).resolve().parent.parent / "results"
_FOLDERS = {False: "peers", True: "peers-quick"}


def main() -> None:
    """Run the requested cases; print the goals last."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    arguments = _parser().parse_args()
    began, load_before = time.monotonic(), os.getloadavg()[0]
    touch_free_memory()
    for peer in PEERS:
        try:
            peer.install()
        except ToolAbsent as absent:
            print(f"{peer.name} will fail everywhere: {absent}")
    cases = [
        case
        for case in _cases(is_quick=arguments.quick)
        if not arguments.only or case.workload in arguments.only
    ]
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
        for figure in run_cases(cases, PEERS, repeats=arguments.repeats, folder=Path(folder)):
            figures.append(figure)
            _tell(figure, time.monotonic() - began)
    results = arguments.results or _RESULTS / _FOLDERS[arguments.quick]
    results.mkdir(parents=True, exist_ok=True)
    report.write_csv(figures, results / "figures.csv")
    pictures = plots.write_plots(spreads(figures), results)
    facts = _facts(arguments.repeats, load_before, time.monotonic() - began)
    (results / "report.md").write_text(report.page(figures, facts, pictures))
    print(report.goal_table(judge(spreads(figures))))
    print(f"written to {results}")


def _cases(*, is_quick: bool) -> list[Case]:
    # Cases that start their own servers come first: nothing else runs on the core yet. Small
    # requests are next, because they make a virtual machine compile soonest.
    cases = [
        *start.cases(),
        *partitions.cases(is_quick=is_quick),
        *requests.cases(),
        *throughput.cases(is_quick=is_quick),
        *latency.cases(is_quick=is_quick),
    ]
    return cases if is_quick else [*cases, *cold.cases(), *kafka_tools.cases()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="Compares Tidelog with Apache Kafka and Tansu."
    )
    workloads = sorted({case.workload for case in _cases(is_quick=False)})
    parser.add_argument("--quick", action="store_true", help="only the figures of the goals")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds (3)")
    parser.add_argument("--results", type=Path, help="the folder to write to")
    parser.add_argument(
        "--only",
        action="append",
        choices=workloads,
        metavar="WORKLOAD",
        help=f"one of {', '.join(workloads)}; may be repeated",
    )
    return parser


def _tell(figure: Figure, seconds: float) -> None:
    value = f"failed: {figure.problem}" if figure.value is None else f"{figure.value:.4g}"
    where = f"{figure.workload}, {figure.case}, {figure.peer}"
    print(f"{seconds:6.0f} s  {where}: {figure.metric} {value}", flush=True)


def _facts(repeats: int, load_before: float, seconds: float) -> Sequence[str]:
    server_core, client_core = server_and_client_core()
    return [
        *machine_facts(seconds=seconds, load_before=load_before),
        f"servers on core {server_core}, all clients on core {client_core}; "
        "the machine's own work is on both",
        f"medians of {repeats} rounds (lowest–highest), the peers in turns in each",
        *(peer.description() for peer in PEERS),
    ]


if __name__ == "__main__":
    main()
