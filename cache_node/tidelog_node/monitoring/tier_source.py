"""Metrics of the tier and of the object store.

The tier worker is another process, and so is the one for the chains of diskless topics. They are
asked for their counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tidelog_node.monitoring.request_source import histogram
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.node_context import NodeContext
from tidelog_node.tier.service import TierService


class TierSource:
    """Reads ``TierService``, and the workers that there are."""

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
            for name, key in (
                ("hits_total", "hit_count"),
                ("misses_total", "miss_count"),
                ("size_bytes", "size_bytes"),
            ):
                scrape.add(f"tidelog_cloud_storage_cache_{name}", worker[f"cache_{key}"])
        _collect_requests(scrape, await tier.worker_statuses())


def _collect_requests(scrape: Scrape, workers: Sequence[Mapping[str, Any]]) -> None:
    """Add up the requests of the workers to the object store."""
    requests: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    for worker in workers:
        for method, outcome, count in worker["requests"]:
            requests[method, outcome] += count
        seconds.update(worker["seconds"])
    for (method, outcome), count in requests.items():
        scrape.add("tidelog_cloud_storage_requests_total", count, method, outcome)
    for method, spent in seconds.items():
        scrape.add("tidelog_cloud_storage_request_seconds_total", spent, method)
    if workers:
        for name, key in (("uploaded", "sent_bytes"), ("downloaded", "received_bytes")):
            total = sum(worker[key] for worker in workers)
            scrape.add(f"tidelog_cloud_storage_{name}_bytes_total", total)
