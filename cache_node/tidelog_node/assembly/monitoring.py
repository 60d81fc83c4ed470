"""Builds the HTTP endpoints of a node: probes and metrics."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.metadata.stores.usage import usage_of
from tidelog_core.software_version import tidelog_version

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.coordination import Coordination
from tidelog_node.assembly.logs import Logs
from tidelog_node.connections.server import Server
from tidelog_node.monitoring.readiness import Readiness
from tidelog_node.security.listeners import is_loopback
from tidelog_node.settings import NodeSettings
from tidelog_node.tracing.tracer import Tracer

if TYPE_CHECKING:
    from tidelog_node.http_serving.known_hosts import KnownHosts
    from tidelog_node.monitoring.embedded_metrics import EmbeddedMetrics
    from tidelog_node.monitoring.sources import Sources
    from tidelog_node.tracing.otlp_tracer import OtlpTracer

logger = logging.getLogger(__name__)

OPEN_HINT = "give it a loopback address, or let only probes and Prometheus reach its port"


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The parts of monitoring that the rest of the node reports to."""

    readiness: Readiness
    sources: Sources | None = None  # ``None``: nobody reads metrics
    embedded: EmbeddedMetrics | None = None  # if CloudWatch reads some
    http_address: str | None = None  # host and port
    tracer: Tracer | None = None  # ``None``: nothing is traced

    async def watch(
        self,
        stack: AsyncExitStack,
        cluster: Cluster,
        logs: Logs,
        coordination: Coordination,
        *,
        server: Server,
        data_dir: Path,
    ) -> list[Coroutine[Any, Any, None]]:
        """Serve the metrics of these parts too; return work to be run while the node runs."""
        sources = self.sources
        if sources is None:
            return []
        from tidelog_node.dialing.peers import Peers
        from tidelog_node.monitoring.chain_source import ChainSource
        from tidelog_node.monitoring.coordinator_source import CoordinatorSource
        from tidelog_node.monitoring.cost_source import CostSource
        from tidelog_node.monitoring.gateway_source import GatewaySource
        from tidelog_node.monitoring.group_lag import GroupLag
        from tidelog_node.monitoring.leader_answers import LeaderAnswers
        from tidelog_node.monitoring.partition_source import PartitionSource
        from tidelog_node.monitoring.request_source import RequestSource
        from tidelog_node.monitoring.storage_source import StorageSource
        from tidelog_node.monitoring.tier_source import TierSource

        node, replicas = cluster.node, logs.replicas
        usages = [usage for store in cluster.stores if (usage := usage_of(store)) is not None]
        peers = Peers(node.view, node.dialer, connections_max=1)
        stack.push_async_callback(peers.close)
        coordinators = await coordination.get()
        lag = GroupLag(node, coordinators.hosted, LeaderAnswers(node, peers))
        for source in (
            RequestSource(node.counters, server.memory),
            PartitionSource(node, replicas),
            CoordinatorSource(
                node,
                groups=coordinators.hosted,
                lag=lag,
                transactions=coordinators.transactions.hosted,
            ),
            StorageSource(node, replicas.disk, data_dir=data_dir, usages=usages),
            TierSource(node, logs.tier),
            ChainSource(node.counters.chain),
            GatewaySource(node.counters.gateway),
        ):
            sources.add(source.collect)
        if logs.costs is not None:
            sources.add(CostSource(node, logs.costs).collect)
        return [lag.run()] if self.embedded is None else [lag.run(), self.embedded.run()]


async def start_monitoring(settings: NodeSettings, stack: AsyncExitStack) -> Monitoring:
    """Serve the endpoints, if the node has any, until the stack is left.

    Raises ``OSError``, and ``InvalidConfig``.
    """
    readiness = Readiness(settings.broker_id)
    config = parse_config(NodeConfig, settings.config_overrides)
    tracer = _open_tracer(config, settings.broker_id)
    if tracer is not None:
        stack.push_async_callback(tracer.close)
    cloudwatch_cluster = config.metrics_cloudwatch_cluster
    if settings.http_port is None and not cloudwatch_cluster:
        return Monitoring(readiness, tracer=tracer)
    # Only now, as below: most nodes do without.
    from tidelog_node.http_serving.known_hosts import KnownHosts
    from tidelog_node.monitoring.node_source import NodeSource
    from tidelog_node.monitoring.sources import Sources

    sources = Sources()
    sources.add(NodeSource(readiness).collect)
    embedded = None
    if cloudwatch_cluster:
        from tidelog_node.monitoring.embedded_metrics import EmbeddedMetrics

        embedded = EmbeddedMetrics(
            sources,
            cluster=cloudwatch_cluster,
            broker_id=settings.broker_id,
            clock_ms=wall_clock_ms,
            write=_write_to_log,
        )
    address = None
    if settings.http_port is not None:
        where = (settings.http_host, settings.http_port)
        address = await _serve_http(
            where,
            stack,
            readiness,
            hosts=KnownHosts.of(settings.host_names),
            or_free=settings.http_port_or_free,
            sources=sources,
            tracer=tracer,
        )
    return Monitoring(readiness, sources, embedded, address, tracer)


def _open_tracer(config: NodeConfig, broker_id: int) -> OtlpTracer | None:
    if not config.tracing_otlp_endpoint:
        return None
    from tidelog_node.tracing.otlp_tracer import open_tracer

    return open_tracer(config, broker_id, version=tidelog_version())


async def _serve_http(
    address: tuple[str, int],
    stack: AsyncExitStack,
    readiness: Readiness,
    *,
    hosts: KnownHosts,
    or_free: bool,
    sources: Sources,
    tracer: Tracer | None,
) -> str:
    """Serve probes and metrics until the stack is left; return host and port.

    ``or_free``: if the port is in use, at a free one.
    """
    # Only now: they take a tenth of a second and 15 MB.
    from tidelog_node.monitoring.exposition import Exposition
    from tidelog_node.monitoring.http_server import HttpServer
    from tidelog_node.monitoring.probes import Probes

    host, port = address
    exposition, probes = Exposition(sources), Probes(readiness)
    pages = {"/livez": probes.livez, "/readyz": probes.readyz, "/metrics": exposition.metrics}
    server = HttpServer(pages, tracer, hosts=hosts)
    stack.push_async_callback(exposition.close)
    stack.push_async_callback(server.close)
    try:
        port = await server.start(host, port)
    except OSError as error:
        if not (or_free and error.errno == errno.EADDRINUSE):
            raise
        port = await server.start(host, 0)
    logger.info("http endpoints serve", extra={"host": host, "port": port})
    if not is_loopback(host):
        extra = {"host": host, "port": port, "hint": OPEN_HINT}
        logger.warning("http endpoints are open to everyone who can reach them", extra=extra)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _write_to_log(line: str) -> None:
    """Write a line to the log's stream, without the prefix of log lines."""
    # As for the log's own lines: the node goes on when nobody reads them any more.
    with suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
