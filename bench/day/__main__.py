"""``python -m bench.day``: simulates a day at 1 GB/s on 60 machines in three zones.

Prints tables; writes bench/results/day.md, day-hours.csv, day-limits.csv and, with
matplotlib, day.png. Takes less than a minute. It measures nothing: the CPU time of a byte is from
bench/README.md, and the DynamoDB units and S3 requests of an operation are from
``bench.day.measure``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.day import plot, report
from bench.day.scenario import Scenario
from bench.day.simulation import simulate

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Simulate the day; print and write the results."""
    usual = Scenario()
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb-per-s", type=float, default=usual.produced_gb_per_s)
    arguments.add_argument("--machines-per-zone", type=int, default=usual.machines_per_zone)
    arguments.add_argument("--nodes-per-machine", type=int, default=usual.processes_per_machine)
    arguments.add_argument("--batch-bytes", type=int, default=usual.batch_bytes)
    arguments.add_argument("--seed", type=int, default=usual.seed)
    given = arguments.parse_args()
    scenario = Scenario(
        seed=given.seed,
        machines_per_zone=given.machines_per_zone,
        processes_per_machine=given.nodes_per_machine,
        produced_gb_per_s=given.gb_per_s,
        batch_bytes=given.batch_bytes,
    )
    RESULTS.mkdir(exist_ok=True)
    text = "\n\n".join(_sections(scenario)) + "\n"
    print(text)
    (RESULTS / "day.md").write_text(text)


def _sections(scenario: Scenario) -> list[str]:
    day = simulate(scenario)
    report.write_hours(day, RESULTS / "day-hours.csv")
    if not plot.draw(day, RESULTS / "day.png"):
        print("no picture: matplotlib is not installed\n")
    loaded, grown = report.both_limits(scenario)
    report.write_limits(loaded, grown, RESULTS / "day-limits.csv")
    limits_tables = [report.limits_table(loaded), report.limits_table(grown)]
    return [
        "## What befell",
        "\n".join(f"- {_clock(event.at_h)} {event.what}" for event in day.events),
        "## Hours",
        report.traffic_table(day),
        "## Between zones",
        report.across_table(day),
        "## DynamoDB",
        report.table_table(day),
        report.keys_table(day),
        "## S3",
        report.requests_table(day),
        "## Dollars",
        report.bill_table(day),
        "## The same cluster under more load",
        limits_tables[0],
        "## A larger cluster with as much more load",
        limits_tables[1],
        "## Logged commits",
        report.contention_table(scenario),
        "## Nodes and machines",
        report.processes_table(scenario),
        report.machines_table(scenario),
        "## Diskless topics",
        report.diskless_table(day),
        "## Elsewhere",
        report.rivals_table(day),
    ]


def _clock(hours: float) -> str:
    seconds = round(hours * 3600)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


if __name__ == "__main__":
    main()
