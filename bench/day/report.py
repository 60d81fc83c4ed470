"""Writes the simulated day's tables: Markdown for people, CSV for further processing."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.cost.counts import METADATA_READ, METADATA_WRITE

from bench.day import bill, contention, diskless, limits, rivals
from bench.day.amounts import Amounts
from bench.day.hours import Day, Hour
from bench.day.operations import COSTS
from bench.day.prices import MACHINES
from bench.day.scenario import DAY_S, HOUR_S, Scenario
from tools.aws_cost import PRICES, Line

FACTORS = (1.0, 2.0, 5.0, 10.0)
PROCESSES = (1, 2, 3, 4)
COMMIT_RATES = (1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 60.0)  # a second

Row = Sequence[str]


def markdown(rows: Sequence[Row]) -> str:
    """Return a table with the first row as its head; all but the first column align right."""
    head = rows[0]
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def operations_table() -> str:
    """Return the costs of each operation, from ``operations``."""
    rows = [["operation", "write units", "of them on the hot keys", "read units", "S3"]]
    for name, cost in COSTS.items():
        hot = {
            key: units
            for key, units in cost.write_units.items()
            if key in ("#cluster", "#changelog")
        }
        requests = {what: n for what, n in cost.requests.items() if what != "DELETE"}
        rows.append(
            [name, _number(cost.writes), _named(hot), _number(cost.reads), _named(requests)]
        )
    return markdown(rows)


def traffic_table(day: Day) -> str:
    """Return bytes and CPU time by hour."""
    rows = [
        [
            "hour",
            "produced GB/s",
            "all out GB/s",
            "between zones GB/s",
            "busiest machine out GB/s",
            "in GB/s",
            "cores of all",
            "busiest node's core",
            "fullest disk GB",
        ]
    ]
    for number, hour in enumerate(day.hours):
        across = sum(hour.across_gb.values())
        rows.append(
            [
                f"{number:02d}",
                *(f"{gb / HOUR_S:.2f}" for gb in (hour.produced_gb, hour.sent_gb, across)),
                f"{hour.machine_out_peak:.2f}",
                f"{hour.machine_in_peak:.2f}",
                f"{hour.core_seconds / HOUR_S:.0f}",
                f"{hour.broker_cores_peak:.2f}",
                f"{hour.local_gb_peak:,.0f}",
            ]
        )
    return markdown(rows)


def table_table(day: Day) -> str:
    """Return the DynamoDB units of the day, by purpose."""
    total = day_total(day)
    writes, reads = total.load.writes, total.load.reads
    rows = [["purpose", "write units/s", "read units/s"]]
    rows += [
        [purpose, f"{writes[purpose] / DAY_S:,.1f}", f"{reads[purpose] / DAY_S:,.1f}"]
        for purpose in sorted(
            writes.keys() | reads.keys(),
            key=lambda p: (
                -writes[p] * PRICES.per_unit(METADATA_WRITE)
                - reads[p] * PRICES.per_unit(METADATA_READ)
            ),
        )
    ]
    sums = (sum(writes.values()) / DAY_S, sum(reads.values()) / DAY_S)
    return markdown([*rows, ["**all**", *(f"**{units:,.1f}**" for units in sums)]])


def keys_table(day: Day) -> str:
    """Return the hottest partition keys, each in its worst second."""
    total = day_total(day)
    writes, reads = total.key_writes_peak, total.key_reads_peak
    rows = [["partition key", "write units/s, limit 1,000", "read units/s, limit 3,000"]]
    rows += [
        [key, f"{writes[key]:,.0f}", f"{reads[key]:,.0f}"]
        for key in sorted(writes.keys() | reads.keys(), key=lambda k: -writes[k] - reads[k])
    ]
    return markdown(rows)


def requests_table(day: Day) -> str:
    """Return the S3 requests of the day."""
    rows = [["requests", "a day", "a second"]]
    for what, count in sorted(day_total(day).requests.items(), key=lambda pair: -pair[1]):
        rows.append([what, f"{count:,.0f}", f"{count / DAY_S:,.2f}"])
    return markdown(rows)


def bill_table(day: Day) -> str:
    """Return the bill of the day."""
    lines, produced = bill.of_day(day), day_total(day).produced_gb
    rows = [["line", "$ a day", "$ a TB produced", "share"]]
    total = sum(line.dollars for line in lines)
    for line in [*lines, Line("**all**", total)]:
        per_tb = line.dollars / produced * 1000
        rows.append(
            [line.what, f"{line.dollars:,.0f}", f"{per_tb:,.2f}", f"{line.dollars / total:.1%}"]
        )
    return markdown(rows)


def across_table(day: Day) -> str:
    """Return the bytes between zones in the day, by cause."""
    total = day_total(day)
    rows = [["between zones", "TB a day", "of what is produced"]]
    for why, gb in sorted(total.across_gb.items(), key=lambda pair: -pair[1]):
        rows.append([why, f"{gb / 1000:,.1f}", f"{gb / total.produced_gb:.2f}"])
    return markdown(rows)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in the order in which they break, and the use of each at FACTORS."""

    points: Sequence[tuple[str, float | None]]
    used: Sequence[limits.Pressures]


