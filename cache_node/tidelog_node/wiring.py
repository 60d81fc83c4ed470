"""Put a node together, run it, take it apart again in the opposite order.

settings → data directory, metadata store → view → membership → replicas → coordinators, tier
         → handlers → dispatch → server → registration → lease → takeovers → ready
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from uuid import uuid4

from tidelog_core.clock import steady_clock_ms, wall_clock_ms
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.log.open_files import OpenFiles
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.retention.clock_watch import ClockWatch, store_witness

from tidelog_node.background import Background
from tidelog_node.compaction.log_cleaner import LogCleaner
from tidelog_node.control_routes import control_routes
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.hosted_groups import HostedGroups
from tidelog_node.dialing.dialer import Dialer
from tidelog_node.disk.data_disk import DataDisk, DiskWatch
from tidelog_node.dispatch import Dispatch
from tidelog_node.erasure.evicting_eraser import EvictingEraser
from tidelog_node.erasure.rewriting_eraser import RewritingEraser
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.fetchers import FollowerFetchers
from tidelog_node.groups.share.partitions import SharePartitions
from tidelog_node.groups.share.service import ShareService
from tidelog_node.handlers.api_versions import ApiVersionsHandler
from tidelog_node.handlers.fetch import FetchHandler
from tidelog_node.handlers.produce import ProduceHandler
from tidelog_node.handlers.share_acknowledge import ShareAcknowledgeHandler
from tidelog_node.handlers.share_fetch import ShareFetchHandler
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.logs.restore import restore_logs
from tidelog_node.membership.lease_thread import LeaseThread
from tidelog_node.membership.member import ClusterMember
from tidelog_node.node_health import NodeHealth
from tidelog_node.parts import ClusterParts, DataParts, TransactionParts
from tidelog_node.registration import ensure_cluster, register_broker, wait_until_replaced
from tidelog_node.replica import Replica
from tidelog_node.replicas import ReplicaManager
from tidelog_node.replication.closest import RackAwareness
from tidelog_node.replication.lead_checks import LeadChecks
from tidelog_node.replication.leader_writes import LeaderWrites
from tidelog_node.server import Server
from tidelog_node.settings import NodeSettings
from tidelog_node.tier.service import TierService
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.group_offsets import TransactionalOffsets
from tidelog_node.transactions.marker_writer import BrokerMarkers, MarkerWriter
from tidelog_node.transactions.markers import MarkerSender
from tidelog_node.transactions.peers import Peers
from tidelog_node.transactions.produce_gate import ProduceGate
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.transactions.verifier import TransactionVerifier
from tidelog_node.upkeep.flushing import Flusher
from tidelog_node.upkeep.log_changes import LogChanges
from tidelog_node.upkeep.log_reopening import LogReopener
from tidelog_node.upkeep.log_upkeep import LogUpkeep
from tidelog_node.upkeep.scrubbing import Scrubber
from tidelog_node.upkeep.segment_mending import SegmentMender

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 2.0
TIER_SOCKET = "tier.sock"
TIER_CACHE_DIR = "tier-cache"


async def run_node(
    settings: NodeSettings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[int], None],
    drains: Callable[[], bool] = lambda: True,
) -> None:
    """Serve until ``stop`` is set, then leave in order.

    ``on_ready`` gets the port once clients are served. ``drains`` is asked at the end
    whether to hand over first what other nodes can lead. Raises what kept the node from
    starting, and what broke it while it ran.
    """
    async with AsyncExitStack() as stack:
        port = await _start(settings, stack, stop, drains)
        on_ready(port)
        await stop.wait()
        logger.info("node stops")
    logger.info("node stopped")


async def _start(
    settings: NodeSettings,
    stack: AsyncExitStack,
    stop: asyncio.Event,
    drains: Callable[[], bool],
) -> int:
    """Start every part; the stack takes them apart. Return the port."""
    cluster = await _open_cluster(settings, stack)
    static_config, view, member = cluster.static_config, cluster.view, cluster.member
    data = await _open_logs(settings, stack, cluster)
    groups = HostedGroups(
        store=cluster.store,
        view=view,
        node_config=cluster.node_config,
        broker_id=settings.broker_id,
        leads=member.membership.leads,
        can_serve=member.membership.can_serve,
        may_expire=data.may_expire,
    )
    coordinator = GroupCoordinator(
        groups, store=cluster.store, view=view, node_config=cluster.node_config
    )
    await coordinator.start()
    can_serve = member.membership.can_serve
    transactions = await _start_transactions(settings, stack, cluster, data, coordinator)
    produce = ProduceHandler(
        replicas=data.replicas,
        flusher=data.flusher,
        inspector=data.inspector,
        can_serve=can_serve,
        gate=ProduceGate(transactions.verifier),
    )
    fetch = FetchHandler(
        replicas=data.replicas,
        node_config=cluster.node_config,
        can_serve=can_serve,
        closest=RackAwareness(
            view=view, broker_id=settings.broker_id, is_live=member.membership.is_live
        ),
    )
    share_service = _start_share_service(stack, cluster, data)
    share_fetch = ShareFetchHandler(service=share_service, node_config=cluster.node_config)
    control = control_routes(settings, cluster, data, coordinator, transactions)
    control += ShareAcknowledgeHandler(service=share_service).routes()
    control += ApiVersionsHandler(lambda: dispatch.advertised()).routes()  # noqa: PLW0108
    hot = [produce.hot_route(), fetch.hot_route(), share_fetch.hot_route()]
    dispatch = Dispatch(
        hot,
        control,
        elements_max=static_config.socket_request_max_elements,
        partitions_max=static_config.socket_request_max_partitions,
    )
    stack.callback(dispatch.close)
    server = Server(
        dispatch,
        request_bytes_max=static_config.socket_request_max_bytes,
        queued_requests_max=static_config.queued_max_requests,
        queued_request_bytes_max=static_config.queued_max_request_bytes,
        frame_seconds_max=static_config.queued_request_receive_timeout_ms / 1000,
        idle_seconds_max=static_config.connections_max_idle_ms / 1000,
        send_buffer_bytes=static_config.socket_send_buffer_bytes,
    )
    # The lease goes when nobody is answered any more, and before logs take time to close.
    stack.push_async_callback(member.leave)
    lease_tasks = Background(stop)
    stack.push_async_callback(lease_tasks.close)
    stack.push_async_callback(server.close, grace_seconds=SHUTDOWN_GRACE_SECONDS)
    # Those who wait are answered first, so that the server has nothing to wait for.
    stack.push_async_callback(coordinator.close)
    stack.push_async_callback(transactions.coordinator.close)
    stack.push_async_callback(fetch.close)
    stack.push_async_callback(share_fetch.close)
    stack.callback(produce.close)
    stack.callback(server.stop_accepting)
    tasks = Background(stop)
    stack.push_async_callback(tasks.close)
    tasks.add(view.run(static_config.metadata_poll_interval_ms / 1000))
    _start_upkeep(data, tasks)
    await _start_rewriting(settings, cluster, data, tasks)
    port = server.bind(settings.host, settings.port)
    await member.take_lease(lease_tasks.add)
    register = partial(_register, settings, cluster, port)
    await register()
    _start_replication(settings, stack, cluster, data, tasks, register=register)
    lease_tasks.add(wait_until_replaced(view, settings.broker_id, cluster.incarnation))
    await member.enter(data.replicas, lease_tasks.add)
    # Leaderships go first, while clients are still told where they are now.
    stack.push_async_callback(member.drain, drains)
    leading = Background(stop)
    stack.push_async_callback(leading.close)
    member.begin_leading(leading.add)
    # Not before: a client that is told of a cluster without nodes waits long to ask again.
    server.start_accepting()
    logger.info("node serves", extra={"broker_id": settings.broker_id, "port": port})
    return port


async def _open_cluster(settings: NodeSettings, stack: AsyncExitStack) -> ClusterParts:
    """Open directory and stores; on return no other process of this broker id acts."""
    static_config = parse_config(NodeConfig, settings.config_overrides)
    directories = LogDirectories(settings.data_dir)
    stack.callback(directories.close)
    store = open_metadata_store(settings.metadata_store_url)
    stack.push_async_callback(store.close)
    # Of their own: readings of leases must not queue behind whatever else is asked of the
    # store, and renewals must not wait for this loop.
    lease_store = open_metadata_store(settings.metadata_store_url)
    stack.push_async_callback(lease_store.close)
    renewal_store = open_metadata_store(settings.metadata_store_url)
    lease_thread = LeaseThread()
    stack.push_async_callback(lease_thread.close)
    stack.push_async_callback(lambda: lease_thread.run(renewal_store.close()))
    known = await ensure_cluster(store, may_create=directories.is_new)
    directories.take_possession(known.cluster_id, settings.broker_id)
    view = ClusterView(store)
    await view.refresh()

    def node_config() -> NodeConfig:
        return current_config[0]

    current_config = [effective_node_config(static_config, view.image, settings.broker_id)]

    def update_config(_image: object, _topics: object) -> None:
        current_config[0] = effective_node_config(static_config, view.image, settings.broker_id)

    view.subscribe(update_config)
    incarnation, health = uuid4(), NodeHealth()
    dialer = Dialer(settings.broker_id)
    member = ClusterMember(
        dialer=dialer,
        incarnation=incarnation,
        store=store,
        lease_store=lease_store,
        renewal_store=renewal_store,
        run_renewals=lease_thread.run,
        view=view,
        node_config=node_config,
        health=health,
    )
    await member.prepare(settings.data_dir, was_clean=directories.was_clean)
    unrestored = await restore_logs(
        store,
        view,
        directories,
        broker_id=settings.broker_id,
        objects_url=settings.object_store_url,
    )
    return ClusterParts(
        static_config,
        node_config,
        directories,
        store,
        view,
        dialer,
        member,
        incarnation,
        unrestored,
        health,
    )


async def _open_logs(
    settings: NodeSettings, stack: AsyncExitStack, cluster: ClusterParts
) -> DataParts:
    """Recover the logs and start what works on them."""
    executor = ThreadPoolExecutor(cluster.static_config.background_threads, "tidelog-files")
    stack.callback(executor.shutdown)
    membership = cluster.member.membership
    disk, health = DataDisk(), cluster.health
    disk.changed.subscribe(lambda: membership.tell_disk(is_fit=disk.is_fit))
    disk_watch = DiskWatch(
        disk,
        path=settings.data_dir,
        node_config=cluster.node_config,
        health=health,
        executor=executor,
    )
    await disk_watch.look()
    replicas = ReplicaManager(
        view=cluster.view,
        broker_id=settings.broker_id,
        directories=cluster.directories,
        node_config=cluster.node_config,
        executor=executor,
        leads=membership.leads,
        may_serve=membership.can_serve,
        refusal=cluster.unrestored.refusal,
        clock_ms=membership.now_ms,
        open_files=OpenFiles(_open_files_max(cluster.static_config)),
        disk=disk,
        remote_of=lambda replica: tier.remote_log(replica),  # noqa: PLW0108
    )
    await replicas.start()
    stack.push_async_callback(replicas.close)
    inspector = BatchInspector()
    stack.push_async_callback(inspector.close)
    changes = LogChanges(replicas)
    flusher = Flusher(executor)
    stack.push_async_callback(flusher.close)
    clock = ClockWatch(
        wall_ms=wall_clock_ms,
        steady_ms=steady_clock_ms,
        node_config=cluster.node_config,
        sources=[store_witness(cluster.store), membership.peer_clocks.witnesses],
        has_heard_all=lambda: membership.peer_clocks.have_heard(
            membership.live_brokers(cluster.view.image)
        ),
    )

    def may_expire() -> bool:
        return clock.may_expire(tier.witnesses)

    eraser = EvictingEraser(
        store=cluster.store,
        view=cluster.view,
        replicas=replicas,
        broker_id=settings.broker_id,
    )
    tier = TierService(
        replicas=replicas,
        view=cluster.view,
        store=cluster.store,
        node_config=cluster.node_config,
        broker_id=settings.broker_id,
        clock_ms=wall_clock_ms,
        executor=executor,
        inspector=inspector,
        objects_url=settings.object_store_url,
        socket=settings.data_dir / TIER_SOCKET,
        cache_dir=settings.data_dir / TIER_CACHE_DIR,
        honour_erasures=eraser.honour,
        holds_files=cluster.directories.holds,
        may_expire=may_expire,
    )
    changes.subscribe(tier.on_changed)
    await tier.start()
    stack.push_async_callback(tier.close)
    return DataParts(replicas, changes, flusher, tier, executor, disk_watch, may_expire, inspector)


def _open_files_max(config: NodeConfig) -> int:
    """Return how many segment files may be open, so that there is room for everything else."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(config.log_open_files_max, allowed // 4 * 3)


