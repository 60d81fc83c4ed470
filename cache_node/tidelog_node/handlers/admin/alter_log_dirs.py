"""AlterReplicaLogDirs: moves replicas between the directories of a node, which has one.

A move to the directory that already has the replica succeeds and does nothing. Source: KIP-113, and
``ReplicaManager.alterReplicaLogDirs`` of Kafka, with its codes.
"""

from __future__ import annotations

from pathlib import Path

from kio.schema.alter_replica_log_dirs.v2 import request as wire_request
from kio.schema.alter_replica_log_dirs.v2 import response as wire_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.model import TopicPartition

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

DIRECTORY_NAME_LENGTH_MAX = 255
# Kafka appends this to the name of a directory to which a replica is being moved.
MOVED_SUFFIX_LENGTH = len(".") + 32 + len("-future")


class AlterLogDirsHandler:
    """Serves AlterReplicaLogDirs."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaManager, data_dir: Path) -> None:
        self._node = node
        self._replicas = replicas
        self._paths = {str(data_dir), str(data_dir.absolute())}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, self.handle)]

    async def handle(
        self, request: wire_request.AlterReplicaLogDirsRequest, _: RequestContext
    ) -> wire_response.AlterReplicaLogDirsResponse:
        """Return a code for every partition; for a repeated one the last path counts."""
        paths: dict[str, dict[int, str]] = {}
        turn = RequestTurn()
        async for directory in turn.each(request.dirs):
            async for topic in turn.each(directory.topics):
                paths.setdefault(topic.name, {}).update(
                    dict.fromkeys(topic.partitions, directory.path)
                )
        results = []
        async for name, by_index in turn.each(paths.items()):
            partitions = [
                build(
                    wire_response.AlterReplicaLogDirPartitionResult,
                    partition_index=index,
                    error_code=self._move(TopicPartition(name, index), path),
                )
                async for index, path in turn.each(by_index.items())
            ]
            results.append(
                build(
                    wire_response.AlterReplicaLogDirTopicResult,
                    topic_name=name,
                    partitions=tuple(partitions),
                )
            )
        return build(wire_response.AlterReplicaLogDirsResponse, results=tuple(results))

    def _move(self, partition: TopicPartition, path: str) -> ErrorCode:
        if len(str(partition)) + MOVED_SUFFIX_LENGTH > DIRECTORY_NAME_LENGTH_MAX:
            return ErrorCode.invalid_topic_exception
        if path not in self._paths:
            return ErrorCode.log_dir_not_found
        replica = self._replicas.get(partition)
        if replica is not None:
            return ErrorCode.kafka_storage_error if replica.is_in_trouble else ErrorCode.none
        if self._node.view.image.partition(partition) is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.replica_not_available
