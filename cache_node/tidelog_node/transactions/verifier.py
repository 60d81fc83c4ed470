"""Verifies partitions with a transaction's coordinator, here or on another node.

Clients of transaction version 2 do not add partitions to transactions themselves: the broker that
gets their records or offsets first adds the partition. For older clients it verifies that they
have.
Source: KIP-890; ``AddPartitionsToTxnManager`` of Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kio.schema.add_partitions_to_txn.v5 import request as add_request
from kio.schema.add_partitions_to_txn.v5 import response as add_response
from kio.schema.errors import ErrorCode
from tidelog.wire.requests import Api
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.coordination.transactions import shard_of_transaction
from tidelog_core.model import NO_LEADER, TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog_core.wire_messages import build

from tidelog_node.coordinator.failures import error_code
from tidelog_node.dialing.peers import Peers
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.state import TV_2

logger = logging.getLogger(__name__)

ADD_PARTITIONS_TO_TXN = Api(24, 5, 5)
ANSWER_SECONDS_MAX = 10.0


class TransactionVerifier:
    """Asks transaction coordinators. For the tasks of one event loop."""

    def __init__(
        self, node: NodeContext, *, coordinator: TransactionCoordinator, peers: Peers
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._peers = peers

    async def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Return for each partition whether it is part of the open transaction.

        With ``adds`` the partitions are added to it. PRODUCER_FENCED becomes
        INVALID_PRODUCER_EPOCH, which producers expect of a partition's leader.
        """
        leader = self._leader_of(transactional_id)
        given = (transactional_id, producer_id, producer_epoch, partitions)
        try:
            if leader == NO_LEADER:
                codes = dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
            elif leader != self._node.broker_id:
                transaction = build(
                    add_request.AddPartitionsToTxnTransaction,
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    verify_only=not adds,
                    topics=_topics(partitions),
                )
                codes = await self._ask_peer(leader, transaction, partitions)
            elif adds:
                error = await self._coordinator.add_partitions(*given, client_version=TV_2)
                codes = dict.fromkeys(partitions, error)
            else:
                codes = await self._coordinator.verify_partitions(*given)
        except TidelogError as problem:
            self._node.view.nudge()
            codes = dict.fromkeys(partitions, error_code(problem))
        fenced = ErrorCode.producer_fenced
        return {
            partition: ErrorCode.invalid_producer_epoch if code is fenced else code
            for partition, code in codes.items()
        }

    def _leader_of(self, transactional_id: str) -> int:
        """Return the broker that coordinates the id, or ``NO_LEADER``."""
        shards = self._node.view.image.partitions(TRANSACTION_STATE_TOPIC)
        if not shards:
            return NO_LEADER
        return shards[shard_of_transaction(transactional_id, len(shards))].leader

    async def _ask_peer(
        self,
        broker_id: int,
        transaction: add_request.AddPartitionsToTxnTransaction,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        answer: add_response.AddPartitionsToTxnResponse = await self._peers.request(
            broker_id,
            ADD_PARTITIONS_TO_TXN,
            build(add_request.AddPartitionsToTxnRequest, transactions=(transaction,)),
            timeout_s=ANSWER_SECONDS_MAX,
        )
        if answer.error_code is not ErrorCode.none:
            return dict.fromkeys(partitions, answer.error_code)
        codes = dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
        for result in answer.results_by_transaction:
            for topic_result in result.topic_results:
                for partition in topic_result.results_by_partition:
                    key = TopicPartition(topic_result.name, partition.partition_index)
                    codes[key] = partition.partition_error_code
        return codes


def _topics(
    partitions: Collection[TopicPartition],
) -> tuple[add_request.AddPartitionsToTxnTopic, ...]:
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    return tuple(
        build(add_request.AddPartitionsToTxnTopic, name=name, partitions=tuple(listed))
        for name, listed in indexes.items()
    )
