"""Finds the first limit as the load grows, and as the cluster grows with the load.

A pressure is demand divided by capacity, at the peak of the day: 1 is the limit.
``breaking_point`` finds the factor at which a pressure reaches 1, by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from tidelog_core.metadata.stores.dynamodb_units import read_units

from bench.day import table_load
from bench.day.cluster import Cluster, Floats, build, total_by
from bench.day.flows import Placement, lead
from bench.day.operations import ITEM_BYTES
from bench.day.scenario import REPLICAS, ZONES, Scenario
from bench.day.simulation import CHUNK_GB, SEGMENT_GB, local_gb
from bench.day.table_load import KEY_READ_UNITS, KEY_WRITE_UNITS
from tools.aws_cost import FUNCTION_SECONDS_PER_SEGMENT

# Quotas of AWS as known on 2026-11-22. Those of a prefix and a key are physical, the others
# are raised on request. Sources: S3 user guide, «Optimizing performance»; DynamoDB and
# Lambda developer guides, quotas.
S3_PUTS_PER_S, S3_GETS_PER_S = 3500, 5500
TABLE_UNITS_PER_S = 40_000  # of an on-demand table, writes and reads each
FUNCTIONS_AT_ONCE = 1000
IDS_PER_ZONE = 99  # ``tidelog_launch.IDS_PER_ZONE_MAX - 1``
OTHER_MEMORY_GB = 0.5  # of a process: node, worker, indexes
TAIL_S_MIN = 60.0  # of the newest records that must fit into the page cache
FACTOR_MIN, FACTOR_MAX = 0.05, 200.0
BISECTIONS = 24

Pressures = Mapping[str, float]


class Peak:
    """The scenario's cluster at 15:00, with and without the failed zone."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._cluster: Cluster = build(scenario)
        brokers = self._cluster.broker_count
        in_sync = np.ones_like(self._cluster.replicas, bool)
        self._placements: list[tuple[Placement, Floats]] = []
        for lost in (None, *range(ZONES)):
            alive = self._cluster.zone_of != (-1 if lost is None else lost)
            leader = lead(self._cluster, alive, in_sync)
            led_share = total_by(leader, self._cluster.share, brokers)
            placement = Placement(scenario, self._cluster, leader, alive)
            self._placements.append((placement, led_share))

    def pressures(self, factor: float) -> dict[str, float]:
        """Return the pressures of the same cluster with the load multiplied."""
        scenario = self._scenario.with_load(factor)
        peak = scenario.produced_gb_per_s * scenario.peak_factor
        found = self._nodes(scenario, peak)
        mean_gb = scenario.produced_gb_per_s
        hottest = float(self._cluster.share.max())
        found["tier copy of the hottest partition, one PUT at a time"] = (
            hottest * peak / scenario.s3_connection_gb_per_s
        )
        lists = table_load.segment_list_units(scenario, self._cluster)
        found["listing the hottest partition's segments, within 1 s"] = (
            float(lists.max()) / KEY_READ_UNITS
        )
        seals = self._cluster.share * mean_gb / SEGMENT_GB
        found |= table_pressures(scenario, listed_units=float((seals * lists).sum()))
        return found

    def _nodes(self, scenario: Scenario, peak: float) -> dict[str, float]:
        """Return the pressures on machines and nodes."""
        cluster, machine = self._cluster, scenario.machine
        found: dict[str, float] = {}
        for number, (placement, led_share) in enumerate(self._placements):
            state = "" if number == 0 else ", a zone lost"
            flows = placement.flows(cluster.share * peak)
            sent = cluster.by_machine(flows.sent + led_share * peak)
            received = cluster.by_machine(flows.received)
            network = max(float(sent.max()), float(received.max())) / machine.network_gb_per_s
            _raise(found, f"network of the busiest machine{state}", network)
            _raise(found, f"core of the busiest node{state}", float(flows.broker_cores.max()))
            if number:
                continue
            worker = float(led_share.max()) * peak * scenario.cpu.tiered_gb
            found["core of the busiest tier worker"] = worker
            memory = machine.memory_gb - scenario.processes_per_machine * OTHER_MEMORY_GB
            found[f"page cache for {TAIL_S_MIN:.0f} s of tail"] = (
                float(received.max()) * TAIL_S_MIN / memory
            )
            half_full = np.full_like(cluster.share, SEGMENT_GB / 2)
            found["local disk, one hour and active segments"] = (
                float(local_gb(cluster, half_full, cluster.share * peak).max()) / machine.disk_gb
            )
        return found


