"""Admin calls for transactions: listing them, and ending hanging ones.

A transaction hangs if it is open in a partition but its coordinator does not know it
(any more): it stops readers of committed records forever. Hanging transactions are
found by comparing the answers of leaders and coordinators, and ended by an abort marker
that the admin writes. Source: KIP-664.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.write_txn_markers.v1.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidelog_core.clock import wall_clock_ms
from tidelog_core.model import NO_OFFSET, TopicPartition
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls, raise_error
from tidelog.administering.results import (
    HangingTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from tidelog.cluster import CoordinatorKind
from tidelog.consuming.coordinator import Coordinator
from tidelog.errors import EntryNotAnswered, InvalidTxnState, error_for
from tidelog.given_values import integer, partition_of, partitions_of, several
from tidelog.wire.answers import entries_of, find_entries
from tidelog.wire.requests import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    LIST_TRANSACTIONS_BY_PATTERN,
    WRITE_TXN_MARKERS,
    Api,
)

LONGEST_TRANSACTION_MS = 900_000  # the default of ``transaction.max.timeout.ms``
_UNDECIDED = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})


class TransactionCalls(AdminCalls):
    """Admin calls for transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        open_longer_than_ms: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that match every given filter, sorted.

        ``id_pattern`` is an RE2 expression that must match the whole id. Raises
        ``InvalidRegularExpression``, and ``UnsupportedVersion`` for a node without pattern support.
        """
        await self.start()
        request = build(
            ListTransactionsRequest,
            state_filters=tuple(several(states, "states")),
            producer_id_filters=tuple(several(producer_ids, "ids of producers")),
            duration_filter=open_longer_than_ms,
            transactional_id_pattern=id_pattern or None,
        )

        api = LIST_TRANSACTIONS_BY_PATTERN if id_pattern else LIST_TRANSACTIONS

        async def ask(node_id: int) -> Any:
            response = await self._ask(api, request, about=f"node {node_id}", node_id=node_id)
            return response.transaction_states

        answers = await asyncio.gather(*(ask(node_id) for node_id in self._cluster.nodes))
        listed = {
            each.transactional_id: TransactionListing(
                each.transactional_id, int(each.producer_id), each.transaction_state
            )
            for part in answers
            for each in part
        }
        return [listed[transactional_id] for transactional_id in sorted(listed)]

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription]:
        """Return transactional ids with their last transactions.

        Raises the error of the first id that its coordinator does not know.
        """
        await self.start()
        wanted = list(dict.fromkeys(several(transactional_ids, "transactional ids")))
        found = await asyncio.gather(*(self._describe_transaction(each) for each in wanted))
        return dict(zip(wanted, found, strict=True))

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Return the producers that each partition's leader knows, sorted by id."""
        await self.start()
        wanted = partitions_of(partitions)
        found = await asyncio.gather(*(self._describe_producers(each) for each in wanted))
        return dict(zip(wanted, found, strict=True))

    async def find_hanging_transactions(
        self,
        partitions: Iterable[tuple[str, int]],
        *,
        silent_for_ms: int = LONGEST_TRANSACTION_MS,
    ) -> list[HangingTransaction]:
        """Return the transactions open in these partitions that no coordinator will end.

        Includes only transactions whose producer has written nothing there for
        ``silent_for_ms``: others may just be starting or ending.
        """
        written_before_ms = wall_clock_ms() - integer(silent_for_ms, "silent_for_ms")
        suspects = [
            HangingTransaction(partition, producer)
            for partition, producers in (await self.describe_producers(partitions)).items()
            for producer in producers
            if producer.transaction_start_offset != NO_OFFSET
            and producer.last_timestamp_ms <= written_before_ms
        ]
        if not suspects:
            return []
        producer_ids = {suspect.producer.producer_id for suspect in suspects}
        listed = await self.list_transactions(producer_ids=producer_ids)
        known = await self.describe_transactions(each.transactional_id for each in listed)
        held = {
            (each.producer_id, partition)
            for each in known.values()
            if each.state in _UNDECIDED
            for partition in each.partitions
        }
        return [s for s in suspects if (s.producer.producer_id, s.partition) not in held]

    async def abort_transaction(self, partition: tuple[str, int], *, start_offset: int) -> None:
        """Write an abort marker for the transaction open in the partition since that offset.

        Only for hanging transactions: a coordinator that knows the transaction is not informed
        and would continue with it. Raises ``InvalidTxnState`` if no such transaction is open.
        """
        target = partition_of(partition)
        (producers,) = (await self.describe_producers([target])).values()
        producer = next((p for p in producers if p.transaction_start_offset == start_offset), None)
        if producer is None or start_offset < 0:
            raise InvalidTxnState(f"{target} has no transaction open since offset {start_offset}")
        request = build(
            WriteTxnMarkersRequest,
            markers=(
                build(
                    WritableTxnMarker,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    transaction_result=False,
                    topics=(
                        build(
                            WritableTxnMarkerTopic,
                            name=target.topic,
                            partition_indexes=(target.partition,),
                        ),
                    ),
                    coordinator_epoch=max(0, producer.coordinator_epoch),
                ),
            ),
        )

        async def attempt() -> None:
            response = await self._ask_leader(WRITE_TXN_MARKERS, request, target)
            name = (producer.producer_id, *target)
            marked = find_entries(WRITE_TXN_MARKERS, response, [name])[name]
            if marked is None:
                raise EntryNotAnswered([target], about="abort")
            raise_error(marked, target)

        await self._retried(attempt)

    # -- internals --

    async def _describe_transaction(self, transactional_id: str) -> TransactionDescription:
        coordinator = Coordinator(self._cluster, transactional_id, CoordinatorKind.TRANSACTION)
        request = build(DescribeTransactionsRequest, transactional_ids=(transactional_id,))
        found = await self._ask_coordinator_for_entry(coordinator, DESCRIBE_TRANSACTIONS, request)
        start_time_ms = int(found.transaction_start_time_ms)
        return TransactionDescription(
            transactional_id,
            found.transaction_state,
            int(found.producer_id),
            int(found.producer_epoch),
            round(found.transaction_timeout.total_seconds() * 1000),
            start_time_ms if start_time_ms > 0 else None,
            tuple(
                TopicPartition(topic.topic, int(number))
                for topic in found.topics
                for number in sorted(topic.partitions)
            ),
            -1 if coordinator.node_id is None else coordinator.node_id,
        )

    async def _describe_producers(self, partition: TopicPartition) -> list[ProducerDescription]:
        request = build(
            DescribeProducersRequest,
            topics=(
                build(TopicRequest, name=partition.topic, partition_indexes=(partition.partition,)),
            ),
        )

        async def attempt() -> Any:
            response = await self._ask_leader(DESCRIBE_PRODUCERS, request, partition)
            found = entries_of(DESCRIBE_PRODUCERS, response, [partition], about="producers")
            raise_error(found[partition], partition)
            return found[partition].active_producers

        producers = [
            ProducerDescription(
                int(p.producer_id),
                int(p.producer_epoch),
                int(p.last_sequence),
                int(p.last_timestamp),
                int(p.coordinator_epoch),
                int(p.current_txn_start_offset),
            )
            for p in await self._retried(attempt)
        ]
        return sorted(producers, key=lambda producer: producer.producer_id)

    async def _ask_leader(self, api: Api, request: object, partition: TopicPartition) -> Any:
        """Send one request to the partition's leader, without retries."""
        if self._cluster.topic(partition.topic) is None:
            await self._cluster.refresh()
        leader = self._cluster.leader(partition)
        if leader is None:
            topic = self._cluster.topic(partition.topic)
            is_there = topic is not None and partition.partition in topic.partitions
            code = (
                ErrorCode.leader_not_available if is_there else ErrorCode.unknown_topic_or_partition
            )
            raise error_for(code, None, about=partition)
        return await self._cluster.request(api, request, node_id=leader.leader)
