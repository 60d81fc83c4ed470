"""DeleteRecords: advances a partition's log start offset.

The metadata store is written first: once it has the new start, no reader anywhere may rely on older
offsets, and retention removes the tiered objects. The local log follows. If the node dies in
between, it takes the start from the store when it opens the log. The next leader does the same. So
the answer need not wait, as it does in Kafka, until the other replicas have moved their starts.
Source: KIP-107.
"""

from __future__ import annotations

import logging

from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.delete_records.v2 import response as delete_response
from tidelog_core.admin.failures import admin_error_code
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import (
    ErrorCode,
    InvalidTopic,
    OffsetOutOfRange,
    PolicyViolation,
    TidelogError,
)
from tidelog_core.metadata.leadership import Leadership, advance_log_start
from tidelog_core.model import TopicPartition

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

logger = logging.getLogger(__name__)

TO_HIGH_WATERMARK = -1


class DeleteRecordsHandler:
    """Serves DeleteRecords on the partitions that this node leads."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaManager) -> None:
        self._node = node
        self._replicas = replicas

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.DELETE_RECORDS, 0, 2, self.handle)]

    async def handle(
        self, request: delete_request.DeleteRecordsRequest, _: RequestContext
    ) -> delete_response.DeleteRecordsResponse:
        """Advance the partitions' log start offsets and return the current ones."""
        topics = []
        turn = RequestTurn()
        async for topic in turn.each(request.topics):
            results = [
                await self._answer(topic.name, wanted)
                async for wanted in turn.each(topic.partitions)
            ]
            topics.append(
                build(
                    delete_response.DeleteRecordsTopicResult,
                    name=topic.name,
                    partitions=tuple(results),
                )
            )
        return build(delete_response.DeleteRecordsResponse, topics=tuple(topics))

    async def _answer(
        self, topic: str, wanted: delete_request.DeleteRecordsPartition
    ) -> delete_response.DeleteRecordsPartitionResult:
        code, low_watermark = ErrorCode.none, -1
        partition = TopicPartition(topic, wanted.partition_index)
        try:
            low_watermark = await self._delete(partition, wanted.offset)
        except TidelogError as error:
            code = admin_error_code(error)
        except OSError as error:
            logger.error(
                "records not deleted", extra={"partition": str(partition), "reason": str(error)}
            )
            code = ErrorCode.kafka_storage_error
        return build(
            delete_response.DeleteRecordsPartitionResult,
            partition_index=wanted.partition_index,
            low_watermark=low_watermark,
            error_code=code,
        )

    async def _delete(self, partition: TopicPartition, offset: int) -> int:
        replica = self._replicas.leader(partition)
        self._node.require_serving()
        replica.require_readable()
        if replica.is_internal:
            raise InvalidTopic(f"{partition.topic} is not for clients to change")
        if "delete" not in replica.config.cleanup_policy:
            raise PolicyViolation(f"cleanup.policy of {partition.topic} is compact only")
        log = replica.log
        if offset == TO_HIGH_WATERMARK:
            offset = log.high_watermark
        if not 0 <= offset <= log.high_watermark:
            raise OffsetOutOfRange(
                partition, offset, start=log.log_start_offset, end=log.high_watermark
            )
        if offset > log.log_start_offset:
            leadership = Leadership(replica.topic_id, partition.partition, replica.leader_epoch)
            await advance_log_start(self._node.store, leadership, offset, copied_end=log.copied_end)
            log.advance_log_start_offset(offset)
        return log.log_start_offset
