"""Builds the handlers and the forwarder of clients' metrics."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tidelog_core.setting_values.urls import parse_otlp_endpoint, parse_otlp_headers

from tidelog_node.client_metrics.forwarder import Forwarder
from tidelog_node.client_metrics.instances import ClientInstances
from tidelog_node.counters import ClientMetricsTraffic
from tidelog_node.handlers.client_metrics import ClientMetricsHandlers
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import Route


@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """The APIs of clients that push metrics, and the forwarder."""

    routes: list[Route]  # empty if the metrics have nowhere to go
    forwarder: Forwarder | None


def build_client_metrics(stack: AsyncExitStack, node: NodeContext) -> ClientMetrics:
    """Return the parts; the stack sends the last metrics, and stops them."""
    config = node.static_config
    endpoint = parse_otlp_endpoint(config.client_metrics_otlp_endpoint)
    if not endpoint:
        return ClientMetrics([], None)
    traffic = node.counters.client_metrics = ClientMetricsTraffic()
    headers = parse_otlp_headers(config.client_metrics_otlp_headers)
    forwarder = Forwarder(endpoint, headers, traffic)
    stack.push_async_callback(forwarder.close)
    instances = ClientInstances(lambda: time.monotonic() * 1000, traffic)
    handlers = ClientMetricsHandlers(node, instances=instances, forwarder=forwarder)
    stack.callback(handlers.close)
    return ClientMetrics(handlers.routes(), forwarder)
