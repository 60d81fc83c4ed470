"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and WriteTxnMarkers.

Source: ``KafkaApis`` of Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kio.schema.add_offsets_to_txn.v4 import request as offsets_request
from kio.schema.add_offsets_to_txn.v4 import response as offsets_response
from kio.schema.add_partitions_to_txn.v3 import request as add_request_v3
from kio.schema.add_partitions_to_txn.v3 import response as add_response_v3
from kio.schema.add_partitions_to_txn.v5 import request as add_request
from kio.schema.add_partitions_to_txn.v5 import response as add_response
from kio.schema.end_txn.v5 import request as end_request
from kio.schema.end_txn.v5 import response as end_response
from kio.schema.write_txn_markers.v1 import request as markers_request
from kio.schema.write_txn_markers.v1 import response as markers_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import CoordinatorNotAvailable, ErrorCode, TidelogError
from tidelog_core.metadata.coordination.groups import shard_of_group
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

from tidelog_node.coordinator.failures import error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import topic_admin
from tidelog_node.handlers.shard_topics import ensure_shards
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.requests.session import NO_NODE
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.marker_messages import from_request, to_response
from tidelog_node.transactions.marker_writer import MarkerWriter
from tidelog_node.transactions.markers import MarkerResults
from tidelog_node.transactions.state import TV_0, TV_2, Decision
from tidelog_node.wire.messages import build

FENCED_FROM = 2  # earlier versions have only INVALID_PRODUCER_EPOCH
BUMPS_EPOCH_FROM = 5  # EndTxn