def _start_upkeep(data: DataParts, tasks: Background) -> None:
    upkeep = LogUpkeep(data.flusher, data.replicas)
    data.changes.subscribe(upkeep.on_changed)
    tasks.add(data.changes.run())
    tasks.add(upkeep.run())
    tasks.add(data.disk_watch.run())


async def _start_rewriting(
    settings: NodeSettings, cluster: ClusterParts, data: DataParts, tasks: Background
) -> None:
    """Start what replaces segments of this node's logs: mending, compaction, erasing of keys."""
    busy: set[Replica] = set()
    mender = SegmentMender(
        replicas=data.replicas,
        view=cluster.view,
        dialer=cluster.dialer,
        broker_id=settings.broker_id,
        tier=data.tier,
        directories=cluster.directories,
        hand_over=cluster.member.hand_over,
        busy=busy,
        health=cluster.health,
        executor=data.executor,
    )
    data.tier.suspected.subscribe(mender.suspect)
    tasks.add(mender.run())
    scrubber = Scrubber(replicas=data.replicas, node_config=cluster.node_config, mender=mender)
    tasks.add(scrubber.run())
    cleaner = LogCleaner(
        replicas=data.replicas,
        tier=data.tier,
        node_config=cluster.node_config,
        clock_ms=wall_clock_ms,
        may_expire=data.may_expire,
        holds_files=cluster.directories.holds,
        suspect=mender.suspect,
        busy=busy,
        executor=data.executor,
    )
    if cluster.static_config.log_cleaner_enable:
        data.changes.subscribe(cleaner.on_changed)
        tasks.add(cleaner.run())
    eraser = RewritingEraser(
        store=cluster.store,
        view=cluster.view,
        replicas=data.replicas,
        tier=data.tier,
        node_config=cluster.node_config,
        broker_id=settings.broker_id,
        busy=busy,
        executor=data.executor,
    )
    await eraser.start()
    tasks.add(eraser.run())


