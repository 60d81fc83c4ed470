"""Subscribes to the metrics of clients, and pushes some as a client does."""

from __future__ import annotations

import uuid
from typing import Any

from tests.support.peer import Peer

CLIENT_METRICS = 16  # the type of the resource
SET = 0
NO_ID = uuid.UUID(int=0)


def subscribe(peer: Peer, name: str, **settings: str) -> None:
    """Set these settings of a subscription; names have underscores instead of dots."""
    configs = [
        {"name": key.replace("_", "."), "config_operation": SET, "value": value}
        for key, value in settings.items()
    ]
    change = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    answer = peer.call("incremental_alter_configs", 1, resources=[change])
    assert answer["responses"][0]["error_code"] == "none", answer


def ask(peer: Peer, instance_id: uuid.UUID = NO_ID) -> Any:
    """Return the answer to GetTelemetrySubscriptions."""
    return peer.call("get_telemetry_subscriptions", 0, client_instance_id=instance_id)


def push(peer: Peer, asked: Any, metrics: bytes, **fields: Any) -> Any:
    """Return the answer to PushTelemetry, by the answer to ``ask``."""
    given = {
        "client_instance_id": asked["client_instance_id"],
        "subscription_id": asked["subscription_id"],
        "terminating": False,
        "compression_type": 0,
        "metrics": metrics,
    }
    return peer.call("push_telemetry", 0, **{**given, **fields})
