"""Computes the costs of the same traffic on other systems from list prices, term by term.

Each system has the scenario's produced bytes, readers, retention and zones, and machines by one
rule: enough to carry the peak without a third of them, at ``UTILISATION`` of the baseline network.
Licences, support and vendors' control planes are not counted.
"""

from __future__ import annotations

import math

from tidelog_core.cost.counts import OBJECT_GET, OBJECT_PUT, OBJECT_STORAGE, ZONE_TRANSFER

from bench.day.flows import PRODUCED_ELSEWHERE
from bench.day.prices import (
    C6IN_2XLARGE,
    EBS_GB_MONTH,
    EBS_MB_PER_S_MONTH,
    M6I_2XLARGE,
    Machine,
)
from bench.day.scenario import DAY_S, REPLICAS, Scenario
from tools.aws_cost import HOURS, PRICES, ZONES, Line

DAY_H = DAY_S / 3600
UTILISATION = 0.7  # with a zone lost
DISK_FILLED = 0.7  # of EBS; the rest is a reserve
EBS_FREE_MB_PER_S = 125.0  # of each gp3 volume
LOCAL_H = 6.0  # of records on the disks of Kafka with a tier
KAFKA_SEGMENT_GB = 1.07
KAFKA_OBJECTS = 3  # segment, index, transaction and producer state together. KIP-405's examples
WAL_OBJECT_GB = 0.008  # a direct-to-S3 agent flushes at 8 MB, or after the interval
WAL_FLUSH_S = 0.25  # WarpStream's default batchTimeout. Source: its documentation, low latency
WAL_READ_GB = 0.004  # bytes of a GET; each zone reads each object once and shares it
COMPACTED_OBJECT_GB = 0.128
COMPACTIONS = 1.0  # number of times that every byte is read and written again


def machine_count(scenario: Scenario, machine: Machine, *, sent: float, received: float) -> int:
    """Return the number of machines; ``sent`` and ``received`` are multiples of the peak."""
    peak = scenario.produced_gb_per_s * scenario.peak_factor
    needed = peak * max(sent, received) / (machine.network_gb_per_s * UTILISATION)
    return math.ceil(needed / (ZONES - 1)) * ZONES


def kafka(scenario: Scenario) -> list[Line]:
    """Return the bill of Apache Kafka with three replicas on EBS; fetches stay in a zone."""
    stored = scenario.stored_gb * REPLICAS / DISK_FILLED
    return [
        *_kafka_machines(scenario),
        Line("storage", _ebs(scenario, stored)),
        Line("requests", 0.0),
    ]


def tiered_kafka(scenario: Scenario) -> list[Line]:
    """Return the bill of Kafka with a tier in S3 (KIP-405) and six hours on EBS."""
    per_day = scenario.produced_gb_per_s * DAY_S
    local = scenario.produced_gb_per_s * LOCAL_H * 3600 * REPLICAS / DISK_FILLED
    puts = per_day / KAFKA_SEGMENT_GB * KAFKA_OBJECTS
    return [
        *_kafka_machines(scenario),
        Line("storage", _ebs(scenario, local) + _s3(scenario.stored_gb)),
        Line("requests", puts * PRICES.per_unit(OBJECT_PUT)),
    ]


def direct_to_s3(scenario: Scenario) -> list[Line]:
    """Return the bill of agents that write to S3 before they acknowledge.

    They are stateless (WarpStream, AutoMQ's S3 WAL). Clients use agents of their zone, so no
    traffic crosses zones.
    """
    rate = scenario.produced_gb_per_s
    # Sent: to the bucket, by compaction, to readers. Received: from producers, each zone's reads of
    # all objects, and compaction's reads.
    sent = 1 + COMPACTIONS + scenario.readers
    received = 1 + ZONES + COMPACTIONS
    agents = machine_count(scenario, C6IN_2XLARGE, sent=sent, received=received)
    puts_per_s = max(rate / WAL_OBJECT_GB, agents / WAL_FLUSH_S)
    puts_per_s += rate * COMPACTIONS / COMPACTED_OBJECT_GB
    gets_per_s = rate * (ZONES + COMPACTIONS) / WAL_READ_GB
    requests = puts_per_s * PRICES.per_unit(OBJECT_PUT) + gets_per_s * PRICES.per_unit(OBJECT_GET)
    return [
        Line("machines", agents * C6IN_2XLARGE.hour * DAY_H),
        Line("transfer between zones", 0.0),
        Line("storage", _s3(scenario.stored_gb)),
        Line("requests", requests * DAY_S),
    ]


def _kafka_machines(scenario: Scenario) -> list[Line]:
    sent, received = REPLICAS - 1 + scenario.readers, REPLICAS
    count = machine_count(scenario, M6I_2XLARGE, sent=sent, received=received)
    per_day = scenario.produced_gb_per_s * DAY_S
    across = per_day * (REPLICAS - 1 + PRODUCED_ELSEWHERE)
    return [
        Line("machines", count * M6I_2XLARGE.hour * DAY_H),
        Line("transfer between zones", across * PRICES.per_unit(ZONE_TRANSFER)),
    ]


def _ebs(scenario: Scenario, size_gb: float) -> float:
    """Return the daily costs of gp3 volumes, with throughput beyond one volume's per machine."""
    sent, received = REPLICAS - 1 + scenario.readers, REPLICAS
    count = machine_count(scenario, M6I_2XLARGE, sent=sent, received=received)
    peak_mb = scenario.produced_gb_per_s * scenario.peak_factor * REPLICAS * 1000
    beyond = max(0.0, peak_mb / (count * (ZONES - 1) / ZONES) - EBS_FREE_MB_PER_S) * count
    return (size_gb * EBS_GB_MONTH + beyond * EBS_MB_PER_S_MONTH) * DAY_H / HOURS


def _s3(size_gb: float) -> float:
    return size_gb * PRICES.per_unit(OBJECT_STORAGE) * DAY_H / HOURS
