"""OffsetForLeaderEpoch: the end of a leader epoch in this node's log. Source: KIP-101, KIP-320."""

from __future__ import annotations

import logging

from kio.schema.offset_for_leader_epoch.v4 import request as epoch_request
from kio.schema.offset_for_leader_epoch.v4 import response as epoch_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.model import TopicPartition

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

logger = logging.getLogger(__name__)


class LeaderEpochHandler:
    """Serves OffsetForLeaderEpoch on the partitions that this node leads."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaManager) -> None:
        self._node = node
        self._replicas = replicas

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, self.handle)]

    async def handle(
        self, request: epoch_request.OffsetForLeaderEpochRequest, _: RequestContext
    ) -> epoch_response.OffsetForLeaderEpochResponse:
        """Return the end of the requested epoch, or of the last one before it."""
        turn = RequestTurn()
        topics = []
        async for topic in turn.each(request.topics):
            answers = [
                self._answer(topic.topic, wanted) async for wanted in turn.each(topic.partitions)
            ]
            topics.append(
                build(
                    epoch_response.OffsetForLeaderTopicResult,
                    topic=topic.topic,
                    partitions=tuple(answers),
                )
            )
        return build(epoch_response.OffsetForLeaderEpochResponse, topics=tuple(topics))

    def _answer(
        self, topic: str, wanted: epoch_request.OffsetForLeaderPartition
    ) -> epoch_response.EpochEndOffset:
        code, epoch, end_offset = ErrorCode.none, -1, -1
        partition = TopicPartition(topic, wanted.partition)
        try:
            replica = self._replicas.leader(partition, wanted.current_leader_epoch)
            self._node.require_serving()
            replica.require_readable()
            epoch, end_offset = replica.unified_log.offset_for_leader_epoch(wanted.leader_epoch)
        except TidelogError as error:
            code = error.code
        except OSError as error:
            logger.error(
                "end offset of a leader epoch could not be read",
                extra={"partition": str(partition), "reason": str(error)},
            )
            code = ErrorCode.kafka_storage_error
        return build(
            epoch_response.EpochEndOffset,
            error_code=code,
            partition=wanted.partition,
            leader_epoch=epoch,
            end_offset=end_offset,
        )
