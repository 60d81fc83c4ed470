"""Requests of a transactional producer to coordinators, repeated until answered.

Up to version 1 of the feature ``transaction.version`` a producer adds each partition, and
each group whose offsets it commits, to the transaction before it writes there; its epoch
stays the same between transactions. From version 2 on (KIP-890) the nodes add partitions
and groups themselves, and each transaction has its own epoch, so that a late request
cannot become part of the next transaction.
Source: KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_partitions_to_txn.v3.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog_core.model import NO_PRODUCER_ID, TopicPartition
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster, CoordinatorKind
from tidelog.connections import Lane
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import topic_entries
from tidelog.consuming.records import GroupMetadata, OffsetAndMetadata
from tidelog.errors import (
    CommitFailed,
    ProducerFenced,
    RequestTimedOut,
    TidelogError,
    error_for,
)
from tidelog.options import ProducerOptions
from tidelog.producing.identity import ProducerIdentity, identity_in
from tidelog.wire.answers import entries_of
from tidelog.wire.requests import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    END_TXN_OF_EPOCH,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
    TXN_OFFSET_COMMIT_TO_ADDED,
    Api,
)

logger = logging.getLogger(__name__)

CONCURRENT_RETRY_S = 0.02  # The previous transaction's markers are about to be written.
TRANSACTION_FEATURE = "transaction.version"
SELF_ADDING_LEVEL = 2  # from this feature level on nodes add partitions, and epochs are bumped

_FENCED = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
_MEMBER_MOVED_ON = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})

_Codes = list[tuple[object, ErrorCode]]  # an answer's errors and their subjects


class EndedTransaction(NamedTuple):
    """The identity to continue with; -1 for both if it stays."""

    producer_id: int
    epoch: int


class TransactionRequests:
    """The requests of one transactional producer.

    All raise ``ProducerFenced``, other errors that are not retriable, and after their timeout
    the last retriable failure.
    """

    def __init__(
        self, cluster: Cluster, options: ProducerOptions, identity: ProducerIdentity
    ) -> None:
        assert options.transactional_id is not None
        self._cluster = cluster
        self._options = options
        self._identity = identity
        self.transactional_id = options.transactional_id
        self._timeout_s = options.max_block_ms / 1000
        self._coordinator = Coordinator(cluster, self.transactional_id, CoordinatorKind.TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        self.adds_itself = False  # Nodes add partitions themselves, and every end bumps the epoch.

    async def init(self) -> None:
        """Fetch an id and epoch, fencing every earlier producer of the transactional id.

        Its open transaction is aborted, or committed if the commit had started.
        """
        request = build(
            InitProducerIdRequest,
            transactional_id=self.transactional_id,
            transaction_timeout=datetime.timedelta(
                milliseconds=self._options.transaction_timeout_ms
            ),
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
        )

        def codes_in(response: Any) -> _Codes:
            codes = self._top_level(response)
            if codes[0][1] is ErrorCode.none:
                identity_in(response)
            return codes

        response = await self._repeat(
            self._coordinator, INIT_PRODUCER_ID, request, codes_in, self._timeout_s
        )
        assert self._coordinator.node_id is not None
        connection = await self._cluster.connection(self._coordinator.node_id, Lane.TRANSACTION)
        level = connection.features.get(TRANSACTION_FEATURE, 0)
        self.adds_itself = level >= SELF_ADDING_LEVEL
        self._identity.producer_id, self._identity.epoch = identity_in(response)

    async def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Add the partitions to the transaction. Retries without a timeout."""
        request = build(
            AddPartitionsToTxnRequest,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.epoch,
            v3_and_below_topics=topic_entries(
                AddPartitionsToTxnTopic, partitions, lambda partition: partition.partition
            ),
        )
        api, about = ADD_PARTITIONS_TO_TXN, str(self._coordinator)

        def codes_in(response: Any) -> _Codes:
            # Records of a partition that is left out would not be part of the transaction.
            found = entries_of(api, response, partitions, about=about)
            return [(partition, one.partition_error_code) for partition, one in found.items()]

        await self._repeat(self._coordinator, api, request, codes_in, None)

    async def add_offsets(self, group_id: str) -> None:
        """Add the group's offsets to the transaction."""
        request = build(
            AddOffsetsToTxnRequest,
            transactional_id=self.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            group_id=group_id,
        )
        await self._repeat(
            self._coordinator, ADD_OFFSETS_TO_TXN, request, self._top_level, self._timeout_s
        )

    async def commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Store the offsets at the group's coordinator; they take effect with the commit.

        Raises ``CommitFailed`` if the consumer is no longer the same member.
        """
        request = build(
            TxnOffsetCommitRequest,
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=topic_entries(
                TxnOffsetCommitRequestTopic,
                offsets,
                lambda partition: _to_commit(partition.partition, offsets[partition]),
            ),
        )
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = Coordinator(self._cluster, group.group_id)
            self._groups[group.group_id] = coordinator
        api = TXN_OFFSET_COMMIT if self.adds_itself else TXN_OFFSET_COMMIT_TO_ADDED

        def codes_in(response: Any) -> _Codes:
            # Offsets of a partition that is left out would not be part of the transaction.
            found = entries_of(api, response, offsets, about=str(coordinator))
            return [(partition, one.error_code) for partition, one in found.items()]

        await self._repeat(coordinator, api, request, codes_in, self._timeout_s)

    async def end(self, *, is_commit: bool) -> EndedTransaction:
        """Commit or abort; the outcome is certain on return, even if nodes fail."""
        request = build(
            EndTxnRequest,
            transactional_id=self.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=is_commit,
        )
        api = END_TXN if self.adds_itself else END_TXN_OF_EPOCH
        response = await self._repeat(
            self._coordinator, api, request, self._top_level, self._timeout_s
        )
        return EndedTransaction(
            int(getattr(response, "producer_id", NO_PRODUCER_ID)),
            int(getattr(response, "producer_epoch", -1)),
        )

    # -- internals --

    def _top_level(self, response: Any) -> _Codes:
        return [(f"transactional id {self.transactional_id!r}", response.error_code)]

    async def _repeat(
        self,
        coordinator: Coordinator,
        api: Api,
        message: object,
        codes_in: Callable[[Any], _Codes],
        timeout_s: float | None,
    ) -> Any:
        backoff = self._cluster.backoff()
        failure: TidelogError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        response = await coordinator.request(api, message, lane=Lane.TRANSACTION)
                        _raise_first(codes_in(response))
                    except TidelogError as error:
                        failure = error
                        coordinator.note(error.code)
                        if not error.retriable:
                            raise
                        if error.code is ErrorCode.concurrent_transactions:
                            await asyncio.sleep(CONCURRENT_RETRY_S)
                            continue
                        logger.info(
                            "transaction request failed, will retry",
                            extra={"api": api.name, "reason": str(error)},
                        )
                        await asyncio.sleep(backoff.next_s())
                    else:
                        return response
        except TimeoutError:
            raise failure or RequestTimedOut(
                f"no answer to {api.name} within {timeout_s:g} s"
            ) from None


def _raise_first(codes: _Codes) -> None:
    """Raise an error, preferably one that is not retriable, if there is one."""
    errors = [_error(code, about) for about, code in codes if code is not ErrorCode.none]
    # If one partition fails, the others are not attempted; that is not their own error.
    named = [e for e in errors if e.code is not ErrorCode.operation_not_attempted] or errors
    if named:
        raise min(named, key=lambda error: error.retriable)


def _error(code: ErrorCode, about: object) -> TidelogError:
    if code in _FENCED:
        return ProducerFenced(
            f"{about}: another producer has begun under the same transactional id, "
            "or the transaction took longer than transaction_timeout_ms"
        )
    error = error_for(code, None, about=about)
    return CommitFailed(str(error)) if code in _MEMBER_MOVED_ON else error


def _to_commit(number: int, offset: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return build(
        TxnOffsetCommitRequestPartition,
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
