"""The subscriptions to the metrics of clients, and which of them a client has.

A client has every subscription whose patterns all match. It pushes the union of their metrics, as
often as the shortest interval says. Source: KIP-714 and Kafka's ``ClientMetricsManager``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c
from tidelog_core.config import ClientMetricsConfig, parse_config
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_core.setting_values.client_match import (
    ALL_METRICS,
    CLIENT_ID,
    CLIENT_INSTANCE_ID,
    CLIENT_SOFTWARE_NAME,
    CLIENT_SOFTWARE_VERSION,
    CLIENT_SOURCE_ADDRESS,
    CLIENT_SOURCE_PORT,
    parse_client_match,
)

from tidelog_node.groups.consumer.topic_pattern import InvalidPattern, TopicPattern
from tidelog_node.requests.session import Session

INTERVAL_MS_MAX = 300_000  # of a client with no subscription, and the default of one
ATTRIBUTE_SIZE_MAX = 249  # characters of a client's id and software: a client makes them up
_INT32_SIGN = 2**31
_HALF_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SubscribedMetrics:
    """The metrics that a client pushes."""

    metrics: tuple[str, ...]  # prefixes of their names, sorted
    interval_ms: int


@dataclass(frozen=True, slots=True)
class _Subscription:
    patterns: tuple[tuple[str, TopicPattern], ...]  # each with the attribute that it is for
    wanted: SubscribedMetrics


class Subscriptions:
    """The subscriptions of one image. Never changed."""

    def __init__(self, overrides: Mapping[str, ClientMetricsOverrides]) -> None:
        self._all = [
            subscription
            for one in overrides.values()
            if (subscription := _subscription(one)) is not None
        ]

    def wanted_of(self, attributes: Mapping[str, str]) -> SubscribedMetrics:
        """Return the metrics that a client with these attributes pushes."""
        metrics: set[str] = set()
        interval_ms = INTERVAL_MS_MAX
        for one in self._all:
            if all(pattern.matches(attributes[name]) for name, pattern in one.patterns):
                metrics.update(one.wanted.metrics)
                interval_ms = min(interval_ms, one.wanted.interval_ms)
        if ALL_METRICS in metrics:
            metrics = {ALL_METRICS}
        return SubscribedMetrics(tuple(sorted(metrics)), interval_ms)


def subscription_id(metrics: SubscribedMetrics, instance_id: UUID) -> int:
    """Return the id by which a client proves that it knows its subscription: an int32.

    It is the CRC-32C of the metrics and the interval, XOR the hash code of the id, as in Kafka.
    Only the order of several metrics differs: Kafka's is that of a hash table.
    """
    text = f"[{', '.join(metrics.metrics)}]{metrics.interval_ms}"
    folded = (instance_id.int >> 64) ^ (instance_id.int & _HALF_MASK)
    number = crc32c(text.encode()) ^ (folded >> 32) ^ (folded & 0xFFFF_FFFF)
    return number - 2 * _INT32_SIGN if number >= _INT32_SIGN else number


def client_attributes(session: Session, instance_id: UUID) -> dict[str, str]:
    """Return the attributes of a client that patterns may match."""
    encoded = base64.urlsafe_b64encode(instance_id.bytes).decode()
    return {
        CLIENT_INSTANCE_ID: encoded.rstrip("="),  # as Kafka writes ids
        CLIENT_ID: (session.client_id or "")[:ATTRIBUTE_SIZE_MAX],
        CLIENT_SOFTWARE_NAME: session.software_name[:ATTRIBUTE_SIZE_MAX],
        CLIENT_SOFTWARE_VERSION: session.software_version[:ATTRIBUTE_SIZE_MAX],
        CLIENT_SOURCE_ADDRESS: session.client_host,
        CLIENT_SOURCE_PORT: str(session.client_port),
    }


def _subscription(overrides: ClientMetricsOverrides) -> _Subscription | None:
    """Return a stored subscription; ``None`` if this program cannot match its patterns."""
    config = parse_config(ClientMetricsConfig, overrides.configs)
    try:
        patterns = tuple(
            (name, TopicPattern(text)) for name, text in parse_client_match(config.match).items()
        )
    except (InvalidPattern, ValueError):
        return None
    return _Subscription(patterns, SubscribedMetrics(config.metrics, config.interval_ms))
