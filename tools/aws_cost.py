"""A cluster's monthly costs on AWS, computed from prices, a load and measured figures.

``python -m tools.aws_cost`` prints the table of docs/deploy.md; with other prices or another
load, change ``WORKLOADS``, or call ``monthly_cost``. Prices, and what counts cost by them, are
those of the cluster's own ledger, ``tidelog_core.cost``. Pure; US dollars; a GB is 10^9 bytes; a
month has 730 hours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.cost.counts import (
    BALANCER,
    ENDPOINT,
    FUNCTION_EVENT,
    FUNCTION_TIME,
    LOGS,
    MACHINE_VOLUME,
    METADATA_READ,
    METADATA_WRITE,
    MONTH_HOURS,
    OBJECT_PUT,
    OBJECT_STORAGE,
    ZONE_TRANSFER,
    item_of,
)
from tidelog_core.cost.counts import FUNCTION_CALL as FUNCTION_CALL_ITEM
from tidelog_core.cost.counts import machine as machine_item
from tidelog_core.cost.prices import PriceTable, list_prices
from tidelog_core.metadata.stores.dynamodb_units import read_units

from bench.day.operations import COSTS, ITEM_BYTES

HOURS = float(MONTH_HOURS)  # a month
SECONDS = HOURS * 3600
ZONES = 3

# The work of a node and of a segment: constants of the code, and figures measured in
# bench/README.md. The DynamoDB units of an operation come from bench.day, which counts them by
# running the code.
REPLICAS = 3
PRODUCED_GB_PER_CPU_SECOND = 0.28  # of all nodes' CPU, acks=all, three replicas
FETCHED_GB_PER_CPU_SECOND = 4.7  # on a busy machine; 6.4 on an idle one
LEASE_WRITES_PER_SECOND = 1 / 3  # of a node: broker.heartbeat.interval.ms
POLLS_PER_SECOND = 5  # of a node: metadata.poll.interval.ms
LEASE_READINGS_PER_SECOND = 2  # of a node; each reads the leases of all nodes
# The operations of a segment's life. The log start moves once for all segments of a partition
# that expire within five minutes. The worst case is counted: once for each segment.
SEGMENT_LIFE = tuple(
    COSTS[operation]
    for operation in (
        "begin a copy",
        "finish a copy",
        "a node advances a log start",
        "a node begins a deletion",
        "a node drops a segment",
    )
)
FUNCTION_CALL = COSTS["a function finds nothing due"]  # one for each copied segment
# The additional reads of every node after a log start has moved.
CHANGE_READS = (
    COSTS["poll, a partition has changed"].reads - COSTS["poll, nothing has changed"].reads
)
OBJECTS_PER_SEGMENT = 3  # its log, its index, and the log start written when it expires
# Of a group of up to 15 members whose page has its other offsets of the topic; 6 units without
# others.
OFFSET_COMMIT = COSTS["commit 4 of the 60 offsets in a page"]
FUNCTION_GB = 0.5
FUNCTION_SECONDS_PER_SEGMENT = 1.5
SWEEPS_PER_HOUR, SWEEP_SECONDS = 4, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An instance type, which has a price."""

    name: str
    cpus: int
    network_mb_per_s: float  # sustained, in each direction
    disk_gb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The clients' load. Megabytes are counted as sent, so compressed if the producer does it."""

    produced_mb_per_s: float
    readers: float = 2.0  # reads of each record soon after it was produced
    retention_days: float = 7.0
    segment_mb: float = 512.0  # mean size of a sealed segment; small where partitions are idle
    local_hours: float = 1.0  # log.local.retention.ms
    offset_commits_per_s: float = 10.0
    produced_elsewhere: float = 2 / 3  # share that reaches its leader from another zone
    read_elsewhere: float = 0.0  # share read across zones; 0 with client.rack set
    utilisation: float = 0.5  # of network, CPU and disk; the rest is for the loss of a zone


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the bill."""

    what: str
    dollars: float


PRICES = list_prices()
MACHINE = Machine(name="i4i.large", cpus=2, network_mb_per_s=97.0, disk_gb=468.0)
# CloudWatch's two and that of secrets in every zone, CloudFormation's in one.
ENDPOINTS = PRICES.prices[ENDPOINT].number
WORKLOADS = tuple(Workload(produced_mb_per_s=rate) for rate in (1.0, 10.0, 100.0))


def machine_count(load: Workload, machine: Machine = MACHINE) -> int:
    """Return the number of machines for the load, by the scarcest of network, CPU and disk.

    Every zone has the same number, at least one.
    """
    rate = load.produced_mb_per_s
    sent = rate * (REPLICAS - 1 + load.readers + 1)  # followers, readers, the bucket
    received = rate * REPLICAS
    cpus = rate / 1000 / PRODUCED_GB_PER_CPU_SECOND
    cpus += rate * load.readers / 1000 / FETCHED_GB_PER_CPU_SECOND
    disk_gb = rate * REPLICAS * load.local_hours * 3600 / 1000
    needed = max(
        sent / machine.network_mb_per_s,
        received / machine.network_mb_per_s,
        cpus / machine.cpus,
        disk_gb / machine.disk_gb,
    )
    return max(1, math.ceil(needed / load.utilisation / ZONES)) * ZONES


def idle_reads_per_second(nodes: int) -> float:
    """Return an idle node's read units per second in a cluster of ``nodes`` nodes."""
    leases = read_units(nodes * ITEM_BYTES["lease"])
    polls = POLLS_PER_SECOND * COSTS["poll, nothing has changed"].reads
    return polls + LEASE_READINGS_PER_SECOND * leases