def _start_replication(
    settings: NodeSettings,
    stack: AsyncExitStack,
    cluster: ClusterParts,
    data: DataParts,
    tasks: Background,
    *,
    register: Callable[[], Awaitable[None]],
) -> None:
    """Start to follow other leaders, and to write what this node's leaders decide."""
    config = cluster.static_config
    writes = LeaderWrites(
        replicas=data.replicas,
        standing=cluster.member.membership,
        store=cluster.store,
        view=cluster.view,
        broker_id=settings.broker_id,
        lag_time_max_ms=config.replica_lag_time_max_ms,
    )
    data.changes.subscribe(writes.on_changed)
    tasks.add(writes.run())
    catch_up = CatchUp(
        history=data.tier.history,
        view=cluster.view,
        dialer=cluster.dialer,
        broker_id=settings.broker_id,
        timeout_s=config.replica_socket_timeout_ms / 1000,
    )
    reopener = LogReopener(
        replicas=data.replicas,
        disk=data.replicas.disk,
        directories=cluster.directories,
        view=cluster.view,
        broker_id=settings.broker_id,
        can_serve=cluster.member.membership.can_serve,
        lead_anew=cluster.member.lead_anew,
        register=register,
        health=cluster.health,
        executor=data.executor,
    )
    tasks.add(reopener.run())
    checks = LeadChecks(replicas=data.replicas, catch_up=catch_up)
    stack.push_async_callback(checks.close)
    fetchers = FollowerFetchers(
        replicas=data.replicas,
        view=cluster.view,
        dialer=cluster.dialer,
        broker_id=settings.broker_id,
        incarnation=cluster.incarnation,
        node_config=cluster.node_config,
        catch_up=catch_up,
    )
    fetchers.start()
    stack.push_async_callback(fetchers.close)


