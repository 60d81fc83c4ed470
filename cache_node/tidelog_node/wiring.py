"""Assembles a node, runs it, and stops its parts in the opposite order.

settings → data directory, metadata store → view → membership → replicas, tier → coordinators
         → handlers → dispatch → server → lease → registration → takeovers → introduction → ready
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from tidelog_core.metadata.endpoints import BrokerEndpoint

from tidelog_node.assembly.background import Background
from tidelog_node.assembly.cluster import open_cluster
from tidelog_node.assembly.coordination import Coordination
from tidelog_node.assembly.late_diskless import LateDiskless
from tidelog_node.assembly.logs import open_logs, start_replication, start_rewriting, start_upkeep
from tidelog_node.assembly.monitoring import Monitoring, start_monitoring
from tidelog_node.assembly.serving import build_serving
from tidelog_node.connections.server import Server
from tidelog_node.membership.introduction import introduce
from tidelog_node.membership.kept_registration import keep_registered
from tidelog_node.monitoring.readiness import Phase
from tidelog_node.security.listeners import Listeners
from tidelog_node.settings import NodeSettings

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 2.0
OPEN_HINT = "give it the protocol SASL_SSL, or SSL with ssl.client.auth=required"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a serving node."""

    clients: BrokerEndpoint  # the first endpoint for clients
    http: str | None  # host and port of probes and metrics; ``None`` without ``--http-port``


async def run_node(
    settings: NodeSettings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[Addresses], None],
    drains: Callable[[], bool] = lambda: True,
) -> None:
    """Serve until ``stop`` is set, then leave in order.

    ``on_ready`` is called once clients are served, unless ``stop`` is set before. ``drains`` says
    at the end whether the node hands its leaderships over first. Raises the error that kept the
    node from starting or ended it.
    """
    async with AsyncExitStack() as stack:
        # First and last of all: probes see a node that starts or stops.
        monitoring = await start_monitoring(settings, stack)
        starting = asyncio.create_task(_start(settings, stack, stop, drains, monitoring))
        endpoint = await _unless_stopped(starting, stop)
        if endpoint is not None:
            monitoring.readiness.phase = Phase.SERVING
            logger.info(
                "node serves", extra={"broker_id": settings.broker_id, "port": endpoint.port}
            )
            on_ready(Addresses(endpoint, monitoring.http_address))
            await stop.wait()
        monitoring.readiness.phase = Phase.STOPPING
        logger.info("node stops")
    logger.info("node stopped")


async def _unless_stopped(
    starting: asyncio.Task[BrokerEndpoint], stop: asyncio.Event
) -> BrokerEndpoint | None:
    """Return the result of ``_start``; ``None`` if the node has to stop first, and it is cancelled.

    It may take long: it recovers logs, and waits for the leases of others and for the stores.
    """
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        starting.cancel()
        await asyncio.wait([starting])
    return None if stop.is_set() and starting.cancelled() else starting.result()


async def _start(
    settings: NodeSettings,
    stack: AsyncExitStack,
    stop: asyncio.Event,
    drains: Callable[[], bool],
    monitoring: Monitoring,
) -> BrokerEndpoint:
    """Start every part; the stack stops them. Return the first endpoint for clients."""
    cluster = await open_cluster(settings, stack, monitoring.tracer)
    node, member = cluster.node, cluster.member
    monitoring.readiness.join(node)
    logs = await open_logs(settings, stack, cluster)
    monitoring.readiness.recover(logs.replicas)
    coordination = Coordination(node, logs)
    stack.push_async_callback(coordination.close_connections)
    serving = build_serving(stack, cluster, logs, coordination, settings=settings)
    server = serving.server
    watching = await monitoring.watch(
        stack, cluster, logs, coordination, server=server, data_dir=settings.data_dir
    )
    # The lease is released after the last answer, and before the logs, whose closing takes time.
    stack.push_async_callback(member.leave)
    lease_tasks = Background(stop)
    stack.push_async_callback(lease_tasks.close)
    stack.push_async_callback(server.close, grace_seconds=SHUTDOWN_GRACE_SECONDS)
    # Waiting requests are answered first, so that the server need not wait for them.
    await coordination.start()
    stack.push_async_callback(coordination.close)
    stack.push_async_callback(serving.fetch.close)
    stack.push_async_callback(serving.share_fetch.close)
    stack.callback(serving.produce.close)
    stack.callback(server.stop_accepting)
    tasks = Background(stop)
    stack.push_async_callback(tasks.close)
    for work in (*cluster.background(), *serving.background(), *watching):
        tasks.add(work)
    if serving.share_exchange is not None:
        stack.push_async_callback(serving.share_exchange.close)
    start_upkeep(logs, tasks)
    await start_rewriting(cluster, logs, tasks)
    endpoints = _bind(server, settings.listeners)
    await member.take_lease(lease_tasks.add)
    register = partial(cluster.register, endpoints, rack=settings.rack)
    await register()
    fetchers = start_replication(stack, cluster, logs, tasks, register=register)
    diskless = LateDiskless(settings, cluster, logs, fetchers, stop=stop, serving=serving)
    stack.push_async_callback(diskless.close)
    await diskless.start()
    tasks.add(diskless.run())
    lease_tasks.add(
        keep_registered(node.view, member.membership, node.incarnation, register=register)
    )
    await member.enter(logs.replicas, lease_tasks.add)
    if serving.audit is not None:
        stack.push_async_callback(serving.audit.close)
    # Leaderships are handed over first, while clients can still ask for the new leaders.
    stack.push_async_callback(member.drain, drains)
    leading = Background(stop)
    stack.push_async_callback(leading.close)
    member.begin_leading(leading.add)
    if settings.registry_port is not None:
        # Only now: a node without a registry does without its modules and aiohttp.
        from tidelog_node.assembly.registry import start_registry

        await start_registry(
            settings,
            stack,
            cluster,
            objects=logs.tier.client,
            serving=serving,
            sources=monitoring.sources,
        )
    # Not before: a client that gets metadata without nodes waits long before it asks again.
    server.start_accepting()
    await introduce(node)
    return endpoints[0]


def _bind(server: Server, listeners: Listeners) -> tuple[BrokerEndpoint, ...]:
    """Take the addresses of all listeners; the first is for clients. Raises ``OSError``."""
    endpoints = tuple(server.bind(one) for one in (*listeners.clients, listeners.nodes))
    for one in listeners.clients:
        if one.is_open:
            extra = {"listener": one.name, "host": one.host, "hint": OPEN_HINT}
            logger.warning("listener is open to everyone who can reach it", extra=extra)
    return endpoints