def monthly_counts(
    load: Workload, prices: PriceTable = PRICES, machine: Machine = MACHINE
) -> dict[str, dict[str, float]]:
    """Return what a month of constant load counts, after retention was reached.

    By the lines of the bill, and by the ledger's items in its units.
    """
    machines = machine_count(load, machine)
    nodes = machines * machine.cpus
    produced_gb = load.produced_mb_per_s * SECONDS / 1000
    stored_gb = load.produced_mb_per_s * load.retention_days * 86_400 / 1000
    segments = produced_gb * 1000 / load.segment_mb
    crossing_gb = produced_gb * (
        REPLICAS - 1 + load.produced_elsewhere + load.readers * load.read_elsewhere
    )
    writes = nodes * LEASE_WRITES_PER_SECOND * SECONDS * COSTS["renew a lease"].writes
    writes += segments * sum(cost.writes for cost in SEGMENT_LIFE)
    commits = load.offset_commits_per_s * SECONDS * OFFSET_COMMIT.writes
    reads = nodes * idle_reads_per_second(nodes) * SECONDS
    reads += segments * (sum(cost.reads for cost in SEGMENT_LIFE) + FUNCTION_CALL.reads)
    reads += segments * nodes * CHANGE_READS
    sweeps = SWEEPS_PER_HOUR * HOURS
    function_seconds = segments * FUNCTION_SECONDS_PER_SEGMENT + sweeps * SWEEP_SECONDS
    month_ms = round(SECONDS * 1000)
    standing = prices.standing(month_ms)
    return {
        "machines": {
            machine_item(machine.name): machines * month_ms,
            MACHINE_VOLUME: machines * month_ms,
        },
        "transfer between zones": {ZONE_TRANSFER: crossing_gb * item_of(ZONE_TRANSFER).divisor},
        "S3 storage": {OBJECT_STORAGE: stored_gb * item_of(OBJECT_STORAGE).divisor},
        "S3 requests": {OBJECT_PUT: segments * OBJECTS_PER_SEGMENT},
        "DynamoDB, nodes and segments": {
            METADATA_WRITE: writes * item_of(METADATA_WRITE).divisor,
            METADATA_READ: reads * item_of(METADATA_READ).divisor,
        },
        "DynamoDB, offset commits": {METADATA_WRITE: commits * item_of(METADATA_WRITE).divisor},
        "functions and events": {
            FUNCTION_TIME: function_seconds * FUNCTION_GB * item_of(FUNCTION_TIME).divisor,
            FUNCTION_CALL_ITEM: segments + sweeps,
            FUNCTION_EVENT: segments * OBJECTS_PER_SEGMENT,
        },
        "endpoints and load balancer": {
            ENDPOINT: standing[ENDPOINT],
            BALANCER: standing[BALANCER],
        },
        "logs, alarms, dashboard": {LOGS: standing[LOGS]},
    }


def monthly_cost(
    load: Workload, prices: PriceTable = PRICES, machine: Machine = MACHINE
) -> list[Line]:
    """Return the bill of a month of constant load, after retention was reached."""
    counts = monthly_counts(load, prices, machine)
    return [Line(what, prices.dollars(some)) for what, some in counts.items()]


def table(workloads: Sequence[Workload] = WORKLOADS, prices: PriceTable = PRICES) -> str:
    """Return the bills side by side, as Markdown."""
    bills = [monthly_cost(load, prices) for load in workloads]
    rates = [f"{load.produced_mb_per_s:g} MB/s" for load in workloads]
    rows = [["$ a month", *rates], ["---", *("---:" for _ in workloads)]]
    rows += [
        [lines[0].what, *(f"{line.dollars:,.2f}" for line in lines)]
        for lines in zip(*bills, strict=True)
    ]
    totals = [sum(line.dollars for line in bill) for bill in bills]
    rows.append(["**all**", *(f"**{total:,.2f}**" for total in totals)])
    produced = [load.produced_mb_per_s * SECONDS / 1000 for load in workloads]
    per_gb = [total / gb for total, gb in zip(totals, produced, strict=True)]
    rows.append(["a GB produced", *(f"{dollars:.4f}" for dollars in per_gb)])
    rows.append(["machines", *(str(machine_count(load)) for load in workloads)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
