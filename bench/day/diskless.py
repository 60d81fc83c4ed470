"""Computes what the same day costs if every topic is diskless, from the replicated day.

Machines, tier, offsets and functions stay as they are. What differs is counted here: bytes between
zones, requests for the chains' objects, their storage, the segments that are sealed early so that
chains can be collected, and the leases that nodes renew more often. A GB is 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tidelog_core.cost.counts import (
    METADATA_WRITE,
    OBJECT_GET,
    OBJECT_PUT,
    OBJECT_STORAGE,
    ZONE_TRANSFER,
)
from tidelog_core.replication.leases.lease_times import LeaseTimes

from bench.day import bill
from bench.day.cluster import build
from bench.day.flows import PRODUCED_ELSEWHERE
from bench.day.hours import Day
from bench.day.operations import COSTS
from bench.day.scenario import DAY_S, GB, NODE, ZONES, Scenario
from bench.day.simulation import SEGMENT_GB
from tools.aws_cost import HOURS, PRICES, Line

READ_ELSEWHERE = (ZONES - 1) / ZONES  # consumers are spread evenly over zones
FOLLOWERS_IN_A_ZONE = 2  # nodes that share a leader's partitions there: each reads its part
REFERENCE_SHARE = 0.003  # of the bytes, for the references that leaders and gateways exchange
HEDGED = 1 - NODE.diskless_append_hedge_percentile / 100  # PUTs that are sent once more
SEGMENT_OPERATIONS = (
    "begin a copy",
    "finish a copy",
    "a node begins a deletion",
    "a node drops a segment",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to run diskless topics."""

    name: str
    flush_ms: float = NODE.diskless_append_commit_interval_ms
    has_zone_replicas: bool = False  # consumers read in their zone, replicas read from the bucket
    has_gateways: bool = False  # producers write in their zone


FORMS = (
    Form(name="diskless"),
    Form(name="diskless, 250 ms", flush_ms=250.0),
    Form(name="with zone replicas", has_zone_replicas=True),
    Form(name="and gateways", has_zone_replicas=True, has_gateways=True),
)


def puts_per_s(scenario: Scenario, form: Form) -> float:
    """Return the PUTs a second of all nodes' chains, at the day's mean load."""
    each = scenario.produced_gb_per_s * GB / scenario.brokers
    by_time = min(1000 / form.flush_ms, NODE.diskless_append_puts_per_second_max)
    by_size = each / NODE.diskless_append_buffer_max_bytes
    return max(by_time, by_size) * (1 + HEDGED) * scenario.brokers


def gets_per_s(scenario: Scenario, form: Form) -> float:
    """Return the GETs a second of zone replicas. A hedge is no second object to read."""
    if not form.has_zone_replicas:
        return 0.0
    objects = puts_per_s(scenario, form) / (1 + HEDGED)
    return objects * (ZONES - 1) * FOLLOWERS_IN_A_ZONE


def across_gb(day: Day, form: Form) -> dict[str, float]:
    """Return the bytes between zones in the day, GB by cause."""
    produced = sum(hour.produced_gb for hour in day.hours)
    found: dict[str, float] = {
        "cold reads": sum(hour.across_gb["cold reads"] for hour in day.hours),
        "producers": produced * PRODUCED_ELSEWHERE,
        "consumers": produced * day.scenario.readers * READ_ELSEWHERE,
    }
    if form.has_zone_replicas:
        found["consumers"] = sum(hour.across_gb["consumers"] for hour in day.hours)
    if form.has_gateways:
        found["producers"] = produced * REFERENCE_SHARE
    return found


def early_segments(scenario: Scenario) -> float:
    """Return the segments a day beyond those that are full, sealed at the greatest age."""
    per_day = build(scenario).share * scenario.produced_gb_per_s * DAY_S / SEGMENT_GB
    by_age = DAY_S * 1000 / NODE.diskless_wal_max_age_ms
    return float(np.maximum(by_age - per_day, 0.0).sum())


def more_renewals(scenario: Scenario) -> float:
    """Return the renewals of leases a day beyond those of nodes that lead replicated partitions."""
    times = LeaseTimes()
    each = 1000 / times.brisk_renew_ms - 1000 / times.renew_ms
    return scenario.brokers * each * DAY_S


def of_day(day: Day, form: Form) -> list[Line]:
    """Return the bill of the day."""
    scenario = day.scenario
    early = early_segments(scenario)
    puts = puts_per_s(scenario, form) * DAY_S + early * COSTS["upload a segment"].requests["PUT"]
    gets = gets_per_s(scenario, form) * DAY_S
    chains_gb = scenario.produced_gb_per_s * NODE.diskless_wal_max_age_ms / 1000
    writes = early * sum(COSTS[operation].writes for operation in SEGMENT_OPERATIONS)
    writes += more_renewals(scenario) * COSTS["renew a lease"].writes
    more = {
        "S3 storage": chains_gb * 24 / HOURS * PRICES.per_unit(OBJECT_STORAGE),
        "S3 requests": puts * PRICES.per_unit(OBJECT_PUT) + gets * PRICES.per_unit(OBJECT_GET),
        "DynamoDB, other writes": writes * PRICES.per_unit(METADATA_WRITE),
    }
    transfer = sum(across_gb(day, form).values()) * PRICES.per_unit(ZONE_TRANSFER)
    return [
        Line(line.what, transfer)
        if line.what == "transfer between zones"
        else Line(line.what, line.dollars + more.get(line.what, 0.0))
        for line in bill.of_day(day)
    ]


def bills(day: Day) -> dict[str, Sequence[Line]]:
    """Return the replicated day's bill, and that of every form."""
    return {"replicated": bill.of_day(day), **{form.name: of_day(day, form) for form in FORMS}}