def both_limits(scenario: Scenario) -> tuple[Limits, Limits]:
    """Return the limits of the same cluster under more load, and of a cluster that grows too."""
    peak = limits.Peak(scenario)

    def grown(factor: float) -> limits.Pressures:
        return limits.grown_pressures(scenario, factor)

    return (
        Limits(limits.breaking_points(peak.pressures), [peak.pressures(f) for f in FACTORS]),
        Limits(limits.breaking_points(grown), [grown(f) for f in FACTORS]),
    )


def limits_table(found: Limits) -> str:
    """Return the limits as a table."""
    rows = [["limit", "breaks at", *(f"used at ×{factor:g}" for factor in FACTORS)]]
    for name, factor in found.points:
        if factor is None:
            breaks = f"over ×{limits.FACTOR_MAX:g}"
        else:
            breaks = f"**×{factor:.2f}**" if factor < 10 else f"**×{factor:.0f}**"
        rows.append([name, breaks, *(f"{pressures[name]:.0%}" for pressures in found.used)])
    return markdown(rows)


def contention_table(scenario: Scenario) -> str:
    """Return the outcomes of logged commits at several rates, and after the loss of a zone."""
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
    return markdown(rows)


def processes_table(scenario: Scenario) -> str:
    """Return the effects of the number of nodes on a machine, at the peak."""
    rows = [
        [
            "nodes a machine",
            "nodes",
            "busiest node's core",
            "key broker-lease, reads",
            "ids of a zone",
        ]
    ]
    for count in PROCESSES:
        other = dataclasses.replace(scenario, processes_per_machine=count)
        found = limits.Peak(other).pressures(1.0)
        ids = other.brokers / 3 / limits.IDS_PER_ZONE
        rows.append(
            [
                str(count),
                str(other.brokers),
                f"{found['core of the busiest node']:.0%}",
                f"{found['key broker-lease, reads']:.0%}",
                f"{ids:.0%}",
            ]
        )
    return markdown(rows)


def machines_table(scenario: Scenario) -> str:
    """Return the load at which the machines' network is full, by machine size."""
    rows = [["machine", "$ a day for all", "network of one GB/s", "breaks at", "disk at ×1"]]
    for machine in MACHINES:
        other = dataclasses.replace(scenario, machine=machine)
        found = limits.Peak(other).pressures(1.0)
        network = max(used for name, used in found.items() if name.startswith("network"))
        disk = found["local disk, one hour and active segments"]
        rows.append(
            [
                machine.name,
                f"{other.machines * machine.hour * 24:,.0f}",
                f"{machine.network_gb_per_s:.2f}",
                f"×{1 / network:.2f}",
                f"{disk:.0%}",
            ]
        )
    return markdown(rows)


