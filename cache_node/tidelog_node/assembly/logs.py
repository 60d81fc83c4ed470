"""Builds and recovers the logs of a node and the services around them."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tidelog_core.config import NodeConfig
from tidelog_core.log.segments.open_files import OpenFiles

from tidelog_node.assembly.background import Background
from tidelog_node.assembly.cluster import Cluster
from tidelog_node.assembly.costs import build_costs
from tidelog_node.compaction.log_cleaner import LogCleaner
from tidelog_node.costs.recorder import CostRecorder
from tidelog_node.disk.data_disk import DataDisk, DiskWatch
from tidelog_node.erasure.evicting_eraser import EvictingEraser
from tidelog_node.erasure.rewriting_eraser import RewritingEraser
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.fetchers import FollowerFetchers
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.replication.lead_checks import LeadChecks
from tidelog_node.replication.leader_writes import LeaderWrites
from tidelog_node.settings import NodeSettings
from tidelog_node.tier.service import TierService
from tidelog_node.upkeep.flusher import Flusher
from tidelog_node.upkeep.log_changes import LogChanges
from tidelog_node.upkeep.log_reopener import LogReopener
from tidelog_node.upkeep.log_upkeep import LogUpkeep
from tidelog_node.upkeep.scrubber import Scrubber
from tidelog_node.upkeep.segment_repair import SegmentRepair

TIER_SOCKET = "tier.sock"
TIER_CACHE_DIR = "tier-cache"
GATEWAY_DIR = "gateway"


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs and their services."""

    replicas: ReplicaManager
    changes: LogChanges
    flusher: Flusher
    tier: TierService
    disk_watch: DiskWatch
    inspector: BatchInspector
    costs: CostRecorder | None  # None: the node keeps no ledger


async def open_logs(settings: NodeSettings, stack: AsyncExitStack, cluster: Cluster) -> Logs:
    """Recover the logs and start the services that all of them need."""
    node, membership = cluster.node, cluster.member.membership
    disk = DataDisk()
    disk.changed.subscribe(lambda: membership.report_disk(is_fit=disk.is_fit))
    disk_watch = DiskWatch(node, disk, path=settings.data_dir)
    await disk_watch.check()
    replicas = ReplicaManager(
        node,
        directories=cluster.directories,
        refusal=cluster.unrestored.refusal,
        open_files=OpenFiles(_open_files_max(node.static_config)),
        disk=disk,
    )
    membership.leads_by_chain = lambda: bool(replicas.roles.led_by_chain)
    inspector = BatchInspector(node.health)
    eraser = EvictingEraser(node, replicas=replicas)
    tier = TierService(
        node,
        replicas=replicas,
        inspector=inspector,
        objects_url=settings.object_store_url,
        socket=settings.data_dir / TIER_SOCKET,
        cache_dir=settings.data_dir / TIER_CACHE_DIR,
        log_format=settings.log_format,
        honour_erasures=eraser.honour,
        holds_files=cluster.directories.holds,
    )
    cluster.clock_watch.add_source(tier.witnesses)
    await replicas.start(remote_of=tier.remote_log)
    stack.push_async_callback(replicas.close)
    stack.push_async_callback(inspector.close)
    changes = LogChanges(replicas)
    flusher = Flusher(node.executor)
    stack.push_async_callback(flusher.close)
    changes.subscribe(tier.on_changed)
    await tier.start()
    stack.push_async_callback(tier.close)
    costs = build_costs(stack, cluster, tier)
    return Logs(replicas, changes, flusher, tier, disk_watch, inspector, costs)


def start_upkeep(logs: Logs, tasks: Background) -> None:
    """Start flushing and rolling, watch the disk, and record costs."""
    upkeep = LogUpkeep(logs.flusher, logs.replicas)
    logs.changes.subscribe(upkeep.on_changed)
    tasks.add(logs.changes.run())
    tasks.add(upkeep.run())
    tasks.add(logs.disk_watch.run())
    if logs.costs is not None:
        tasks.add(logs.costs.run())


async def start_rewriting(cluster: Cluster, logs: Logs, tasks: Background) -> None:
    """Start the services that replace segments of local logs: repair, compaction, erasure."""
    node, replicas, busy = cluster.node, logs.replicas, set[Replica]()
    repair = SegmentRepair(
        node,
        replicas=replicas,
        tier=logs.tier,
        directories=cluster.directories,
        hand_over=cluster.member.hand_over,
        busy=busy,
    )
    logs.tier.suspected.subscribe(repair.suspect)
    tasks.add(repair.run())
    tasks.add(
        Scrubber(
            replicas=replicas, node_config=node.config, repair=repair, counters=node.counters
        ).run()
    )
    if node.static_config.log_cleaner_enable:
        cleaner = LogCleaner(
            node,
            replicas=replicas,
            tier=logs.tier,
            holds_files=cluster.directories.holds,
            suspect=repair.suspect,
            busy=busy,
        )
        logs.changes.subscribe(cleaner.on_changed)
        tasks.add(cleaner.run())
    eraser = RewritingEraser(node, replicas=replicas, tier=logs.tier, busy=busy)
    await eraser.start()
    tasks.add(eraser.run())


def start_replication(
    stack: AsyncExitStack,
    cluster: Cluster,
    logs: Logs,
    tasks: Background,
    *,
    register: Callable[[], Awaitable[None]],
) -> FollowerFetchers:
    """Start following other leaders, and writing the decisions of this node's leaders."""
    node, replicas = cluster.node, logs.replicas
    writes = LeaderWrites(
        node, replicas=replicas, lag_time_max_ms=node.static_config.replica_lag_time_max_ms
    )
    logs.changes.subscribe(writes.on_changed)
    tasks.add(writes.run())
    reopener = LogReopener(
        node,
        replicas=replicas,
        disk=replicas.disk,
        directories=cluster.directories,
        start_next_epoch=cluster.member.start_next_epoch,
        register=register,
    )
    tasks.add(reopener.run())
    catch_up = CatchUp(
        node,
        history=logs.tier.history,
        timeout_s=node.static_config.replica_socket_timeout_ms / 1000,
    )
    checks = LeadChecks(replicas=replicas, catch_up=catch_up)
    stack.push_async_callback(checks.close)
    fetchers = FollowerFetchers(node, replicas=replicas, catch_up=catch_up)
    fetchers.start()
    stack.push_async_callback(fetchers.close)
    return fetchers


def _open_files_max(config: NodeConfig) -> int:
    """Return how many segment files may be open, leaving room for all other descriptors."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(config.log_open_files_max, allowed // 4 * 3)
