"""DescribeLogDirs: the logs on this node's disk and their sizes. Source: KIP-113, KIP-827."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from pathlib import Path

from kio.schema.describe_log_dirs.v5 import request as log_dirs_request
from kio.schema.describe_log_dirs.v5 import response as log_dirs_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_node.disk.data_disk import FAILED
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.upkeep.log_reopener import OFFLINE
from tidelog_node.wire.messages import build

logger = logging.getLogger(__name__)

FAILURES = frozenset({FAILED, OFFLINE})  # the problems that the directory's error code reports


class LogDirsHandler:
    """Serves DescribeLogDirs: a node has one log directory."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaManager, data_dir: Path) -> None:
        self._node = node
        self._replicas = replicas
        self._data_dir = data_dir

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, self.handle)]

    async def handle(
        self, request: log_dirs_request.DescribeLogDirsRequest, _: RequestContext
    ) -> log_dirs_response.DescribeLogDirsResponse:
        """Return the sizes of the request's partitions, of all for a null list.

        While the disk or a log on it has failed, the directory has KAFKA_STORAGE_ERROR. Unlike
        Kafka's answer, this one still lists the partitions: most can still be read.
        """
        turn = RequestTurn()
        wanted: dict[str, set[int]] | None = None
        if request.topics is not None:
            wanted = {
                topic.topic: set(topic.partitions) async for topic in turn.each(request.topics)
            }
        by_topic: dict[str, list[log_dirs_response.DescribeLogDirsPartition]] = defaultdict(list)
        for replica in tuple(self._replicas.replicas()):
            topic, index = replica.partition
            if wanted is None or index in wanted.get(topic, ()):
                await turn.step()
                described = _describe(replica)
                if described is not None:
                    by_topic[topic].append(described)
        disk = shutil.disk_usage(self._data_dir)
        has_failed = any(reason.name in FAILURES for reason in self._node.health.reasons)
        result = build(
            log_dirs_response.DescribeLogDirsResult,
            error_code=ErrorCode.kafka_storage_error if has_failed else ErrorCode.none,
            log_dir=str(self._data_dir),
            topics=tuple(
                build(
                    log_dirs_response.DescribeLogDirsTopic, name=topic, partitions=tuple(partitions)
                )
                for topic, partitions in sorted(by_topic.items())
            ),
            total_bytes=disk.total,
            usable_bytes=disk.free,
        )
        return build(
            log_dirs_response.DescribeLogDirsResponse, error_code=ErrorCode.none, results=(result,)
        )


def _describe(replica: Replica) -> log_dirs_response.DescribeLogDirsPartition | None:
    """Return the partition, or ``None`` if its log cannot be opened."""
    try:
        size_bytes = replica.log.size_bytes
    except (TidelogError, OSError) as error:
        logger.error(
            "log cannot be described",
            extra={"partition": str(replica.partition), "reason": str(error)},
        )
        return None
    return build(
        log_dirs_response.DescribeLogDirsPartition,
        partition_index=replica.partition.partition,
        partition_size=size_bytes,
        offset_lag=0,  # the leader's own copy is never behind
        is_future_key=False,
    )
