"""A few metrics for CloudWatch, in its embedded metric format: one line a minute in the node's log.

CloudWatch Logs makes metrics of such lines by itself, of any log group. Each name with each value
of its dimensions is a metric that costs money every month, so the names are a fixed set and the one
dimension is the cluster: nodes add to the same metrics, whose maximum, sum and average are over all
nodes. The broker id is a field of the line for queries, and no dimension.

Counters are written as the difference to the line before, gauges as they are.

Source: AWS, Specification: Embedded metric format.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import NamedTuple

from tidelog_node.monitoring.scrape import HistogramValue, Scrape
from tidelog_node.monitoring.sources import Sources
from tidelog_node.monitoring.table import METRICS, Kind

INTERVAL_SECONDS = 60.0
NAMESPACE = "Tidelog"
DIMENSION = "cluster"


class EmbeddedMetric(NamedTuple):
    """One metric of CloudWatch, made of all series of one metric of the node."""

    name: str
    unit: str  # CloudWatch's
    source: str  # a name of ``METRICS``
    labels: tuple[str, ...] = ()  # values that a series must have
    is_greatest: bool = False  # else the sum of the series


EMBEDDED_METRICS = (
    EmbeddedMetric("UnavailablePartitions", "Count", "tidelog_cluster_unavailable_partitions"),
    EmbeddedMetric(
        "UnderReplicatedPartitions", "Count", "tidelog_kafka_under_replicated_partitions"
    ),
    EmbeddedMetric("UnderMinIsrPartitions", "Count", "tidelog_kafka_under_min_isr_partitions"),
    EmbeddedMetric("OfflineReplicas", "Count", "tidelog_kafka_offline_replicas"),
    EmbeddedMetric("LateTransactions", "Count", "tidelog_kafka_partitions_with_late_transactions"),
    EmbeddedMetric("Faults", "Count", "tidelog_faults"),
    EmbeddedMetric("LeaseRenewalFailures", "Count", "tidelog_lease_renewal_failures_total"),
    EmbeddedMetric("DamagedSegments", "Count", "tidelog_storage_damaged_segments_total"),
    EmbeddedMetric("CompactionFailures", "Count", "tidelog_storage_compaction_failures_total"),
    EmbeddedMetric("DiskFree", "Bytes", "tidelog_storage_disk_free_bytes"),
    EmbeddedMetric("TierBacklog", "Bytes", "tidelog_cloud_storage_backlog_bytes"),
    EmbeddedMetric("TierBacklogAge", "Seconds", "tidelog_cloud_storage_backlog_seconds"),
    EmbeddedMetric("RequestErrors", "Count", "tidelog_kafka_request_errors_total"),
    EmbeddedMetric("ProducedBytes", "Bytes", "tidelog_kafka_request_bytes_total", ("produce",)),
    EmbeddedMetric("ConsumedBytes", "Bytes", "tidelog_kafka_request_bytes_total", ("consume",)),
    EmbeddedMetric(
        "GroupLag", "Seconds", "tidelog_kafka_consumer_group_lag_seconds", is_greatest=True
    ),
)
_DIRECTIVE = {
    "Namespace": NAMESPACE,
    "Dimensions": [[DIMENSION]],
    "Metrics": [{"Name": one.name, "Unit": one.unit} for one in EMBEDDED_METRICS],
}


class EmbeddedMetrics:
    """Writes the lines of a node."""

    def __init__(
        self,
        sources: Sources,
        *,
        cluster: str,
        broker_id: int,
        clock_ms: Callable[[], int],
        write: Callable[[str], object],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        """``write`` gets a line without its end."""
        self._sources = sources
        self._cluster = cluster
        self._broker_id = broker_id
        self._clock_ms = clock_ms
        self._write = write
        self._interval_seconds = interval_seconds
        self._totals: dict[str, float] = {}  # of counters, at the line before

    async def run(self) -> None:
        """Write a line now and every minute, for ever."""
        while True:
            self._write(self.line(await self._sources.read()))
            await asyncio.sleep(self._interval_seconds)

    def line(self, scrape: Scrape) -> str:
        """Return the line of these values."""
        line: dict[str, object] = {
            "_aws": {"Timestamp": self._clock_ms(), "CloudWatchMetrics": [_DIRECTIVE]},
            DIMENSION: self._cluster,
            "broker_id": str(self._broker_id),
        }
        for one in EMBEDDED_METRICS:
            is_counter = METRICS[one.source].kind is Kind.COUNTER
            line[one.name] = self._added(one, scrape) if is_counter else _value(one, scrape)
        return json.dumps(line, separators=(",", ":"))

    def _added(self, metric: EmbeddedMetric, scrape: Scrape) -> float:
        """Return the growth of a counter since the line before, never less than 0.

        The sum shrinks when a topic leaves the node. A part of the node that cannot be read just
        now has no series: what it adds until then is in the first line after that.
        """
        if metric.source not in scrape.series:
            return 0
        total, before = _value(metric, scrape), self._totals.get(metric.name, 0)
        self._totals[metric.name] = total
        return max(0, total - before)


def _value(metric: EmbeddedMetric, scrape: Scrape) -> float:
    """Return the sum or the greatest of the series, 0 if there are none."""
    values = [
        value
        for labels, value in scrape.series.get(metric.source, ())
        if not isinstance(value, HistogramValue) and set(metric.labels) <= set(labels)
    ]
    return max(values, default=0) if metric.is_greatest else sum(values)
