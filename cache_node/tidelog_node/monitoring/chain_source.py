"""Metrics of diskless topics: this node's objects, and the records that wait for them."""

from __future__ import annotations

import time

from tidelog_node.counters import ChainTraffic
from tidelog_node.monitoring.request_source import histogram
from tidelog_node.monitoring.scrape import Scrape


class ChainSource:
    """Reads ``ChainTraffic``."""

    def __init__(self, traffic: ChainTraffic) -> None:
        self._traffic = traffic

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        traffic = self._traffic
        for name, count in (
            ("objects_total", traffic.object_count),
            ("object_bytes_total", traffic.object_bytes),
            ("hedges_total", traffic.hedge_count),
            ("retries_total", traffic.retry_count),
            ("throttled_total", traffic.throttled_count),
            ("unknown_total", traffic.unknown_count),
            ("deposed_chains_total", traffic.deposed_count),
            ("buffered_bytes", traffic.buffered_bytes),
            ("collected_objects_total", traffic.collected_count),
            ("kept_objects", traffic.kept_count),
            ("refused_partitions", traffic.refused_count),
            ("damaged_objects_total", traffic.damaged_count),
            ("unfilled_partitions", traffic.unfilled_count),
            ("unfilled_seconds", _unfilled_seconds(traffic)),
        ):
            scrape.add(f"tidelog_diskless_{name}", count)
        scrape.add("tidelog_diskless_put_seconds", histogram(traffic.puts))


def _unfilled_seconds(traffic: ChainTraffic) -> float:
    return time.monotonic() - traffic.unfilled_since_s if traffic.unfilled_count else 0.0
