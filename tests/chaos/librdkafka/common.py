"""What librdkafka is told in every session."""

from __future__ import annotations

from typing import Any

from tests.chaos.librdkafka.link import Order

POLL_MS = 300


def common(order: Order) -> dict[str, Any]:
    """Return the settings of every client."""
    return {
        "bootstrap.servers": order.bootstrap,
        "client.id": order.session,
        "reconnect.backoff.max.ms": 500,
        "broker.address.family": "v4",
        "log_level": 0,
        "error_cb": lambda _: None,
    }


def common_of_consumers(order: Order) -> dict[str, Any]:
    """Return the settings of every consumer, all of which are in groups."""
    return {
        **common(order),
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "fetch.wait.max.ms": 200,
        "socket.timeout.ms": 3_000,
        "topic.metadata.refresh.interval.ms": 2_000,
    }
