"""Writes transaction markers to the partitions that this node leads.

A marker is acknowledged once every ISR member has it, flushed if the topic has a flush policy. On a
diskless partition it is acknowledged once the partition's chain has it.
Partitions of ``__consumer_offsets`` have no log. For them the group coordinator commits or drops
the transaction's offsets.
Source: ``KafkaApis.handleWriteTxnMarkersRequest`` of Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode
from tidelog_core.batched import batched
from tidelog_core.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    NotLeaderOrFollower,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.log.values import AppendOrigin
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TopicPartition
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.transactions.markers import Marker, MarkerResults
from tidelog_node.transactions.uncommitted_markers import MarkerName, UncommittedMarkers
from tidelog_node.upkeep.flusher import Flusher

logger = logging.getLogger(__name__)

WRITES_AT_ONCE_MAX = 500
REPLICATION_SECONDS_MAX = 5.0


class GroupTransactions(Protocol):
    """Ends transactions in the offsets of groups."""

    async def complete_transaction(
        self,
        shard_index: int,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """Commit or drop the offsets of the producer's transaction. Durable on return."""


class MarkerWriter:
    """Writes markers on the partitions that this node leads."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        flusher: Flusher,
        offsets: GroupTransactions,
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._flusher = flusher
        self._offsets = offsets
        self._uncommitted = UncommittedMarkers()

    async def write(self, markers: Sequence[Marker]) -> MarkerResults:
        """Return the result of each marker in each of its partitions."""
        wanted = [(marker, partition) for marker in markers for partition in marker.partitions]
        codes: list[ErrorCode] = []
        for some in batched(wanted, WRITES_AT_ONCE_MAX):
            codes += await asyncio.gather(*(self._write(*each) for each in some))
        return {
            (marker.producer_id, partition): code
            for (marker, partition), code in zip(wanted, codes, strict=True)
        }

    async def _write(self, marker: Marker, partition: TopicPartition) -> ErrorCode:
        try:
            if partition.topic == CONSUMER_OFFSETS_TOPIC:
                await self._offsets.complete_transaction(
                    partition.partition,
                    marker.producer_id,
                    marker.producer_epoch,
                    is_commit=marker.is_commit,
                    coordinator_epoch=marker.coordinator_epoch,
                )
            else:
                await self._append(marker, partition)
        except (
            CoordinatorNotAvailable,
            NotCoordinator,
            OutcomeUnknown,
            StoreUnavailable,
            VersionConflict,
        ):
            # Transaction coordinators retry on this code.
            return ErrorCode.not_leader_or_follower
        except TidelogError as error:
            return error.code
        except TimeoutError:
            return ErrorCode.request_timed_out
        except OSError as error:
            logger.error(
                "marker could not be written",
                extra={"partition": str(partition), "reason": str(error)},
            )
            return ErrorCode.kafka_storage_error
        return ErrorCode.none

    async def _append(self, marker: Marker, partition: TopicPartition) -> None:
        """Append the marker, and return once it is on every ISR member or in the chain.

        Raises ``TidelogError``, ``OSError``, and ``TimeoutError`` if that takes too long.
        """
        replica = self._replicas.leader(partition)
        if not (self._node.membership.can_serve() or replica.is_diskless):
            raise NotLeaderOrFollower("this node has lost touch with the cluster")
        if replica.is_internal:
            return  # A partition that carries leadership only has no transactions.
        if replica.role is not None:
            replica.role.require_leader().require_appendable(needs_all=True)
        # Also of a partition that becomes diskless: its markers wait for the chain, too.
        waits_for_chain = replica.is_diskless or replica.chain is not None
        if waits_for_chain:
            appended_end = self._uncommitted.end_of(replica, _named(marker))
            if appended_end is not None:  # The coordinator asks again: the chain was away.
                async with asyncio.timeout(REPLICATION_SECONDS_MAX):
                    await _replicated(replica, appended_end)
                return
            self._uncommitted.require_room()
        info = replica.append(self._batch_of(marker), AppendOrigin.COORDINATOR)
        end_offset = info.last_offset + 1
        if waits_for_chain:
            self._uncommitted.add(replica, _named(marker), end_offset)
        async with asyncio.timeout(REPLICATION_SECONDS_MAX):
            if replica.has_flush_policy:
                for flush in self._flusher.appended(replica):
                    await flush
            await _replicated(replica, end_offset)

    def _batch_of(self, marker: Marker) -> bytearray:
        batch = build_end_transaction_marker(
            EndTransactionMarker(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                marker.coordinator_epoch,
            ),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=self._node.clock_ms(),
        )
        return bytearray(batch)


def _named(marker: Marker) -> MarkerName:
    return MarkerName(
        marker.producer_id, marker.producer_epoch, marker.is_commit, marker.coordinator_epoch
    )


class _Ack:
    """Waits until a marker is on every ISR member, or in the chain."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ack(self, error: TidelogError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


async def _replicated(replica: Replica, required_offset: int) -> None:
    role = replica.role
    if role is None or replica.log.high_watermark >= required_offset:
        return
    if role.leader is None:
        raise NotLeaderOrFollower("another node leads the partition")
    ack = _Ack()
    role.add_pending_ack(required_offset, ack)
    await ack.future
