"""DescribeLogDirs: what this node's disk holds. Source: KIP-113, KIP-827."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tidelog_core.errors import ErrorCode

from tidelog_node.replicas import Replica, ReplicaManager
from tidelog_node.routes import RequestContext, Route
from tidelog_node.wire.messages import build

API_KEY = 35


class LogDirsHandler:
    """Serves DescribeLogDirs: a node has one log directory."""

    def __init__(self, *, replicas: ReplicaManager, data_dir: Path) -> None:
        self._replicas = replicas
        self._data_dir = data_dir

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(API_KEY, 1, 5, self.handle)]

    async def handle(
        self, request: DescribeLogDirsRequest, _: RequestContext
    ) -> DescribeLogDirsResponse:
        """Return the sizes of the partitions asked for, of all for a null list."""
        wanted: dict[str, set[int]] | None = None
        if request.topics is not None:
            wanted = {topic.topic: set(topic.partitions) for topic in request.topics}
        by_topic: dict[str, list[Replica]] = defaultdict(list)
        for replica in self._replicas.replicas():
            topic, index = replica.partition
            if wanted is None or index in wanted.get(topic, ()):
                by_topic[topic].append(replica)
        disk = shutil.disk_usage(self._data_dir)
        result = build(
            DescribeLogDirsResult,
            error_code=ErrorCode.none,
            log_dir=str(self._data_dir),
            topics=tuple(
                build(
                    DescribeLogDirsTopic,
                    name=topic,
                    partitions=tuple(_describe(replica) for replica in replicas),
                )
                for topic, replicas in sorted(by_topic.items())
            ),
            total_bytes=disk.total,
            usable_bytes=disk.free,
        )
        return build(DescribeLogDirsResponse, error_code=ErrorCode.none, results=(result,))


def _describe(replica: Replica) -> DescribeLogDirsPartition:
    return build(
        DescribeLogDirsPartition,
        partition_index=replica.partition.partition,
        partition_size=replica.log.size_bytes,
        offset_lag=0,  # the leader's own copy is never behind
        is_future_key=False,
    )
