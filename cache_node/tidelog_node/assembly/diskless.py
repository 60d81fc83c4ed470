"""Builds the parts for diskless partitions: the node's chain, takeovers, recovery, the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.successors import SuccessorSearch
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.location import parse_object_location

from tidelog_node.assembly.background import Background
from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.logs import GATEWAY_DIR, Logs
from tidelog_node.assembly.serving import Serving
from tidelog_node.dialing.peers import Peers
from tidelog_node.diskless.chain.abandoned_chains import AbandonedChains, abandoned_after_ms
from tidelog_node.diskless.chain.checkpoints import ChainCheckpoints
from tidelog_node.diskless.chain.collection import ChainCollection
from tidelog_node.diskless.chain.long_tails import FREE, PAID, LongTails
from tidelog_node.diskless.chain.node_chain import NodeChain
from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.chain.standby import stand_by
from tidelog_node.diskless.chain.store_watch import StoreWatch, probe_store
from tidelog_node.diskless.feed.chain_feeds import ChainFeeds
from tidelog_node.diskless.gateway.gateway import Gateway
from tidelog_node.diskless.gateway.leader_log_ends import LeaderLogEnds
from tidelog_node.diskless.gateway.links import LeaderLinks
from tidelog_node.diskless.gateway.spool import GatewaySpool, remove_spool
from tidelog_node.diskless.recovery.log_recovery import LogRecovery
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.prefetch import Prefetch
from tidelog_node.diskless.recovery.range_cache import RangeCache
from tidelog_node.diskless.recovery.range_reader import RangeReader, range_reader
from tidelog_node.diskless.recovery.tail_fills import FILL_LIMITS, TailFills
from tidelog_node.diskless.recovery.tier_indexes import TierIndexes
from tidelog_node.diskless.takeover.conversions import Conversions
from tidelog_node.diskless.takeover.takeovers import Takeovers
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.fetchers import FollowerFetchers
from tidelog_node.handlers.produce.gateway_append import GatewayAppends
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.settings import NodeSettings
from tidelog_node.tier.history import TierHistory
from tidelog_node.tier.lent_ranges import RangeLender
from tidelog_node.tier.manifests import BucketManifests

WAL_SOCKET = "wal.sock"
WAL_CACHE_DIR = "wal-cache"
CLOSE_SECONDS_MAX = 5.0  # for objects under way when the node stops


@dataclass(frozen=True, slots=True)
class _ChainReading:
    """The shared parts by which this node reads chains and the tier for its own replicas."""

    lender: RangeLender
    read: RangeReader
    ranges: RangeCache
    chains: ChainStore
    history: TierHistory
    catch_up: CatchUp
    refill: LogRefill


def start_diskless(
    settings: NodeSettings,
    stack: AsyncExitStack,
    cluster: Cluster,
    logs: Logs,
    fetchers: FollowerFetchers,
    *,
    stop: asyncio.Event,
    serving: Serving,
) -> NodeChain:
    """Enter partitions into the node's chain from now on; return it. See ``late_diskless``.

    Without diskless topics there is no chain, and no worker. At the end nothing more is entered,
    then what the chain has pending is stored, then its partitions have no leader here.
    """
    node, replicas = cluster.node, logs.replicas
    node_chain = NodeChain(
        node,
        objects_url=settings.object_store_url,
        socket=settings.data_dir / WAL_SOCKET,
        cache_dir=settings.data_dir / WAL_CACHE_DIR,
        log_format=settings.log_format,
    )
    stack.callback(_end_leads, replicas)
    appends = _serve_produce(settings, stack, node, node_chain, logs, serving)
    node_chain.deposed.subscribe(lambda chain: _end_leads_in(replicas, chain))
    reading = _chain_reading(node, node_chain)
    appends.reads.read_range = reading.read
    _start_feeds(stack, node, node_chain, reading, fetchers)
    background = Background(stop)
    has_unentered = _take_over(stack, cluster, logs, node_chain, reading, background=background)
    watch = StoreWatch(
        cluster.member.membership,
        chain=lambda: node_chain.chain,
        has_unentered=has_unentered,
        probe=lambda: probe_store(node_chain.client, node.view.image.cluster_id),
    )
    background.add(watch.run())
    _add_upkeep(
        background,
        settings,
        cluster,
        replicas=replicas,
        node_chain=node_chain,
        chains=reading.chains,
    )
    return node_chain


def _serve_produce(  # noqa: PLR0917
    settings: NodeSettings,
    stack: AsyncExitStack,
    node: NodeContext,
    node_chain: NodeChain,
    logs: Logs,
    serving: Serving,
) -> GatewayAppends:
    """Have clients and gateways of other zones append while the chain has room."""
    appends = GatewayAppends(
        node,
        replicas=logs.replicas,
        gate=serving.gate,
        unknown_producers=serving.produce.unknown_producers,
    )
    gateway = _start_gateway(
        settings, stack, node, node_chain, serving, replicas=logs.replicas, appends=appends
    )
    stack.push_async_callback(node_chain.close, CLOSE_SECONDS_MAX)
    _admit_while_there_is_room(serving, node_chain, gateway)
    appends.is_full = lambda: node_chain.is_full
    serving.dispatch.add(appends.hot_route())
    logs.tier.other_workers.append(node_chain.worker_status)
    if logs.costs is not None:
        logs.costs.count_worker(node_chain.worker_status)
    return appends


def _chain_reading(node: NodeContext, node_chain: NodeChain) -> _ChainReading:
    lender = node_chain.lender()
    read = range_reader(lender)
    ranges = RangeCache(read)
    history = TierHistory(
        store=node.store, indexes=TierIndexes(ranges.read, node.executor), view=node.view
    )
    return _ChainReading(
        lender=lender,
        read=read,
        ranges=ranges,
        chains=ChainStore(node_chain.client, node.view.image.cluster_id, read=read),
        history=history,
        catch_up=CatchUp(
            node,
            history=history,
            timeout_s=node.static_config.replica_socket_timeout_ms / 1000,
        ),
        refill=LogRefill(node, ranges.read_within),
    )


def _start_feeds(
    stack: AsyncExitStack,
    node: NodeContext,
    node_chain: NodeChain,
    reading: _ChainReading,
    fetchers: FollowerFetchers,
) -> None:
    """Feed the followers of diskless partitions from their leaders' chains."""
    feeds = ChainFeeds(
        store=node_chain.client,
        lender=reading.lender,
        read=reading.read,
        cluster_id=node.view.image.cluster_id,
        refill=reading.refill,
        catch_up=reading.catch_up,
        on_moved=fetchers.on_moved,
    )
    stack.push_async_callback(feeds.close)
    fetchers.committed.subscribe(feeds.note)


