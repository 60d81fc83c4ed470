"""``python -m bench.day``: a day at 1 GB/s over 60 machines in three zones.

Prints tables; writes bench/results/day.md, day-hours.csv, day-limits.csv and, with
matplotlib, day.png. Under a minute. Nothing is measured here: what a byte takes of a
processor is from bench/README.md, what an operation takes of DynamoDB and S3 from
``bench.day.measure``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.day import contention, limits, plot, report
from bench.day.scenario import Scenario
from bench.day.simulation import simulate

RESULTS = Path(__file__).parents[1] / "results"
COMMIT_RATES = (1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0)  # a second


def main() -> None:
    """Simulate, print, write."""
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
    peak = limits.Peak(scenario)
    loaded = limits.breaking_points(peak.pressures)
    grown = limits.breaking_points(lambda factor: limits.grown_pressures(scenario, factor))
    points = [("load", *point) for point in loaded] + [("cluster and load", *p) for p in grown]
    report.write_limits(points, RESULTS / "day-limits.csv")
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
        report.limits_table(loaded, [peak.pressures(f) for f in report.FACTORS]),
        "## A larger cluster with as much more load",
        report.limits_table(grown, [limits.grown_pressures(scenario, f) for f in report.FACTORS]),
        "## Logged commits",
        contention_table(scenario),
        "## Nodes and machines",
        report.processes_table(scenario),
        report.machines_table(scenario),
        "## Elsewhere",
        report.rivals_table(day),
    ]


def contention_table(scenario: Scenario) -> str:
    """Return what becomes of logged commits at several rates, and of those of a lost zone."""
    latencies = {
        "latency_s": scenario.table_change_latency_s,
        "read_latency_s": scenario.table_read_latency_s,
    }
    rows = [["logged commits", "transactions sent for each", "median", "slowest", "given up"]]
    outcomes = [
        (
            f"{rate:g} a second",
            contention.sustained(
                rate, scenario.brokers, seconds=60, seed=scenario.seed, **latencies
            ),
        )
        for rate in COMMIT_RATES
    ]
    for factor in (0.5, 1, 2, 5):
        writers = round(scenario.brokers * factor * 2 / 3)
        outcome = contention.burst([1] * writers, seed=scenario.seed, **latencies)
        outcomes.append((f"{writers} nodes at once", outcome))
    for what, outcome in outcomes:
        wanted = outcome.written + outcome.given_up
        rows.append(
            [
                what,
                f"{outcome.transactions / wanted:.1f}",
                f"{outcome.median_s * 1000:.0f} ms",
                f"{outcome.slowest_s:.1f} s",
                f"{outcome.given_up / wanted:.0%}",
            ]
        )
    return report.markdown(rows)


def _clock(hours: float) -> str:
    seconds = round(hours * 3600)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


if __name__ == "__main__":
    main()
