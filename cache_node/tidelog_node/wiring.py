"""Put a node together, run it, take it apart again in the opposite order.

settings → data directory, metadata store → view → replicas → coordinators, tier
         → handlers → dispatch → server → registration → ready
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import Any
from uuid import UUID, uuid4

from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.dispatch import Dispatch
from tidelog_node.flushing import Flusher
from tidelog_node.handlers.api_versions import ApiVersionsHandler
from tidelog_node.handlers.cluster import ClusterHandlers
from tidelog_node.handlers.configs import ConfigHandlers
from tidelog_node.handlers.delete_records import DeleteRecordsHandler
from tidelog_node.handlers.fetch import FetchHandler
from tidelog_node.handlers.find_coordinator import FindCoordinatorHandlers
from tidelog_node.handlers.groups import GroupHandlers
from tidelog_node.handlers.leader_epoch import LeaderEpochHandler
from tidelog_node.handlers.list_offsets import ListOffsetsHandler
from tidelog_node.handlers.log_dirs import LogDirsHandler
from tidelog_node.handlers.metadata import MetadataHandlers
from tidelog_node.handlers.offsets import OffsetHandlers
from tidelog_node.handlers.produce import ProduceHandler
from tidelog_node.handlers.producer_ids import ProducerIdHandlers
from tidelog_node.handlers.topics import TopicHandlers
from tidelog_node.log_directories import LogDirectories
from tidelog_node.registration import (
    ensure_cluster,
    register_broker,
    require_gone,
    wait_until_replaced,
)
from tidelog_node.replicas import ReplicaManager
from tidelog_node.restore import restore_logs
from tidelog_node.routes import Route
from tidelog_node.server import Server
from tidelog_node.settings import NodeSettings
from tidelog_node.tier.service import TierService

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 2.0
TIER_SOCKET = "tier.sock"
TIER_CACHE_DIR = "tier-cache"


async def run_node(
    settings: NodeSettings, *, stop: asyncio.Event, on_ready: Callable[[int], None]
) -> None:
    """Serve until ``stop`` is set, then leave in order.

    ``on_ready`` gets the port once clients are served. Raises what kept the node from
    starting, and what broke it while it ran.
    """
    async with AsyncExitStack() as stack:
        port = await _start(settings, stack, stop)
        on_ready(port)
        await stop.wait()
        logger.info("node stops")
    logger.info("node stopped")


async def _start(settings: NodeSettings, stack: AsyncExitStack, stop: asyncio.Event) -> int:
    """Start every part; the stack takes them apart. Return the port."""
    static_config = parse_config(NodeConfig, settings.config_overrides)
    directories = LogDirectories(settings.data_dir)
    stack.callback(directories.close)
    store = open_metadata_store(settings.metadata_store_url)
    stack.push_async_callback(store.close)
    cluster = await ensure_cluster(store, may_create=directories.is_new)
    view = ClusterView(store)
    await view.refresh()
    await require_gone(view.image, settings.broker_id)
    is_new_node = not directories.belongs_to(cluster.cluster_id, settings.broker_id)
    await restore_logs(
        store, view, directories, broker_id=settings.broker_id, is_new_node=is_new_node
    )
    directories.take_possession(cluster.cluster_id, settings.broker_id)

    def node_config() -> NodeConfig:
        return current_config[0]

    current_config = [effective_node_config(static_config, view.image, settings.broker_id)]

    def update_config(_image: object, _topics: object) -> None:
        current_config[0] = effective_node_config(static_config, view.image, settings.broker_id)

    view.subscribe(update_config)
    executor = ThreadPoolExecutor(static_config.background_threads, "tidelog-files")
    stack.callback(executor.shutdown)
    replicas = ReplicaManager(
        view=view,
        broker_id=settings.broker_id,
        directories=directories,
        node_config=node_config,
        executor=executor,
    )
    await replicas.start()
    stack.push_async_callback(replicas.close)
    flusher = Flusher(executor)
    stack.push_async_callback(flusher.close)
    tier = TierService(
        replicas=replicas,
        view=view,
        store=store,
        node_config=node_config,
        broker_id=settings.broker_id,
        clock_ms=_wall_clock_ms,
        executor=executor,
        objects_url=settings.object_store_url,
        socket=settings.data_dir / TIER_SOCKET,
        cache_dir=settings.data_dir / TIER_CACHE_DIR,
        holds_files=directories.holds,
    )
    await tier.start()
    stack.push_async_callback(tier.close)
    coordinator = GroupCoordinator(
        store=store, view=view, node_config=node_config, broker_id=settings.broker_id
    )
    await coordinator.start()
    parts: dict[str, Any] = {
        "view": view,
        "store": store,
        "node_config": node_config,
        "broker_id": settings.broker_id,
        "clock_ms": _wall_clock_ms,
    }
    control: list[Route] = [
        *MetadataHandlers(**parts).routes(),
        *TopicHandlers(**parts, static_config=static_config).routes(),
        *ConfigHandlers(**parts, static_config=static_config).routes(),
        *ClusterHandlers(**parts).routes(),
        *FindCoordinatorHandlers(**parts).routes(),
        *GroupHandlers(coordinator=coordinator).routes(),
        *OffsetHandlers(coordinator=coordinator, view=view, node_config=node_config).routes(),
        *ProducerIdHandlers(store=store).routes(),
        *ListOffsetsHandler(replicas=replicas, tier=tier).routes(),
        *LeaderEpochHandler(replicas=replicas).routes(),
        *LogDirsHandler(replicas=replicas, data_dir=settings.data_dir).routes(),
        *DeleteRecordsHandler(replicas=replicas, store=store).routes(),
        *ApiVersionsHandler(lambda: dispatch.advertised()).routes(),  # noqa: PLW0108
    ]
    produce = ProduceHandler(replicas=replicas, flusher=flusher)
    fetch = FetchHandler(replicas=replicas, node_config=node_config, tier=tier)
    dispatch = Dispatch([produce.hot_route(), fetch.hot_route()], control)
    server = Server(
        dispatch,
        request_bytes_max=static_config.socket_request_max_bytes,
        queued_requests_max=static_config.queued_max_requests,
        idle_seconds_max=static_config.connections_max_idle_ms / 1000,
        send_buffer_bytes=static_config.socket_send_buffer_bytes,
    )
    stack.push_async_callback(server.close, grace_seconds=SHUTDOWN_GRACE_SECONDS)
    # Those who wait are answered first, so that the server has nothing to wait for.
    stack.push_async_callback(coordinator.close)
    stack.push_async_callback(fetch.close)
    stack.callback(server.stop_accepting)
    tasks = _Background(stop)
    stack.push_async_callback(tasks.close)
    tasks.add(view.run(static_config.metadata_poll_interval_ms / 1000))
    tasks.add(flusher.run(replicas))
    port = server.bind(settings.host, settings.port)
    incarnation = await _register(settings, store, port)
    await view.refresh()
    tasks.add(wait_until_replaced(view, settings.broker_id, incarnation))
    # Not before: a client that is told of a cluster without nodes waits long to ask again.
    server.start_accepting()
    logger.info("node serves", extra={"broker_id": settings.broker_id, "port": port})
    return port


async def _register(settings: NodeSettings, store: MetadataStore, port: int) -> UUID:
    """Make this process known to the cluster; return its incarnation."""
    incarnation = uuid4()
    await register_broker(
        store,
        broker_id=settings.broker_id,
        incarnation=incarnation,
        host=settings.client_host,
        port=settings.advertised_port or port,
        rack=settings.rack,
    )
    return incarnation


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Background:
    """Tasks that must never end before the node does."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def close(self) -> None:
        """Cancel the tasks. Raises what broke one of them."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            logger.error("background task ended", exc_info=task.exception())
            self._stop.set()
