"""Metrics of the tier. The tier worker is another process, and is asked for its counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog_node.monitoring.request_source import histogram
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.node_context import NodeContext
from tidelog_node.tier.service import TierService


class TierSource:
    """Reads ``TierService``, and the worker if there is one."""

    def __init__(self, node: NodeContext, tier: TierService) -> None:
        self._node = node
        self._tier = tier

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        tier = self._tier
        status = tier.status
        for name, key in (
            ("copied_segments_total", "copied_segment_count"),
            ("deleted_segments_total", "deleted_segment_count"),
            ("evicted_bytes_total", "evicted_bytes"),
            ("failing_partitions", "failing_partition_count"),
            ("worker_restarts_total", "worker_restart_count"),
        ):
            scrape.add(f"tidelog_cloud_storage_{name}", status[key])
        cold_reads = histogram(self._node.counters.cold_reads)
        scrape.add("tidelog_cloud_storage_cold_read_seconds", cold_reads)
        backlog = await tier.backlog()
        scrape.add("tidelog_cloud_storage_backlog_bytes", backlog.size_bytes)
        scrape.add("tidelog_cloud_storage_backlog_segments", backlog.segment_count)
        age_ms = 0
        if backlog.oldest_ms is not None:
            age_ms = max(0, self._node.clock_ms() - backlog.oldest_ms)
        scrape.add("tidelog_cloud_storage_backlog_seconds", age_ms / 1000)
        worker = await tier.worker_status()
        scrape.add("tidelog_cloud_storage_worker_up", worker is not None)
        if worker is not None:
            _collect_worker(scrape, worker)


def _collect_worker(scrape: Scrape, worker: Mapping[str, Any]) -> None:
    for method, outcome, count in worker["requests"]:
        scrape.add("tidelog_cloud_storage_requests_total", count, method, outcome)
    for method, spent in worker["seconds"].items():
        scrape.add("tidelog_cloud_storage_request_seconds_total", spent, method)
    for name, key in (
        ("uploaded_bytes_total", "sent_bytes"),
        ("downloaded_bytes_total", "received_bytes"),
        ("cache_hits_total", "cache_hit_count"),
        ("cache_misses_total", "cache_miss_count"),
        ("cache_size_bytes", "cache_size_bytes"),
    ):
        scrape.add(f"tidelog_cloud_storage_{name}", worker[key])