def rivals_table(day: Day) -> str:
    """Return the bills of the same traffic on other systems."""
    scenario = day.scenario
    ours = Amounts()
    for line in bill.of_day(day):
        kind = {"S3 storage": "storage", "machines": "machines"}.get(line.what, "requests")
        kind = line.what if line.what == "transfer between zones" else kind
        ours[kind] += line.dollars
    sized = Amounts(ours)
    count = rivals.machine_count(
        scenario, scenario.machine, sent=2 + scenario.readers + 1, received=3
    )
    sized["machines"] = count * scenario.machine.hour * 24
    bills = {
        f"Tidelog, {scenario.machines} machines": ours,
        f"Tidelog, {count} machines": sized,
        "Kafka with a tier": _by_kind(rivals.tiered_kafka(scenario)),
        "Kafka on EBS": _by_kind(rivals.kafka(scenario)),
        "direct to S3": _by_kind(rivals.direct_to_s3(scenario)),
    }
    kinds = ("machines", "transfer between zones", "storage", "requests")
    rows: list[Row] = [["$ a day", *bills]]
    rows += [[kind, *(f"{one[kind]:,.0f}" for one in bills.values())] for kind in kinds]
    rows.append(["**all**", *(f"**{sum(one.values()):,.0f}**" for one in bills.values())])
    produced_tb = scenario.produced_gb_per_s * DAY_S / 1000
    rows.append(["a TB", *(f"{sum(one.values()) / produced_tb:,.1f}" for one in bills.values())])
    return markdown(rows)


def diskless_table(day: Day) -> str:
    """Return the bills of the day with replicated and with diskless topics."""
    bills = {name: _by_kind(lines) for name, lines in diskless.bills(day).items()}
    rows: list[Row] = [["$ a day", *bills]]
    rows += [
        [kind, *(f"{one[kind]:,.0f}" for one in bills.values())] for kind in bills["replicated"]
    ]
    rows.append(["**all**", *(f"**{sum(one.values()):,.0f}**" for one in bills.values())])
    produced_gb = day_total(day).produced_gb
    rows.append(["a GB", *(f"{sum(one.values()) / produced_gb:.4f}" for one in bills.values())])
    return markdown(rows)


def _by_kind(lines: Iterable[Line]) -> Amounts:
    return Amounts({line.what: line.dollars for line in lines})


def day_total(day: Day) -> Hour:
    """Return the sum of the hours; a peak is the highest of all."""
    total = Hour()
    for hour in day.hours:
        total.produced_gb += hour.produced_gb
        total.over_network_s += hour.over_network_s
        total.copied += hour.copied
        total.logged_commits += hour.logged_commits
        total.across_gb.add(hour.across_gb)
        total.requests.add(hour.requests)
        total.load.add(hour.load)
        total.key_writes_peak.raise_to(hour.key_writes_peak)
        total.key_reads_peak.raise_to(hour.key_reads_peak)
    return total


def write_hours(day: Day, path: Path) -> None:
    """Write all figures of each hour, one row per hour."""
    rows = []
    for number, hour in enumerate(day.hours):
        row: dict[str, float] = {"hour": number}
        for field in dataclasses.fields(hour):
            value = getattr(hour, field.name)
            if isinstance(value, Amounts):
                row |= {f"{field.name}: {key}": amount for key, amount in value.items()}
            elif isinstance(value, (int, float)):
                row[field.name] = value
        row |= {f"write units: {key}": units for key, units in hour.load.writes.items()}
        row |= {f"read units: {key}": units for key, units in hour.load.reads.items()}
        row |= {f"$: {line.what}": line.dollars for line in bill.of_hour(day.scenario, hour)}
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval=0)
        writer.writeheader()
        writer.writerows(rows)


def write_limits(loaded: Limits, grown: Limits, path: Path) -> None:
    """Write each limit of both kinds of growth, with the factor at which it breaks."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["what grows", "limit", "breaks at"])
        writer.writerows(("load", *point) for point in loaded.points)
        writer.writerows(("cluster and load", *point) for point in grown.points)


def _number(units: float) -> str:
    return f"{units:g}" if units else ""


def _named(units: dict[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in units.items())