def _take_over(
    stack: AsyncExitStack,
    cluster: Cluster,
    logs: Logs,
    node_chain: NodeChain,
    reading: _ChainReading,
    *,
    background: Background,
) -> Callable[[], bool]:
    """Lead the partitions that this node is elected for, and convert those that are to change.

    Returns a function that says whether any partition is not led yet.
    """
    node, replicas = cluster.node, logs.replicas
    manifests = BucketManifests(node, node_chain.client)
    successors = SuccessorSearch(reading.chains)
    prefetch = _prefetch(
        cluster,
        replicas,
        node_chain,
        ranges=reading.ranges,
        history=reading.history,
        successors=successors,
    )
    takeovers = Takeovers(
        node,
        replicas=replicas,
        own_chain=node_chain.current,
        chains=reading.chains,
        recovery=_log_recovery(node, stack, node_chain, reading, prefetch=prefetch),
        manifests=manifests,
        successors=successors,
    )
    conversions = Conversions(
        replicas, own_chain=node_chain.current, manifests=manifests, flush=logs.flusher.request
    )
    stack.push_async_callback(background.close)
    background.add(takeovers.run())
    background.add(prefetch.run())
    background.add(conversions.run())
    return lambda: takeovers.has_unentered


def _add_upkeep(
    background: Background,
    settings: NodeSettings,
    cluster: Cluster,
    *,
    replicas: ReplicaManager,
    node_chain: NodeChain,
    chains: ChainStore,
) -> None:
    """Add the work on chains that no request waits for."""
    node = cluster.node
    background.add(stand_by(node, node_chain.check_store))
    background.add(
        ChainCollection(
            node,
            replicas=replicas.replicas,
            chain=lambda: node_chain.chain,
            chains=chains,
            objects=node_chain.client,
        ).run()
    )
    background.add(ChainCheckpoints(node, lambda: node_chain.chain).run())
    has_price = parse_object_location(settings.object_store_url).has_price
    long_tails = LongTails(
        lambda: node_chain.chain,
        PAID if has_price else FREE,
        broker_count=lambda: len(node.view.image.brokers),
    )
    background.add(long_tails.run())
    abandoned = AbandonedChains(
        node,
        membership=cluster.member.membership,
        seal=node_chain.seal_chains_of,
        find=node_chain.brokers_with_chains,
        after_ms=abandoned_after_ms(node.static_config),
    )
    background.add(abandoned.run())


