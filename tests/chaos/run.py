"""One chaos run: cluster, clients, faults, then the truth.

start nodes, make topics → clients work, faults come and go → every fault ends
→ every partition takes a write → producers end → readers reach the ends
→ a fresh reader reads everything → nodes stop → disks and tier are compared
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tidelog import Admin
from tidelog_core.config import NodeConfig, settings_of

from tests.chaos.administering import create
from tests.chaos.aftermath import compare_disks, wait_in_sync
from tests.chaos.big_requests import COMPACTED
from tests.chaos.checker import Anomaly, Kind, Rules, check
from tests.chaos.clients import (
    DRAIN_SECONDS_MAX,
    ENOUGH_SECONDS_MAX,
    READERS_END_SECONDS_MAX,
    Clients,
)
from tests.chaos.cluster import ChaosCluster, NodeWontStart, rack_of
from tests.chaos.consumers import read_finals
from tests.chaos.faults import Faults
from tests.chaos.history import HISTORY, History, Pipeline, load, save
from tests.chaos.nemesis import Nemesis
from tests.chaos.options import ChaosOptions
from tests.chaos.plan import (
    DISK_FAULTS,
    FaultKind,
    PlannedFault,
    kinds_for,
    plan_faults,
    plan_rounds,
)
from tests.chaos.producers import probe
from tests.chaos.report import summarize
from tests.chaos.scene import Scene
from tests.chaos.share_checker import check_sharing
from tests.chaos.sharing import make_share_group
from tests.chaos.transaction_checker import check_transactions
from tests.chaos.transactions import read_committed_logs
from tests.chaos.watchdog import Watchdog
from tests.chaos.watched_process import StandsStill

START_SECONDS_MAX = 240.0
FAULTS_LATE_SECONDS_MAX = (
    300.0  # beyond what is planned: nodes take long to start on a busy machine
)
PROBE_SECONDS_MAX = 60.0
FINAL_SECONDS_MAX = 90.0
IN_SYNC_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 120.0
WRITERS_END_SECONDS_MAX = 120.0
COMPARE_SECONDS_MAX = 300.0
# The pipeline's ends, what transactions write to beside it, and what the share group reads.
SOURCE, TARGET, MOVED, SHARED = "early-a", "piped", "moved", "early-b"
NODE_CONFIG = {
    "remote.task.interval.ms": "500",
    "offsets.topic.num.partitions": "8",
    "log.retention.check.interval.ms": "5000",
    # What a member has taken along is soon given to others.
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "3000",
    "group.share.delivery.count.limit": "10",
}


_GATEWAYS = {
    "diskless.gateways.enable": "true",
    "client.az.cidr.map": f"127.0.0.0/8={rack_of(1)}",
}


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """What came out. The history of a long run is large, and stays in its file."""

    history_path: Path
    anomalies: list[Anomaly]
    recovered: Mapping[str, float | None]  # seconds until a partition took writes after the faults
    report: str

    def history(self) -> History:
        """Read it."""
        return load(self.history_path)


async def run_chaos(options: ChaosOptions, watchdog: Watchdog) -> ChaosResult:
    """Do the run; ``history.jsonl`` and ``report.txt`` are left in its directory."""
    history, history_path = History(), options.directory / HISTORY
    started_s = time.monotonic()
    cluster = ChaosCluster(
        options.directory,
        node_count=options.node_count,
        chance=random.Random(f"{options.seed}:cluster"),
        config=_node_config(options),
        dynamodb_url=options.dynamodb_url,
        s3_url=options.s3_url,
        has_racks=options.has_gateways,
        has_disk_faults=not DISK_FAULTS.isdisjoint(_kinds(options)),
    )
    found: list[Anomaly] = []
    recovered: dict[str, float | None] = {}
    try:
        async with watchdog:
            watchdog.enter("start", seconds_max=START_SECONDS_MAX)
            async with cluster:
                scene = Scene(cluster.bootstrap, options.seed, history, started_s)
                await _make_topics(scene, options)
                recovered = await _work(cluster, scene, options, watchdog, found)
    except* NodeWontStart as group:
        # Nothing more can be learned from this cluster; the report says why.
        found += [Anomaly(Kind.NODE_DIED, "", str(error)) for error in group.exceptions]
    except* StandsStill as group:
        found += [Anomaly(Kind.STALLED, "the run", str(error)) for error in group.exceptions]
    finally:
        await asyncio.to_thread(save, history, history_path)
    found += [Anomaly(Kind.NODE_DIED, text.split(" ended")[0], text) for text in cluster.died]
    rules = Rules(is_acks_one_kept=options.is_acks_one_kept)
    found += await asyncio.to_thread(check_all, history, rules)
    report = summarize(history, found, title=options.title, recovered=recovered)
    (options.directory / "report.txt").write_text(report + "\n")
    return ChaosResult(history_path, found, recovered, report)


def check_all(history: History, rules: Rules) -> list[Anomaly]:
    """Return everything that is wrong with the history of a run."""
    return [
        *check(history, rules),
        *check_transactions(history),
        *check_sharing(history, SHARED),
    ]


async def _work(
    cluster: ChaosCluster,
    scene: Scene,
    options: ChaosOptions,
    watchdog: Watchdog,
    found: list[Anomaly],
) -> dict[str, float | None]:
    """Everything from the first record to the last comparison; ``found`` is added to.

    Returns the seconds after which each partition took writes again.
    """
    enter = watchdog.enter
    async with AsyncExitStack() as stack:
        clients = Clients(scene, options, source=SOURCE, shared=SHARED)
        stack.push_async_callback(clients.close)
        clients.start()
        lanes = _plan(options)
        planned_s = max((lane[-1].end_s for lane in lanes if lane), default=0.0)
        enter("faults", seconds_max=planned_s + FAULTS_LATE_SECONDS_MAX)
        await _do_faults(cluster, scene, options, lanes)
        enter("recovery", seconds_max=PROBE_SECONDS_MAX + ENOUGH_SECONDS_MAX + 30)
        recovered = await probe(scene, timeout_s=PROBE_SECONDS_MAX)
        found += _not_recovered(recovered)
        found += await clients.do_enough()
        enter("end of the writers", seconds_max=WRITERS_END_SECONDS_MAX)
        await clients.end_writers()
        enter(
            "end of the readers", seconds_max=2 * DRAIN_SECONDS_MAX + READERS_END_SECONDS_MAX + 30
        )
        found += await clients.end_readers()
    enter("last readings", seconds_max=2 * FINAL_SECONDS_MAX + 60)
    await read_finals(scene, timeout_s=FINAL_SECONDS_MAX)
    await read_committed_logs(scene, timeout_s=FINAL_SECONDS_MAX)
    enter("end of the nodes", seconds_max=IN_SYNC_SECONDS_MAX + STOP_SECONDS_MAX)
    if options.replication_factor > 1:
        found += await wait_in_sync(cluster, timeout_s=IN_SYNC_SECONDS_MAX)
    quiet = await cluster.image()
    await cluster.stop_all()
    enter("comparison", seconds_max=COMPARE_SECONDS_MAX)
    found += await compare_disks(cluster, scene.history, quiet)
    return recovered


def _node_config(options: ChaosOptions) -> dict[str, str]:
    """Return the nodes' settings; those of replication only where there is such a thing."""
    lease_ms = int(options.lease_s * 1000)
    config = {
        **NODE_CONFIG,
        "broker.session.timeout.ms": str(lease_ms),
        "broker.heartbeat.interval.ms": str(lease_ms // 4),
        "replica.lag.time.max.ms": str(lease_ms * 2),
        **(_GATEWAYS if options.has_gateways else {}),
        **options.node_config,
    }
    known = settings_of(NodeConfig)
    return {name: value for name, value in config.items() if name in known}


async def _make_topics(scene: Scene, options: ChaosOptions) -> None:
    async with Admin(scene.bootstrap) as admin:
        for name, into in (
            (SOURCE, scene.partitions),
            (SHARED, scene.partitions),
            (MOVED, scene.transactional),
            (TARGET, scene.piped),
        ):
            made = await create(
                scene,
                admin,
                name,
                options.partition_count,
                options.replication_factor,
                options.topic_configs,
            )
            into.extend(made)
        compacted = {**options.topic_configs, "cleanup.policy": "compact"}
        await create(scene, admin, COMPACTED, 1, options.replication_factor, compacted)
    scene.history.add(Pipeline(SOURCE, TARGET))
    await make_share_group(scene, SHARED)


def _kinds(options: ChaosOptions) -> tuple[FaultKind, ...]:
    return options.kinds or kinds_for(
        replication_factor=options.replication_factor,
        has_dynamodb=options.dynamodb_url is not None,
        has_bucket=options.s3_url is not None,
        is_diskless=options.is_diskless,
        is_converting=options.is_converting,
    )


def _plan(options: ChaosOptions) -> list[list[PlannedFault]]:
    kinds = _kinds(options)
    seed, node_count, lease_s = options.seed, options.node_count, options.lease_s
    if options.rounds:
        return plan_rounds(
            seed, rounds=options.rounds, node_count=node_count, kinds=kinds, lease_s=lease_s
        )
    return plan_faults(
        seed, seconds=options.seconds, node_count=node_count, kinds=kinds, lease_s=lease_s
    )


async def _do_faults(
    cluster: ChaosCluster, scene: Scene, options: ChaosOptions, lanes: list[list[PlannedFault]]
) -> None:
    faults = Faults(
        cluster,
        lease_s=options.lease_s,
        chance=scene.chance("faults"),
        is_sabotage=options.is_sabotage,
        is_diskless=options.is_diskless,
        is_converting=options.is_converting,
        topics=(SOURCE, SHARED, MOVED, TARGET, COMPACTED),
    )
    nemesis = Nemesis(
        faults,
        lanes,
        scene.history,
        scene.clock_s,
        leaves_nothing_out=options.rounds > 0,
    )
    await nemesis.run()


def _not_recovered(recovered: Mapping[str, float | None]) -> list[Anomaly]:
    detail = f"takes no write within {PROBE_SECONDS_MAX:g} s after the faults ended"
    return [
        Anomaly(Kind.STALLED, name, detail)
        for name, seconds in recovered.items()
        if seconds is None
    ]
