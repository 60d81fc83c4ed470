"""One chaos run: cluster, clients, faults, then the truth.

start nodes, make topics → clients work, faults come and go → every fault ends
→ every partition takes a write → producers end → readers reach the ends
→ a fresh reader reads everything → nodes stop → disks and tier are compared
"""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog import Admin
from tidelog_core.config import NodeConfig, settings_of
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import SegmentMeta, SegmentState, segment_collection
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.tier.keys import segment_keys

from tests.chaos.checker import Anomaly, Kind, Rules, check
from tests.chaos.cluster import ChaosCluster, NodeWontStart
from tests.chaos.consumers import (
    AssignedReader,
    GroupMember,
    consume_with_librdkafka,
    read_finals,
    read_goal,
)
from tests.chaos.faults import Faults
from tests.chaos.history import FinalLog, History, PartitionKey, Pipeline, save
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import FaultKind, kinds_for, plan_faults
from tests.chaos.producers import probe, produce, produce_with_librdkafka
from tests.chaos.report import summarize
from tests.chaos.stored import StoredLog, compare_stored, find_resent, parse_log, read_local_log
from tests.chaos.transaction_checker import check_transactions
from tests.chaos.transactions import (
    CommittedReader,
    Processor,
    process_with_librdkafka,
    read_committed_logs,
    write_transactions,
    write_transactions_with_librdkafka,
)
from tests.chaos.workload import Progress, Scene, administer, close_writes, create