def _prefetch(
    cluster: Cluster,
    replicas: ReplicaManager,
    node_chain: NodeChain,
    *,
    ranges: RangeCache,
    history: TierHistory,
    successors: SuccessorSearch,
) -> Prefetch:
    async def read_successors(chain: ChainName) -> None:
        own = node_chain.chain
        await successors.read_ahead(chain, own=None if own is None else own.name)

    return Prefetch(
        cluster.node,
        membership=cluster.member.membership,
        replica_of=replicas.get,
        objects=node_chain.client,
        ranges=ranges,
        history=history,
        read_successors=read_successors,
    )


def _log_recovery(
    node: NodeContext,
    stack: AsyncExitStack,
    node_chain: NodeChain,
    reading: _ChainReading,
    *,
    prefetch: Prefetch,
) -> LogRecovery:
    """Return the recovery of logs, which uses the objects that ``prefetch`` has read."""
    ranges = prefetch.ranges
    fills = TailFills(
        LogRefill(node, ranges.read_within, limits=FILL_LIMITS, behind=reading.refill),
        reading.history,
        node.counters.chain,
    )
    stack.push_async_callback(fills.close)
    recovery = LogRecovery(
        node,
        objects=node_chain.client,
        # What seals a chain and looks for successors decides, so it reads the store itself.
        chains=ChainStore(node_chain.client, node.view.image.cluster_id, read=ranges.read),
        refill=reading.refill,
        history=reading.history,
        catch_up=reading.catch_up,
        fills=fills,
        listings=prefetch.listings,
    )
    recovery.begun.subscribe(prefetch.end_for)
    return recovery


def _start_gateway(
    settings: NodeSettings,
    stack: AsyncExitStack,
    node: NodeContext,
    node_chain: NodeChain,
    serving: Serving,
    *,
    replicas: ReplicaManager,
    appends: GatewayAppends,
) -> Gateway | None:
    """Start the gateway, which takes records for leaders in other zones, if the node has one."""
    stack.push_async_callback(appends.close)
    folder = settings.data_dir / GATEWAY_DIR
    if not node.static_config.diskless_gateways_enable:
        remove_spool(folder)
        return None
    links, peers = LeaderLinks(node), Peers(node.view, node.dialer, connections_max=1)
    stack.push_async_callback(peers.close)
    gateway = Gateway(
        node,
        spool=GatewaySpool(folder),
        own_chain=node_chain.current,
        send=links.send,
        append_here=appends.append,
        log_ends=LeaderLogEnds(node, peers, replicas).of,
    )
    node_chain.deposed.subscribe(gateway.on_deposed)
    serving.produce.gateway = gateway
    stack.push_async_callback(gateway.close)
    stack.callback(links.close)
    return gateway


def _admit_while_there_is_room(
    serving: Serving, node_chain: NodeChain, gateway: Gateway | None
) -> None:
    """Have requests to diskless topics wait while the chain or the gateway is full."""

    def note_fullness(_: bool) -> None:
        is_full = node_chain.is_full or (gateway is not None and gateway.is_full)
        serving.admission.set_full(is_full)

    node_chain.fullness.subscribe(note_fullness)
    if gateway is not None:
        gateway.fullness.subscribe(note_fullness)


def _end_leads(replicas: ReplicaManager) -> None:
    """Refuse requests that would append without a chain."""
    for replica in tuple(replicas.replicas()):
        if replica.is_diskless:
            replicas.end_lead(replica)


def _end_leads_in(replicas: ReplicaManager, chain: OwnedChain) -> None:
    """Take the partitions of a deposed chain over again."""
    for replica in chain.replicas:
        replicas.end_lead(replica)
