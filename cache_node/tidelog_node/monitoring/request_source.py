"""Metrics of requests, connections and topics, from the node's counters."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from tidelog_core.turns import Turn

from tidelog_node.counters import (
    BUCKET_COUNT,
    MICROSECONDS,
    ClientMetricsTraffic,
    Durations,
    NodeCounters,
)
from tidelog_node.fairness.request_memory import RequestMemory
from tidelog_node.monitoring.scrape import HistogramValue, Scrape

# The narrow buckets below are served as one.
FIRST_BUCKET = 6
_BOUNDS: Sequence[float] = tuple(
    2**place / MICROSECONDS for place in range(FIRST_BUCKET, BUCKET_COUNT - 1)
)


class RequestSource:
    """Reads ``NodeCounters``."""

    def __init__(self, counters: NodeCounters, memory: RequestMemory) -> None:
        self._counters = counters
        self._memory = memory

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        counters, memory = self._counters, self._memory
        for api_key, durations in counters.requests.items():
            scrape.add(
                "tidelog_kafka_handler_latency_seconds", histogram(durations), api_name(api_key)
            )
        for (api_key, code), count in counters.errors.items():
            labels = (api_name(api_key), error_name(code))
            scrape.add("tidelog_kafka_request_errors_total", count, *labels)
        scrape.add("tidelog_security_denials_total", counters.denied_count)
        scrape.add("tidelog_kafka_throttled_requests_total", counters.throttled_count)
        scrape.add("tidelog_kafka_throttle_seconds_total", counters.throttled_ms / 1000)
        scrape.add("tidelog_kafka_request_memory_bytes", memory.held_bytes)
        scrape.add("tidelog_kafka_request_memory_limit_bytes", memory.bytes_max)
        scrape.add("tidelog_kafka_request_memory_waiting", memory.waiting_count)
        for listener, traffic in counters.listeners.items():
            for name, count in (
                ("tidelog_rpc_active_connections", traffic.open_count),
                ("tidelog_rpc_connections_accepted_total", traffic.accepted_count),
                ("tidelog_rpc_connections_refused_total", traffic.refused_count),
                ("tidelog_rpc_connections_broken_total", traffic.broken_count),
                ("tidelog_security_logins_total", traffic.login_count),
                ("tidelog_security_logins_refused_total", traffic.login_refused_count),
                ("tidelog_rpc_received_bytes_total", traffic.received_bytes),
                ("tidelog_rpc_sent_bytes_total", traffic.sent_bytes),
            ):
                scrape.add(name, count, listener)
        if counters.client_metrics is not None:
            _collect_client_metrics(counters.client_metrics, scrape)
        await self._collect_topics(scrape)

    async def _collect_topics(self, scrape: Scrape) -> None:
        turn = Turn()
        for topic, traffic in self._counters.topics.named().items():
            await turn.step()
            if traffic.produced_batches:
                scrape.add("tidelog_kafka_records_produced_total", traffic.produced_records, topic)
                scrape.add("tidelog_kafka_batches_produced_total", traffic.produced_batches, topic)
            if traffic.fetched_count:
                scrape.add("tidelog_kafka_partitions_consumed_total", traffic.fetched_count, topic)
                scrape.add("tidelog_kafka_records_consumed_total", traffic.fetched_offsets, topic)
            for name, count, *labels in (
                ("tidelog_kafka_request_bytes_total", traffic.produced_bytes, "produce"),
                ("tidelog_kafka_request_bytes_total", traffic.fetched_bytes, "consume"),
                ("tidelog_kafka_tier_bytes_consumed_total", traffic.fetched_from_tier_bytes),
                ("tidelog_kafka_replicated_bytes_total", traffic.replicated_in_bytes, "in"),
                ("tidelog_kafka_replicated_bytes_total", traffic.replicated_out_bytes, "out"),
            ):
                if count:
                    scrape.add(name, count, *labels, topic)


def _collect_client_metrics(traffic: ClientMetricsTraffic, scrape: Scrape) -> None:
    scrape.add("tidelog_client_metrics_instances", traffic.instance_count)
    scrape.add("tidelog_client_metrics_waiting_bytes", traffic.waiting_bytes)
    scrape.add("tidelog_client_metrics_forwarded_bytes_total", traffic.forwarded_bytes)
    for outcome, count in (
        ("forwarded", traffic.forwarded_count),
        ("queue_full", traffic.full_count),
        ("refused", traffic.refused_count),
        ("unreachable", traffic.unreachable_count),
    ):
        scrape.add("tidelog_client_metrics_pushes_total", count, outcome)


def histogram(durations: Durations) -> HistogramValue:
    """Return the durations with bounds in seconds."""
    counts = durations.counts
    narrow = sum(counts[: FIRST_BUCKET + 1])
    return HistogramValue(
        _BOUNDS, [narrow, *counts[FIRST_BUCKET + 1 :]], durations.total_us / MICROSECONDS
    )


def api_name(api_key: int) -> str:
    """Return the name of an API, such as ``list_offsets``; the key for one of Tidelog's own."""
    return str(api_key_map.get(api_key, api_key))


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, such as NOT_LEADER_OR_FOLLOWER."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
