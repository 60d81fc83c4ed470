"""Every metric of a node: its name, type, labels and meaning.

The exposition serves the metrics of this table and no others, and ``docs/metrics.md`` is generated
from it (``python -m tools.metrics``). Names begin with ``tidelog_`` and use Redpanda's nouns where
it has them. Units are base units: seconds, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"  # since the start of the process
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. A node without anything to count has no series of it."""

    name: str  # a counter's ends with ``_total``
    kind: Kind
    labels: tuple[str, ...]
    meaning: str  # one sentence for an operator, without a full stop


def _counter(name: str, meaning: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, Kind.COUNTER, labels, meaning)


def _gauge(name: str, meaning: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, Kind.GAUGE, labels, meaning)


def _histogram(name: str, meaning: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, Kind.HISTOGRAM, labels, meaning)


SECTIONS: Mapping[str, tuple[MetricSpec, ...]] = {
    "The node": (
        _gauge(
            "tidelog_application_build",
            "1, with the node's versions as labels",
            *("version", "python_version", "broker_id", "cluster_id", "compiled"),
        ),
        _gauge("tidelog_application_uptime_seconds", "Time since the process started"),
        _gauge("tidelog_ready", "1 if /readyz answers 200, else 0"),
        _gauge("tidelog_ready_check", "1 if this check of /readyz holds, else 0", "check"),
        _gauge(
            "tidelog_faults",
            "Current faults of the node, by kind; a kind without a fault has no series",
            "fault",
        ),
    ),
}
METRICS: Mapping[str, MetricSpec] = {
    metric.name: metric for metrics in SECTIONS.values() for metric in metrics
}
