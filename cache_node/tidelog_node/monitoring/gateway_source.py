"""Metrics of gateways: batches that this node takes for other leaders, and others for it."""

from __future__ import annotations

from tidelog_node.counters import GatewayTraffic
from tidelog_node.monitoring.request_source import histogram
from tidelog_node.monitoring.scrape import Scrape


class GatewaySource:
    """Reads ``GatewayTraffic``."""

    def __init__(self, traffic: GatewayTraffic) -> None:
        self._traffic = traffic

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        traffic = self._traffic
        for name, count in (
            ("batches_total", traffic.batch_count),
            ("bytes_total", traffic.batch_bytes),
            ("lost_batches_total", traffic.lost_count),
            ("pending_bytes", traffic.pending_bytes),
            ("waiting_batches", traffic.waiting_count),
            ("referenced_batches_total", traffic.referenced_count),
            ("referenced_bytes_total", traffic.referenced_bytes),
            ("refused_batches_total", traffic.refused_count),
            ("read_hedges_total", traffic.hedge_count),
            ("late_reads", traffic.late_count),
        ):
            scrape.add(f"tidelog_diskless_gateway_{name}", count)
        scrape.add("tidelog_diskless_gateway_ack_seconds", histogram(traffic.acks))
