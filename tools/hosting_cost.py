"""What a diskless-only cluster costs a month, by where its nodes run.

``python -m tools.hosting_cost`` prints the tables of docs/deploy.md and docs/capacity.md. The load,
the formula of everything but nodes, and most prices are those of ``tools.aws_cost``; prices of
nodes are here. Pure; US dollars; a GB is 10^9 bytes; a month has 730 hours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import (
    BALANCER,
    ENDPOINT,
    FUNCTION_EVENT,
    FUNCTION_TIME,
    LOGS,
    METADATA_READ,
    METADATA_WRITE,
    OBJECT_GET,
    OBJECT_PUT,
    OBJECT_STORAGE,
    ZONE_TRANSFER,
)
from tidelog_core.cost.counts import FUNCTION_CALL as FUNCTION_CALL_ITEM
from tidelog_core.replication.leases.lease_times import BRISK_RENEW_MS

from tools.aws_cost import (
    CHANGE_READS,
    FETCHED_GB_PER_CPU_SECOND,
    FUNCTION_GB,
    FUNCTION_SECONDS_PER_SEGMENT,
    HOURS,
    OBJECTS_PER_SEGMENT,
    OFFSET_COMMIT,
    PRICES,
    PRODUCED_GB_PER_CPU_SECOND,
    SECONDS,
    SEGMENT_LIFE,
    SWEEP_SECONDS,
    SWEEPS_PER_HOUR,
    ZONES,
    Line,
    Workload,
    idle_reads_per_second,
    monthly_cost,
)
from tools.aws_cost import FUNCTION_CALL as FUNCTION_READS

NODE = NodeConfig()
PARTITIONS = 60  # each is sealed at least once in diskless.wal.max.age.ms
# Of infra/diskless.yaml and infra/fargate.yaml: diskless.wal.max.age.ms, log.local.retention.ms.
WAL_SECONDS, LOCAL_SECONDS = 600, 600
DISK_GB_MIN, DISK_GB_MAX = 50, 200  # CacheGb
HEDGED = 1 - NODE.diskless_append_hedge_percentile / 100
ELSEWHERE = (ZONES - 1) / ZONES
FOLLOWERS_IN_A_ZONE = 2  # nodes that read an object there, as in bench/day/diskless.py
REFERENCE_SHARE = 0.003  # of the bytes, for gateways' references
LEASE_WRITES_PER_SECOND = 1000 / BRISK_RENEW_MS  # of a node that leads diskless partitions
DAYS = HOURS / 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine or a task with one node. It has one node, because two put twice as many objects."""

    name: str
    hour: float
    cpus: float
    network_mb_per_s: float  # sustained, in each direction
    disk_gb_month: float
    free_disk_gb: float
    count_min: int
    endpoints: int  # interface endpoints, one for each service and zone


