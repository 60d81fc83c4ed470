"""The transaction coordinator of a node: answers requests about transactions.

The change to a prepared state is the outcome of a transaction: every later coordinator of its
shard delivers the markers to all partitions, and only then stores the end (``endings``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from kio.schema.errors import ErrorCode
from tidelog_core.errors import InvalidRequest
from tidelog_core.metadata.coordination.transactions import TransactionRecord
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.model import TopicPartition
from tidelog_core.replication.placement.heirs import wants_diskless

from tidelog_node.node_context import NodeContext
from tidelog_node.transactions import state
from tidelog_node.transactions.hosted_transactions import HostedTransactions
from tidelog_node.transactions.loaded_transaction import LoadedTransaction
from tidelog_node.transactions.markers import MarkerSender
from tidelog_node.transactions.state import (
    Decision,
    InitRequest,
    ProducerIdAndEpoch,
)
from tidelog_node.transactions.sweeper import TransactionSweeper

MARKERS_WAIT_SECONDS = 5.0  # of an EndTxn request, for markers in diskless partitions
# Codes that need no confirmation by the store: after CONCURRENT_TRANSACTIONS the client asks again,
# and the next marker voids a wrong «none».
NOT_FINAL = frozenset({ErrorCode.none, ErrorCode.concurrent_transactions})


class TransactionCoordinator:
    """Handles requests for the ids that this node hosts. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        take_producer_id: Callable[[], Awaitable[int]],
        markers: MarkerSender,
    ) -> None:
        self._node = node
        self.hosted = HostedTransactions(node, take_producer_id=take_producer_id, markers=markers)
        self._sweeper = TransactionSweeper(node, self.hosted)
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Begin to coordinate the shards that this node leads by the cluster's image."""
        self.hosted.start()
        self._sweeping = asyncio.create_task(self._sweeper.run())

    async def close(self) -> None:
        """Finish the writes in progress, stop delivering markers. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.hosted.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self.hosted.close()

    # -- requests of producers --

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> Decision:
        """Give the id to a producer, or answer INVALID_TRANSACTION_TIMEOUT or the state's error."""
        if not transactional_id:
            return Decision(ErrorCode.invalid_request)
        if not 0 < timeout_ms <= self._node.config().transaction_max_timeout_ms:
            return Decision(ErrorCode.invalid_transaction_timeout)
        request = InitRequest(
            self.hosted.shard_of(transactional_id).index, transactional_id, timeout_ms, expected
        )

        def decide(record: TransactionRecord | None, fresh_id: int | None) -> Decision:
            return state.init_producer_id(
                record, request, now_ms=self._node.clock_ms(), fresh_id=fresh_id
            )

        return await self.hosted.use(transactional_id, lambda loaded: loaded.apply(decide))

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        client_version: int,
    ) -> ErrorCode:
        """Make the partitions part of the transaction. Durable on return of ``none``."""
        if not transactional_id:
            return ErrorCode.invalid_request

        def decide(record: TransactionRecord | None, _: int | None) -> Decision:
            return state.add_partitions(
                record,
                producer_id,
                producer_epoch,
                partitions,
                client_version=client_version,
                now_ms=self._node.clock_ms(),
            )

        decision = await self.hosted.use(transactional_id, lambda loaded: loaded.apply(decide))
        return decision.error

    async def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Return whether each partition is part of the open transaction."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.invalid_request)

        async def verify(loaded: LoadedTransaction) -> dict[TopicPartition, ErrorCode]:
            given = producer_id, producer_epoch, partitions
            codes = state.verify_partitions(await loaded.claim(), *given)
            if any(code not in NOT_FINAL for code in codes.values()):
                # Not part of a transaction, it may be of one that another node has begun.
                codes = state.verify_partitions(await loaded.confirm(), *given)
            return codes

        return await self.hosted.use(transactional_id, verify)

    async def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        client_version: int,
    ) -> Decision:
        """Commit or abort. On return of ``none`` the outcome is durable; markers follow later.

        In diskless partitions they are stored too: if all nodes and the metadata store are lost,
        the bucket has the outcome. ``concurrent_transactions`` if that takes long: ask again.
        """
        if not transactional_id:
            return Decision(ErrorCode.invalid_request)

        def decide(record: TransactionRecord | None, fresh_id: int | None) -> Decision:
            return state.end_transaction(
                record,
                producer_id,
                producer_epoch,
                is_commit=is_commit,
                client_version=client_version,
                now_ms=self._node.clock_ms(),
                fresh_id=fresh_id,
            )

        async def end(loaded: LoadedTransaction) -> Decision:
            decision = await loaded.apply(decide)
            if decision.after is None or not self._has_diskless(decision.after):
                return decision
            if await self._has_ended(loaded):
                return decision
            return Decision(ErrorCode.concurrent_transactions)

        return await self.hosted.use(transactional_id, end)

    def _has_diskless(self, record: TransactionRecord) -> bool:
        image = self._node.view.image
        return any(
            (topic := image.topics.get(partition.topic)) is not None
            and (wants_diskless(topic) or _is_diskless(image, partition))
            for partition in record.partitions
        )

    async def _has_ended(self, loaded: LoadedTransaction) -> bool:
        """Wait a while until every partition has its marker; return whether that is so."""
        await self.hosted.endings.wait(loaded, MARKERS_WAIT_SECONDS)
        record = loaded.record
        return not loaded.is_unloaded and record is not None and not record.state.is_prepared

    # -- requests of administrators --

    async def describe(self, transactional_id: str) -> TransactionRecord | None:
        """Return the id's record, ``None`` for an unknown id."""
        if not transactional_id:
            raise InvalidRequest("a transactional id must not be empty")
        return await self.hosted.use(transactional_id, lambda loaded: loaded.claim())

    async def list_transactions(self) -> list[TransactionRecord]:
        """Return the record of every id that this node coordinates."""
        return await self.hosted.all()


def _is_diskless(image: ClusterImage, name: TopicPartition) -> bool:
    partition = image.partition(name)
    return partition is not None and partition.is_diskless