THREADS = 32
PROBE_SECONDS_MAX = 45.0
DRAIN_SECONDS_MAX = 60.0
FINAL_SECONDS_MAX = 90.0
IN_SYNC_SECONDS_MAX = 45.0
WRITERS_END_SECONDS_MAX = 60.0
READERS_END_SECONDS_MAX = 45.0
# The pipeline's ends, and what transactions write to beside it.
SOURCE, TARGET, MOVED = "early-a", "piped", "moved"
# Small segments, so that a minute has rolls, uploads, evictions and reads from the tier.
TOPIC_CONFIGS = {
    "segment.bytes": "65536",
    "local.retention.bytes": "131072",
    "retention.ms": "-1",
}
NODE_CONFIG = {
    "remote.task.interval.ms": "500",
    "offsets.topic.num.partitions": "8",
    "log.retention.check.interval.ms": "5000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """What a run is made of."""

    directory: Path  # everything of the run; must not exist, or be empty
    seed: int
    seconds: float  # of faults
    node_count: int = 3
    replication_factor: int = 1
    partition_count: int = 3  # of each of the two topics to begin with
    kinds: tuple[FaultKind, ...] | None = None  # None: all that such a cluster must stand
    dynamodb_url: str | None = None  # None: SQLite
    lease_s: float = 2.0
    rate_per_s: float = 60.0  # records of one producer
    producer_count: int = 3
    node_config: Mapping[str, str] = field(default_factory=dict)
    is_sabotage: bool = False  # lose what nobody else has, to see that the checker finds it


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """What came out."""

    history: History
    anomalies: list[Anomaly]
    recovered: Mapping[str, float | None]  # seconds until a partition took writes after the faults
    report: str


async def run_chaos(options: ChaosOptions) -> ChaosResult:
    """Do the run; ``history.jsonl`` and ``report.txt`` are left in its directory."""
    history = History()
    started = time.monotonic()
    # Clients of librdkafka have a thread each for the whole run; faults need some, too.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    cluster = ChaosCluster(
        options.directory,
        node_count=options.node_count,
        chance=random.Random(f"{options.seed}:cluster"),
        config=_node_config(options),
        dynamodb_url=options.dynamodb_url,
    )
    found: list[Anomaly] = []
    recovered: dict[str, float | None] = {}
    async with cluster:
        scene = Scene(cluster.bootstrap, options.seed, history, lambda: time.monotonic() - started)
        await _make_topics(scene, options)
        try:
            recovered = await _work(cluster, scene, options, found)
        except* NodeWontStart as group:
            # Nothing more can be learned from this cluster; the report says why.
            found += [Anomaly(Kind.NODE_DIED, "", str(error)) for error in group.exceptions]
        finally:
            save(history, options.directory / "history.jsonl")
    found += [Anomaly(Kind.NODE_DIED, text.split(" ended")[0], text) for text in cluster.died]
    rules = Rules(is_acks_one_kept=options.replication_factor == 1)
    found += await asyncio.to_thread(check, history, rules)
    found += await asyncio.to_thread(check_transactions, history)
    report = summarize(history, found, title=describe(options), recovered=recovered)
    (options.directory / "report.txt").write_text(report + "\n")
    return ChaosResult(history, found, recovered, report)


async def _work(
    cluster: ChaosCluster, scene: Scene, options: ChaosOptions, found: list[Anomaly]
) -> dict[str, float | None]:
    """Everything from the first record to the last comparison; ``found`` is added to.

    Returns the seconds after which each partition took writes again.
    """
    async with AsyncExitStack() as stack:
        clients = _Clients(scene, options)
        stack.push_async_callback(clients.close)
        clients.start()
        await _do_faults(cluster, scene, options)
        recovered = await probe(scene, timeout_s=PROBE_SECONDS_MAX)
        found += _not_recovered(recovered)
        await clients.end_writers()
        found += await clients.end_readers()
    await read_finals(scene, timeout_s=FINAL_SECONDS_MAX)
    await read_committed_logs(scene, timeout_s=FINAL_SECONDS_MAX)
    if options.replication_factor > 1:
        found += await _wait_in_sync(cluster)
    await cluster.stop_all()
    found += await _compare_disks(cluster, scene.history)
    return recovered


def describe(options: ChaosOptions) -> str:
    """Return the run in a line, with the seed that makes it again."""
    store = "SQLite" if options.dynamodb_url is None else "DynamoDB"
    return (
        f"chaos: seed {options.seed}, {options.seconds:g} s, {options.node_count} nodes,"
        f" replication factor {options.replication_factor}, {store}"
    )


def _node_config(options: ChaosOptions) -> dict[str, str]:
    """Return the nodes' settings; those of replication only where there is such a thing."""
    lease_ms = int(options.lease_s * 1000)
    config = {
        **NODE_CONFIG,
        "broker.session.timeout.ms": str(lease_ms),
        "broker.heartbeat.interval.ms": str(lease_ms // 4),
        "replica.lag.time.max.ms": str(lease_ms * 2),
        **options.node_config,
    }
    known = settings_of(NodeConfig)
    return {name: value for name, value in config.items() if name in known}


def _topic_configs(options: ChaosOptions) -> dict[str, str]:
    in_sync = min(2, options.replication_factor)
    return {**TOPIC_CONFIGS, "min.insync.replicas": str(in_sync)}


async def _make_topics(scene: Scene, options: ChaosOptions) -> None:
    async with Admin(scene.bootstrap) as admin:
        for name, into in (
            (SOURCE, scene.partitions),
            ("early-b", scene.partitions),
            (MOVED, scene.transactional),
            (TARGET, scene.piped),
        ):
            made = await create(
                scene,
                admin,
                name,
                options.partition_count,
                options.replication_factor,
                _topic_configs(options),
            )
            into.extend(made)
    scene.history.add(Pipeline(SOURCE, TARGET))


async def _do_faults(cluster: ChaosCluster, scene: Scene, options: ChaosOptions) -> None:
    kinds = options.kinds or kinds_for(
        replication_factor=options.replication_factor,
        has_dynamodb=options.dynamodb_url is not None,
    )
    lanes = plan_faults(
        options.seed,
        seconds=options.seconds,
        node_count=options.node_count,
        kinds=kinds,
        lease_s=options.lease_s,
    )
    faults = Faults(
        cluster,
        lease_s=options.lease_s,
        chance=scene.chance("faults"),
        is_sabotage=options.is_sabotage,
    )
    await Nemesis(faults, lanes, scene.history, scene.clock_s).run()


class _Clients:
    """Starts the clients and ends them, writers first."""

    def __init__(self, scene: Scene, options: ChaosOptions) -> None:
        self._scene = scene
        self._options = options
        self._writers: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._assigned = AssignedReader(scene, "reader")
        self._groups = {"tidelog-group": Progress(), "librdkafka-group": Progress()}
        self._piped = Progress()

    def start(self) -> None:
        scene, rate_per_s = self._scene, self._options.rate_per_s

        def run(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            return asyncio.create_task(work, name=name)

        for number in range(self._options.producer_count):
            name = f"p{number}"
            self._writers.append(run(produce(scene, name, rate_per_s=rate_per_s), name))
        with_librdkafka = asyncio.to_thread(
            produce_with_librdkafka, scene, "k0", rate_per_s=rate_per_s
        )
        self._writers.append(run(with_librdkafka, "k0"))
        self._writers.append(
            run(
                administer(
                    scene,
                    replication_factor=self._options.replication_factor,
                    configs=_topic_configs(self._options),
                ),
                "admin",
            )
        )
        self._writers.append(run(write_transactions(scene, "t0", rate_per_s=rate_per_s), "t0"))
        with_librdkafka = asyncio.to_thread(
            write_transactions_with_librdkafka, scene, "kt0", rate_per_s=rate_per_s
        )
        self._writers.append(run(with_librdkafka, "kt0"))
        processor = Processor(scene, "x0", SOURCE, self._piped)
        self._readers.append(run(processor.run(), "x0"))
        with_librdkafka = asyncio.to_thread(
            process_with_librdkafka, scene, "kx0", SOURCE, self._piped
        )
        self._readers.append(run(with_librdkafka, "kx0"))
        self._readers.append(run(CommittedReader(scene, "committed").run(), "committed"))
        ours, theirs = self._groups
        self._readers.append(run(self._assigned.run(), "reader"))
        for number in range(2):
            member = GroupMember(scene, f"member{number}", ours, self._groups[ours])
            self._readers.append(run(member.run(), member.name))
        with_librdkafka = asyncio.to_thread(
            consume_with_librdkafka, scene, "kmember", theirs, self._groups[theirs]
        )
        self._readers.append(run(with_librdkafka, "kmember"))

    async def end_writers(self) -> None:
        """Let the producers finish what they have; nothing is under way on return."""
        self._scene.is_writing = False
        async with asyncio.timeout(WRITERS_END_SECONDS_MAX):
            await asyncio.gather(*self._writers)
        close_writes(self._scene)

    async def end_readers(self) -> list[Anomaly]:
        """Let the readers come to the ends; return which of them do not in time."""
        scene = self._scene
        scene.goal = await read_goal(scene, timeout_s=DRAIN_SECONDS_MAX)
        deadline_s = scene.clock_s() + DRAIN_SECONDS_MAX
        missing = self._missing()
        while missing and scene.clock_s() < deadline_s:
            await asyncio.sleep(0.1)
            missing = self._missing()
        scene.is_reading = False
        found = [
            Anomaly(Kind.STALLED, reader, ", ".join(f"{n}: {far}" for n, far in left.items()))
            for reader, left in missing.items()
        ]
        return found + await self._close_readers()

    async def _close_readers(self) -> list[Anomaly]:
        """Wait for the readers to end; return those that do not, and where they hang."""
        done, hanging = await asyncio.wait(self._readers, timeout=READERS_END_SECONDS_MAX)
        for task in done:
            task.result()
        found = []
        for task in hanging:
            where = io.StringIO()
            task.print_stack(file=where)
            found.append(
                Anomaly(Kind.STALLED, task.get_name(), f"does not end: {where.getvalue()}")
            )
            task.cancel()
        return found

    def _missing(self) -> dict[str, dict[PartitionKey, str]]:
        goal = self._scene.goal
        left: dict[str, dict[PartitionKey, str]] = {"reader": self._assigned.progress.missing(goal)}
        for group, progress in self._groups.items():
            left[group] = progress.missing(goal)
        source = {name: end for name, end in goal.items() if name.topic == SOURCE}
        left["pipeline"] = self._piped.missing(source)
        return {reader: missing for reader, missing in left.items() if missing}

    async def close(self) -> None:
        self._scene.is_writing = self._scene.is_reading = False
        await asyncio.gather(*self._writers, *self._readers, return_exceptions=True)


def _not_recovered(recovered: Mapping[str, float | None]) -> list[Anomaly]:
    detail = f"takes no write within {PROBE_SECONDS_MAX:g} s after the faults ended"
    return [
        Anomaly(Kind.STALLED, name, detail)
        for name, seconds in recovered.items()
        if seconds is None
    ]


async def _wait_in_sync(cluster: ChaosCluster) -> list[Anomaly]:
    """Return the partitions whose replicas do not all come back into the ISR."""
    deadline = time.monotonic() + IN_SYNC_SECONDS_MAX
    while True:
        image = await cluster.image()
        behind = [
            Anomaly(
                Kind.STALLED,
                f"{name}-{partition.partition}",
                f"in sync are {partition.isr} of {partition.replicas}",
            )
            for name in image.topics
            for partition in image.partitions(name)
            if set(partition.isr) != set(partition.replicas)
        ]
        if not behind or time.monotonic() > deadline:
            return behind
        await asyncio.sleep(0.3)


async def _compare_disks(cluster: ChaosCluster, history: History) -> list[Anomaly]:
    """Compare replicas, tier and what was served, now that nobody writes any more."""
    image = await cluster.image()
    store = cluster.open_store()
    found: list[Anomaly] = []
    try:
        # What is not committed is not served to all, but stored the same everywhere.
        unserved = (
            FinalLog(log.topic, log.partition, 0, log.end_offset, ())
            for log in history.committed_logs
        )
        for final in (*history.finals, *unserved):
            partition = image.partition(TopicPartition(final.topic, final.partition))
            assert partition is not None
            replicas = [
                read_local_log(
                    f"node {node_id}",
                    cluster.nodes[node_id].process.data_dir / f"{final.topic}-{final.partition}",
                )
                for node_id in partition.replicas
            ]
            tier = await _tier_of(cluster, store, image, final)
            found += compare_stored(final, replicas, tier)
            for resent in find_resent(final, (*replicas, *tier)):
                history.add(resent)
    finally:
        await store.close()
    return found


async def _tier_of(
    cluster: ChaosCluster, store: MetadataStore, image: ClusterImage, final: FinalLog
) -> list[StoredLog]:
    topic = image.topics[final.topic]
    items = await store.list(segment_collection(topic.topic_id, final.partition))
    segments = [SegmentMeta.from_item(item) for item in items]
    logs = []
    for segment in segments:
        if segment.state is SegmentState.COPY_FINISHED:
            key = segment_keys(image.cluster_id, final.topic, segment).log
            path = cluster.objects_dir / key
            content = path.read_bytes() if path.exists() else b""
            log = parse_log(f"segment {path.name}", content)
            if len(content) != segment.size_bytes:
                problem = f"{len(content)} bytes, {segment.size_bytes} by its item"
                log = StoredLog(log.holder, log.batches, problem)
            logs.append(log)
    return logs