async def _start_transactions(
    settings: NodeSettings,
    stack: AsyncExitStack,
    cluster: ClusterParts,
    data: DataParts,
    groups: GroupCoordinator,
) -> TransactionParts:
    """Start to coordinate transactions."""
    membership, view = cluster.member.membership, cluster.view
    producer_ids = ProducerIds(cluster.store)
    # A question about a transaction must not wait behind markers that are being replicated.
    marker_peers = Peers(view=view, dialer=cluster.dialer, connections_max=1)
    question_peers = Peers(view=view, dialer=cluster.dialer)
    stack.push_async_callback(marker_peers.close)
    stack.push_async_callback(question_peers.close)
    target = BrokerMarkers(broker_id=settings.broker_id, peers=marker_peers)
    coordinator = TransactionCoordinator(
        store=cluster.store,
        view=view,
        node_config=cluster.node_config,
        take_producer_id=producer_ids.take,
        markers=MarkerSender(view=view, target=target),
        leads=membership.leads,
        can_serve=membership.can_serve,
        may_expire=data.may_expire,
    )
    verifier = TransactionVerifier(
        view=view, broker_id=settings.broker_id, coordinator=coordinator, peers=question_peers
    )
    offsets = TransactionalOffsets(
        store=cluster.store,
        view=view,
        groups=groups,
        verifier=verifier,
        broker_id=settings.broker_id,
    )
    writer = MarkerWriter(
        replicas=data.replicas,
        flusher=data.flusher,
        offsets=offsets,
        can_serve=membership.can_serve,
        clock_ms=wall_clock_ms,
    )
    target.own = writer
    await coordinator.start()
    stack.push_async_callback(coordinator.close)
    return TransactionParts(producer_ids, coordinator, verifier, writer, offsets)


def _start_share_service(
    stack: AsyncExitStack, cluster: ClusterParts, data: DataParts
) -> ShareService:
    """Start to keep what share groups do with the partitions that this node leads."""
    partitions = SharePartitions(
        store=cluster.store,
        view=cluster.view,
        replicas=data.replicas,
        node_config=cluster.node_config,
        inspector=data.inspector,
    )
    partitions.start()
    stack.push_async_callback(partitions.close)
    service = ShareService(
        replicas=data.replicas,
        partitions=partitions,
        node_config=cluster.node_config,
        can_serve=cluster.member.membership.can_serve,
    )
    stack.push_async_callback(service.close)
    return service


async def _register(settings: NodeSettings, cluster: ClusterParts, port: int) -> None:
    """Make this process known to the cluster, and see it in the view."""
    await register_broker(
        cluster.store,
        broker_id=settings.broker_id,
        incarnation=cluster.incarnation,
        endpoints=plaintext_endpoints(settings.client_host, settings.advertised_port or port),
        rack=settings.rack,
    )
    await cluster.view.refresh()
