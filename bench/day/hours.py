"""The results of a simulated day, hour by hour."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.day.amounts import Amounts
from bench.day.scenario import Scenario
from bench.day.table_load import Load


@dataclass(slots=True)
class Hour:
    """Results of an hour. GB, core seconds, units and requests are sums; peaks are of a step."""

    produced_gb: float = 0.0
    sent_gb: float = 0.0  # by machines, to all receivers
    received_gb: float = 0.0
    across_gb: Amounts = field(default_factory=Amounts)  # between zones, by cause
    core_seconds: float = 0.0
    machine_out_peak: float = 0.0  # GB/s of the busiest machine in its busiest step
    machine_in_peak: float = 0.0
    broker_cores_peak: float = 0.0  # of the busiest node
    over_network_s: float = 0.0  # machine seconds above the baseline, paid by burst credits
    load: Load = field(default_factory=Load)
    key_writes_peak: Amounts = field(default_factory=Amounts)  # units a second
    key_reads_peak: Amounts = field(default_factory=Amounts)
    requests: Amounts = field(default_factory=Amounts)  # of S3, by purpose
    function_calls: float = 0.0
    copied: int = 0  # segments
    deleted: int = 0
    logged_commits: float = 0.0
    stored_gb: float = 0.0  # at its end
    local_gb_peak: float = 0.0  # of the fullest machine


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the cluster, such as a failure."""

    at_h: float
    what: str


@dataclass(slots=True)
class Day:
    """The results of the day."""

    scenario: Scenario
    hours: list[Hour]
    events: list[Event]