# On-demand list prices of us-east-1 for Linux and x86, from memory; nobody has compared them with
# AWS's pages.
VCPU_HOUR, MEMORY_GB_HOUR, EPHEMERAL_GB_HOUR = 0.04048, 0.004445, 0.000111  # of Fargate
GP3_GB_MONTH = 0.08
M6I_LARGE = Host(
    name="EC2, m6i.large",
    hour=0.096,
    cpus=2,
    network_mb_per_s=97.6,  # EC2's baseline, 0.781 Gbit/s
    disk_gb_month=GP3_GB_MONTH,
    free_disk_gb=0,
    count_min=3,
    endpoints=11,
)
# AWS publishes no network of tasks. Half of what an m6i.large has for two processors is assumed.
TASK = Host(
    name="Fargate, 1 vCPU, 2 GB",
    hour=VCPU_HOUR + 2 * MEMORY_GB_HOUR,
    cpus=1,
    network_mb_per_s=48.8,
    disk_gb_month=EPHEMERAL_GB_HOUR * HOURS,
    free_disk_gb=20,
    count_min=2,
    endpoints=8,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to run a diskless-only cluster."""

    host: Host
    interval_ms: float = NODE.diskless_append_commit_interval_ms
    has_zone_replicas: bool = False
    has_gateways: bool = False

    @property
    def name(self) -> str:
        """Its row of the table."""
        more = ", zone replicas" * self.has_zone_replicas + " and gateways" * self.has_gateways
        return f"{self.host.name}, {self.interval_ms:g} ms{more}"


FORMS = (
    Form(host=TASK, interval_ms=250),
    Form(host=M6I_LARGE),
    Form(host=M6I_LARGE, interval_ms=250),
    Form(host=M6I_LARGE, interval_ms=250, has_zone_replicas=True),
    Form(host=M6I_LARGE, interval_ms=250, has_zone_replicas=True, has_gateways=True),
)
WORKLOADS = tuple(Workload(produced_mb_per_s=rate) for rate in (1.0, 10.0, 100.0, 1000.0))


def host_count(load: Workload, host: Host) -> int:
    """Return the number of hosts for the load, by the scarcest of network, CPU and disk."""
    rate = load.produced_mb_per_s
    sent = rate * (load.readers + 2)  # readers, the chain's object, the segment
    # Of all nodes: as much as with three replicas, until it is measured on this kind of host.
    cpus = rate / 1000 / PRODUCED_GB_PER_CPU_SECOND
    cpus += rate * load.readers / 1000 / FETCHED_GB_PER_CPU_SECOND
    needed = max(sent / host.network_mb_per_s, cpus / host.cpus, _disk_gb(load) / DISK_GB_MAX)
    return max(host.count_min, math.ceil(needed / load.utilisation))


def _disk_gb(load: Workload) -> float:
    """Return what all nodes have on their disks."""
    return load.produced_mb_per_s * (WAL_SECONDS + LOCAL_SECONDS) / 1000


def puts_per_s(load: Workload, form: Form) -> float:
    """Return the objects a second of all nodes' chains, without hedges."""
    nodes = host_count(load, form.host)
    by_time = min(1000 / form.interval_ms, NODE.diskless_append_puts_per_second_max)
    by_size = load.produced_mb_per_s * 1e6 / nodes / NODE.diskless_append_buffer_max_bytes
    return nodes * max(by_time, by_size)


def monthly(load: Workload, form: Form) -> list[Line]:
    """Return the bill of a month of constant load, after retention was reached."""
    nodes = host_count(load, form.host)
    produced_gb = load.produced_mb_per_s * SECONDS / 1000
    stored_gb = load.produced_mb_per_s * load.retention_days * 86_400 / 1000
    chains_gb = load.produced_mb_per_s * WAL_SECONDS / 1000
    by_age = PARTITIONS * SECONDS / WAL_SECONDS
    segments = max(produced_gb * 1000 / load.segment_mb, by_age)
    disk_gb = max(DISK_GB_MIN, _disk_gb(load) / load.utilisation / nodes)
    disk = max(0.0, disk_gb - form.host.free_disk_gb) * form.host.disk_gb_month
    chain_puts = puts_per_s(load, form) * SECONDS
    gets = chain_puts * (ZONES - 1) * FOLLOWERS_IN_A_ZONE * form.has_zone_replicas
    crossing = REFERENCE_SHARE if form.has_gateways else ELSEWHERE
    crossing += 0 if form.has_zone_replicas else load.readers * ELSEWHERE
    writes = nodes * LEASE_WRITES_PER_SECOND * SECONDS
    writes += segments * sum(cost.writes for cost in SEGMENT_LIFE)
    reads = nodes * idle_reads_per_second(nodes) * SECONDS
    reads += segments * (sum(cost.reads for cost in SEGMENT_LIFE) + FUNCTION_READS.reads)
    reads += segments * nodes * CHANGE_READS
    sweeps = SWEEPS_PER_HOUR * HOURS
    function_seconds = segments * FUNCTION_SECONDS_PER_SEGMENT + sweeps * SWEEP_SECONDS
    month_ms = round(SECONDS * 1000)
    standing = PRICES.standing(month_ms)
    endpoints = standing[ENDPOINT] / PRICES.prices[ENDPOINT].number * form.host.endpoints

    def price(name: str, units: float) -> float:
        return units * PRICES.per_unit(name)

    return [
        Line("nodes", nodes * (form.host.hour * HOURS + disk)),
        Line("transfer between zones", price(ZONE_TRANSFER, produced_gb * crossing)),
        Line("S3 storage", price(OBJECT_STORAGE, stored_gb + chains_gb)),
        Line(
            "S3 requests",
            price(OBJECT_PUT, chain_puts * (1 + HEDGED) + segments * OBJECTS_PER_SEGMENT)
            + price(OBJECT_GET, gets),
        ),
        Line(
            "DynamoDB, nodes and segments",
            price(METADATA_WRITE, writes) + price(METADATA_READ, reads),
        ),
        Line(
            "DynamoDB, offset commits",
            price(METADATA_WRITE, load.offset_commits_per_s * SECONDS * OFFSET_COMMIT.writes),
        ),
        Line(
            "functions and events",
            price(FUNCTION_TIME, function_seconds * FUNCTION_GB)
            + price(FUNCTION_CALL_ITEM, segments + sweeps)
            + price(FUNCTION_EVENT, segments * OBJECTS_PER_SEGMENT),
        ),
        Line(
            "endpoints and load balancer",
            PRICES.dollars({ENDPOINT: endpoints, BALANCER: standing[BALANCER]}),
        ),
        Line("logs, alarms, dashboard", PRICES.dollars({LOGS: standing[LOGS]})),
    ]


def total(lines: Sequence[Line]) -> float:
    """Return the sum of a bill."""
    return math.fsum(line.dollars for line in lines)


def table(days: float = 1.0, workloads: Sequence[Workload] = WORKLOADS) -> str:
    """Return all forms beside the replicated cluster, $ for a month over ``days``, as Markdown."""
    rates = [f"{load.produced_mb_per_s:,g} MB/s" for load in workloads]
    rows = [["$ a month" if days == 1 else "$ a day", *rates, "nodes"]]
    rows.append(["---", *("---:" for _ in workloads), "---:"])

    def row(name: str, bills: Sequence[Sequence[Line]], nodes: str) -> list[str]:
        return [name, *(f"{total(bill) / days:,.0f}" for bill in bills), nodes]

    rows.append(row("three replicas, i4i.large", [monthly_cost(load) for load in workloads], ""))
    for form in FORMS:
        counts = ", ".join(str(host_count(load, form.host)) for load in workloads)
        rows.append(row(form.name, [monthly(load, form) for load in workloads], counts))
    return _markdown(rows)


def lines_table(load: Workload = WORKLOADS[1]) -> str:
    """Return the bills of all forms by their lines, as Markdown."""
    bills = [monthly(load, form) for form in FORMS]
    rows = [["$ a month", *(form.name for form in FORMS)]]
    rows.append(["---", *("---:" for _ in FORMS)])
    rows += [
        [lines[0].what, *(f"{line.dollars:,.2f}" for line in lines)]
        for lines in zip(*bills, strict=True)
    ]
    rows.append(["**all**", *(f"**{total(bill):,.2f}**" for bill in bills)])
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table(), lines_table(), table(DAYS, WORKLOADS[-1:]), sep="\n\n")
