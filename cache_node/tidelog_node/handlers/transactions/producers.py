"""DescribeProducers: the producers of a partition, and their open transactions.

Source: ``ReplicaManager.activeProducerState`` of Kafka.
"""

from __future__ import annotations

from kio.schema.describe_producers.v0 import request as producers_request
from kio.schema.describe_producers.v0 import response as producers_response
from tidelog_core.admin.names import validate_topic_name
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, InvalidTopic, TidelogError
from tidelog_core.log.producers.producer_state import ProducerEntry
from tidelog_core.model import TopicPartition

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class ProducersHandler:
    """Serves the producers of the partitions that this node leads."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaManager) -> None:
        self._node = node
        self._replicas = replicas

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [Route(ApiKey.DESCRIBE_PRODUCERS, 0, 0, self.describe_producers)]

    async def describe_producers(
        self, request: producers_request.DescribeProducersRequest, _: RequestContext
    ) -> producers_response.DescribeProducersResponse:
        """Return every producer that each partition's log knows."""
        turn = RequestTurn()
        return build(
            producers_response.DescribeProducersResponse,
            topics=tuple(
                [
                    build(
                        producers_response.TopicResponse,
                        name=topic.name,
                        partitions=tuple(
                            [
                                await self._describe(TopicPartition(topic.name, index), turn)
                                async for index in turn.each(topic.partition_indexes)
                            ]
                        ),
                    )
                    async for topic in turn.each(request.topics)
                ]
            ),
        )

    async def _describe(
        self, partition: TopicPartition, turn: RequestTurn
    ) -> producers_response.PartitionResponse:
        try:
            validate_topic_name(partition.topic)
            replica = self._replicas.leader(partition)
            self._node.require_serving()
            state = replica.log.producers.state
            producer_ids = () if replica.is_internal else state.producer_ids()
        except InvalidTopic as error:
            return _failed(partition, ErrorCode.invalid_topic_exception, str(error))
        except TidelogError as error:
            return _failed(partition, error.code, str(error))
        except OSError as error:
            return _failed(partition, ErrorCode.kafka_storage_error, str(error))
        return build(
            producers_response.PartitionResponse,
            partition_index=partition.partition,
            error_code=ErrorCode.none,
            active_producers=tuple(
                [
                    _state(producer_id, entry)
                    # A partition may have a hundred thousand.
                    async for producer_id in turn.each(producer_ids)
                    if (entry := state.entry(producer_id)) is not None
                ]
            ),
        )


def _state(producer_id: int, entry: ProducerEntry) -> producers_response.ProducerState:
    return build(
        producers_response.ProducerState,
        producer_id=producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_seen_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.transaction_first_offset,
    )


def _failed(
    partition: TopicPartition, code: ErrorCode, message: str
) -> producers_response.PartitionResponse:
    return build(
        producers_response.PartitionResponse,
        partition_index=partition.partition,
        error_code=code,
        error_message=message,
    )