def table_pressures(scenario: Scenario, *, listed_units: float) -> dict[str, float]:
    """Return the pressures on the resources that all nodes share.

    ``listed_units`` are the read units per second for listing a partition's segments once for
    each copied segment.
    """
    peak = scenario.peak_factor
    copied = scenario.produced_gb_per_s * peak / SEGMENT_GB
    moves = log_start_moves(scenario, copied)
    brokers = scenario.brokers
    load = table_load.idle_load(scenario, brokers)
    load.add(table_load.client_load(scenario))
    load.add(table_load.log_starts_load(moves))
    load.add(table_load.segments_load(copied, copied))
    load.add(table_load.changes_load(brokers, moves, 1.0))
    evictions = (REPLICAS - 1) * copied * table_load.eviction_units()
    load.add(table_load.functions_load(listed_units * peak + evictions, copied))
    writes, reads = load.key_writes, load.key_reads
    spark = scenario.produced_gb_per_s * peak * scenario.spark_read_share
    gets = (spark + scenario.cold_read_gb_per_s) / CHUNK_GB
    group = max(writes["group:<busiest shard>"], writes["offset:<a group>"])
    return {
        "logged commits, one after the other": moves * scenario.table_change_latency_s,
        "key #changelog, writes": writes["#changelog"] / KEY_WRITE_UNITS,
        "key #changelog, reads": reads["#changelog"] / KEY_READ_UNITS,
        "key #cluster, reads of the version": reads["#cluster"] / KEY_READ_UNITS,
        "key broker-lease, reads": reads["broker-lease"] / KEY_READ_UNITS,
        "keys of the busiest groups, writes": group / KEY_WRITE_UNITS,
        "table's quota of writes": sum(load.writes.values()) / TABLE_UNITS_PER_S,
        "table's quota of reads": sum(load.reads.values()) / TABLE_UNITS_PER_S,
        "S3, PUTs of one prefix": (2 * copied + moves) / S3_PUTS_PER_S,
        "S3, GETs of one prefix": gets / S3_GETS_PER_S,
        "functions at once": copied * FUNCTION_SECONDS_PER_SEGMENT / FUNCTIONS_AT_ONCE,
    }


def log_start_moves(scenario: Scenario, expired: float) -> float:
    """Return the moves of log starts per second if ``expired`` segments expire per second.

    A round of retention moves each partition's log start once, for all its due segments.
    """
    rounds = scenario.partitions / table_load.RETENTION_ROUND_S
    return rounds * -math.expm1(-expired / rounds)


def grown_pressures(scenario: Scenario, factor: float) -> dict[str, float]:
    """Return the pressures on the shared resources in a cluster of ``factor`` times the size.

    The load of a machine stays the same.
    """
    grown = scenario.grown(factor)
    segments = grown.stored_gb / SEGMENT_GB / grown.partitions
    # Of a mean partition: growth adds partitions, and each stays as busy as before.
    units = read_units(math.ceil(segments * ITEM_BYTES["segment"]))
    copied = grown.produced_gb_per_s / SEGMENT_GB
    found = table_pressures(grown, listed_units=copied * units)
    per_zone = grown.machines_per_zone * grown.processes_per_machine
    found["broker ids of a zone in the template"] = per_zone / IDS_PER_ZONE
    return found


def breaking_point(pressure: Callable[[float], float]) -> float | None:
    """Return the factor at which the pressure reaches 1, ``None`` if that is above 200.

    Pressures must not fall as the factor grows.
    """
    low, high = FACTOR_MIN, FACTOR_MAX
    if pressure(high) < 1:
        return None
    if pressure(low) >= 1:
        return low
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        if pressure(middle) < 1:
            low = middle
        else:
            high = middle
    return high


def breaking_points(pressures: Callable[[float], Pressures]) -> list[tuple[str, float | None]]:
    """Return each limit's factor, smallest first."""
    known: dict[float, Pressures] = {}

    def at(factor: float) -> Pressures:
        if factor not in known:
            known[factor] = pressures(factor)
        return known[factor]

    names = list(at(1.0))
    found = [(name, breaking_point(partial(_named, at, name))) for name in names]
    return sorted(found, key=lambda pair: math.inf if pair[1] is None else pair[1])


def _named(at: Callable[[float], Pressures], name: str, factor: float) -> float:
    return at(factor)[name]


def _raise(found: dict[str, float], name: str, value: float) -> None:
    found[name] = max(found.get(name, 0.0), value)