class TransactionHandlers:
    """Serves the transactions of the shards that this node leads."""

    def __init__(
        self,
        node: NodeContext,
        *,
        coordinator: TransactionCoordinator,
        writer: MarkerWriter,
    ) -> None:
        self._node = node
        self._admin = topic_admin(node)
        self._coordinator = coordinator
        self._writer = writer

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, self.add_partitions_of_one),
            Route(ApiKey.ADD_PARTITIONS_TO_TXN, 4, 5, self.add_partitions),
            Route(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, self.add_offsets),
            Route(ApiKey.END_TXN, 0, 5, self.end_transaction),
            Route(ApiKey.WRITE_TXN_MARKERS, 1, 1, self.write_markers),
        ]

    # -- requests of producers, and of brokers for them --

    async def add_partitions_of_one(
        self, request: add_request_v3.AddPartitionsToTxnRequest, context: RequestContext
    ) -> add_response_v3.AddPartitionsToTxnResponse:
        """Make partitions part of a client's transaction: all of them or none."""
        turn = RequestTurn()
        partitions = await _partitions(request.v3_and_below_topics, turn)
        codes = await self._add(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            partitions,
            client_version=TV_0,
        )
        codes = {p: _known(code, context.api_version) for p, code in codes.items()}
        return build(
            add_response_v3.AddPartitionsToTxnResponse,
            results_by_topic_v3_and_below=await _add_results(codes, add_response_v3, turn),
        )

    async def add_partitions(
        self, request: add_request.AddPartitionsToTxnRequest, context: RequestContext
    ) -> add_response.AddPartitionsToTxnResponse:
        """Add or only verify partitions of several transactions, for other brokers."""
        if context.session.node_id == NO_NODE:
            return build(
                add_response.AddPartitionsToTxnResponse,
                error_code=ErrorCode.cluster_authorization_failed,
            )
        results = []
        turn = RequestTurn()
        async for transaction in turn.each(request.transactions):
            partitions = await _partitions(transaction.topics, turn)
            given = (
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                partitions,
            )
            if transaction.verify_only:
                codes = await self._verify(*given)
            else:
                codes = await self._add(*given, client_version=TV_2)
            results.append(
                build(
                    add_response.AddPartitionsToTxnResult,
                    transactional_id=transaction.transactional_id,
                    topic_results=await _add_results(codes, add_response, turn),
                )
            )
        return build(add_response.AddPartitionsToTxnResponse, results_by_transaction=tuple(results))

    async def add_offsets(
        self, request: offsets_request.AddOffsetsToTxnRequest, context: RequestContext
    ) -> offsets_response.AddOffsetsToTxnResponse:
        """Add a group's shard to the transaction, so that the group's offsets end with it."""
        try:
            error = await self._coordinator.add_partitions(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                [await self._offsets_partition(request.group_id)],
                client_version=TV_0,
            )
        except TidelogError as problem:
            error = error_code(problem)
        return build(
            offsets_response.AddOffsetsToTxnResponse,
            error_code=_known(error, context.api_version),
        )

    async def end_transaction(
        self, request: end_request.EndTxnRequest, context: RequestContext
    ) -> end_response.EndTxnResponse:
        """Commit or abort; from version 5 on return the epoch for the next transaction."""
        client_version = TV_2 if context.api_version >= BUMPS_EPOCH_FROM else TV_0
        try:
            decision = await self._coordinator.end_transaction(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                is_commit=request.committed,
                client_version=client_version,
            )
        except TidelogError as problem:
            decision = Decision(error_code(problem))
        return build(
            end_response.EndTxnResponse,
            error_code=_known(decision.error, context.api_version),
            producer_id=decision.producer_id,
            producer_epoch=decision.producer_epoch,
        )

    # -- requests of coordinators, and of administrators who abort a hanging transaction --

    async def write_markers(
        self, request: markers_request.WriteTxnMarkersRequest, context: RequestContext
    ) -> markers_response.WriteTxnMarkersResponse:
        """Write transaction markers to the partitions that this node leads.

        Only a coordinator knows that a transaction is committed. Administrators abort those that
        hang.
        """
        turn = RequestTurn()
        markers = await from_request(request, turn)
        written: MarkerResults
        if context.session.node_id == NO_NODE and any(marker.is_commit for marker in markers):
            written = {
                (marker.producer_id, partition): ErrorCode.cluster_authorization_failed
                for marker in markers
                for partition in marker.partitions
            }
        else:
            written = await self._writer.write(markers)
        return await to_response(request, written, turn)

    # -- parts of the requests above --

    async def _add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        client_version: int,
    ) -> Mapping[TopicPartition, ErrorCode]:
        missing = self._missing(partitions)
        if missing:
            return missing
        try:
            error = await self._coordinator.add_partitions(
                transactional_id,
                producer_id,
                producer_epoch,
                partitions,
                client_version=client_version,
            )
        except TidelogError as problem:
            error = error_code(problem)
        return dict.fromkeys(partitions, error)

    async def _verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        missing = self._missing(partitions)
        if missing:
            return missing
        try:
            return await self._coordinator.verify_partitions(
                transactional_id, producer_id, producer_epoch, partitions
            )
        except TidelogError as problem:
            return dict.fromkeys(partitions, error_code(problem))

    def _missing(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode] | None:
        """Return the answer if a partition does not exist: then none is added."""
        image = self._node.view.image
        missing = {p for p in partitions if image.partition(p) is None}
        if not missing:
            return None
        self._node.view.nudge()  # This node may not know of a new partition yet.
        return {
            partition: ErrorCode.unknown_topic_or_partition
            if partition in missing
            else ErrorCode.operation_not_attempted
            for partition in partitions
        }

    async def _offsets_partition(self, group_id: str) -> TopicPartition:
        await ensure_shards(self._admin, CONSUMER_OFFSETS_TOPIC)
        shards = self._node.view.image.partitions(CONSUMER_OFFSETS_TOPIC)
        if not shards:
            raise CoordinatorNotAvailable(f"{CONSUMER_OFFSETS_TOPIC} was deleted")
        return TopicPartition(CONSUMER_OFFSETS_TOPIC, shard_of_group(group_id, len(shards)))


def _known(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.producer_fenced and version < FENCED_FROM:
        return ErrorCode.invalid_producer_epoch
    return code


async def _partitions(topics: Collection[Any], turn: RequestTurn) -> list[TopicPartition]:
    named = [
        TopicPartition(topic.name, index)
        async for topic in turn.each(topics)
        async for index in turn.each(topic.partitions)
    ]
    return list(dict.fromkeys(named))


async def _add_results(
    codes: Mapping[TopicPartition, ErrorCode], module: Any, turn: RequestTurn
) -> tuple[object, ...]:
    topics: dict[str, list[object]] = {}
    async for (topic, index), code in turn.each(codes.items()):
        topics.setdefault(topic, []).append(
            build(
                module.AddPartitionsToTxnPartitionResult,
                partition_index=index,
                partition_error_code=code,
            )
        )
    return tuple(
        [
            build(
                module.AddPartitionsToTxnTopicResult,
                name=name,
                results_by_partition=tuple(results),
            )
            async for name, results in turn.each(topics.items())
        ]
    )
