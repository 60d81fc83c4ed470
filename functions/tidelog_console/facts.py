"""The requests of pages to the nodes, as their visitor."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.admin import Admin
from tidelog.administering.results import (
    LogDir,
    NodeDescription,
    OffsetSpec,
    PartitionDescription,
)
from tidelog_core.errors import ClusterAuthorizationFailed, TidelogError
from tidelog_core.model import TopicPartition

NAMES_SHOWN_MAX = 20
REFRESH_SECONDS, SLOW_REFRESH_SECONDS = 5, 30
MANY_PARTITIONS = 2_000
NODE_SECONDS_MAX = 3.0  # that a page waits for one node


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A live node; fields that the visitor may not see are None."""

    node: NodeDescription
    leader_count: int
    replica_count: int
    disk: LogDir | None
    version: str | None

    @property
    def log_bytes(self) -> int | None:
        """The size of its logs."""
        return None if self.disk is None else sum(r.size_bytes for r in self.disk.replicas)

    @property
    def used_share(self) -> float | None:
        """The used part of its disk, from 0 to 1."""
        if self.disk is None or self.disk.total_bytes <= 0 or self.disk.usable_bytes < 0:
            return None
        return 1 - self.disk.usable_bytes / self.disk.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The state of the cluster, as far as the visitor may see it."""

    cluster_id: str
    nodes: tuple[NodeFacts, ...]
    topic_count: int
    partition_count: int
    leaderless: tuple[str, ...]
    under_replicated: tuple[str, ...]
    not_preferred_count: int
    reassigning: tuple[str, ...] | None  # None: the visitor may not know

    @property
    def disk_problems(self) -> list[tuple[int, str]]:
        """The nodes whose disk has a problem, and which."""
        return [
            (one.node.node_id, one.disk.error)
            for one in self.nodes
            if one.disk is not None and one.disk.error
        ]

    @property
    def refresh_seconds(self) -> int:
        """How often a page may ask for it: with many partitions it costs."""
        return REFRESH_SECONDS if self.partition_count <= MANY_PARTITIONS else SLOW_REFRESH_SECONDS

    @property
    def is_well(self) -> bool:
        """Whether nothing is missing."""
        return not (self.leaderless or self.under_replicated or self.disk_problems)


async def cluster_facts(admin: Admin) -> ClusterFacts:
    """Return the state of the cluster."""
    described, partitions, moves = await asyncio.gather(
        admin.describe_cluster(), _partitions(admin), _moves(admin)
    )
    versions, disks = await asyncio.gather(
        _versions(admin), _disks(admin, [one.node_id for one in described.nodes])
    )
    led = Counter(one.leader for _, one in partitions)
    held = Counter(node for _, one in partitions for node in one.replicas)
    return ClusterFacts(
        cluster_id=described.cluster_id,
        nodes=tuple(
            NodeFacts(
                one,
                led[one.node_id],
                held[one.node_id],
                disks.get(one.node_id),
                versions.get(one.node_id),
            )
            for one in described.nodes
        ),
        topic_count=len({name.topic for name, _ in partitions}),
        partition_count=len(partitions),
        leaderless=tuple(str(name) for name, one in partitions if one.leader < 0),
        under_replicated=tuple(
            str(name) for name, one in partitions if len(one.isr) < len(one.replicas)
        ),
        not_preferred_count=sum(one.leader not in (-1, *one.replicas[:1]) for _, one in partitions),
        reassigning=moves,
    )


async def require_cluster(admin: Admin) -> None:
    """Raise ``ClusterAuthorizationFailed`` if the visitor may not describe the cluster.

    Any node decides it, with a request that needs this right.
    """
    await admin.list_reassignments()


async def may_see_cluster(admin: Admin) -> bool:
    """Return whether the visitor may describe the cluster."""
    try:
        await require_cluster(admin)
    except ClusterAuthorizationFailed:
        return False
    return True


async def offsets(
    admin: Admin, topic: str, partitions: Sequence[PartitionDescription], spec: OffsetSpec
) -> dict[int, int]:
    """Return an offset of each partition that has a leader."""
    led = [TopicPartition(topic, one.partition) for one in partitions if one.leader >= 0]
    found = await admin.list_offsets(dict.fromkeys(led, spec)) if led else {}
    return {name.partition: one.offset for name, one in found.items()}


async def _partitions(admin: Admin) -> list[tuple[TopicPartition, PartitionDescription]]:
    names = [one.name for one in await admin.list_topics()]
    described = await admin.describe_topics(names)
    return [
        (TopicPartition(topic.name, one.partition), one)
        for topic in described.values()
        for one in topic.partitions
    ]


async def _disks(admin: Admin, nodes: Sequence[int]) -> dict[int, LogDir]:
    """Return the disks of the nodes that answer soon: one that has died must not hide the others.

    Empty for a visitor who may not describe the cluster.
    """

    async def ask(node: int) -> list[LogDir]:
        try:
            async with asyncio.timeout(NODE_SECONDS_MAX):
                return await admin.describe_log_dirs([node])
        except (TidelogError, TimeoutError):
            return []

    return {one.node_id: one for part in await asyncio.gather(*map(ask, nodes)) for one in part}


async def _versions(admin: Admin) -> Mapping[int, str | None]:
    try:
        async with asyncio.timeout(NODE_SECONDS_MAX):
            return await admin.describe_versions()
    except (TidelogError, TimeoutError):
        return {}


async def _moves(admin: Admin) -> tuple[str, ...] | None:
    try:
        return tuple(sorted(map(str, await admin.list_reassignments())))
    except ClusterAuthorizationFailed:
        return None
