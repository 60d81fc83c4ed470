"""The records of transactions: one item per transactional id, one per pending offset commit.

A ``TransactionRecord`` has the state of the id's transaction. Its shard is the partition of
``__transaction_state`` whose leader coordinates it, computed as for a group. Source:
``TransactionStateManager.partitionFor`` of Kafka.

``PendingOffsets`` are the offsets that a group commits with a producer's transaction, from
TxnOffsetCommit to the transaction's end; the shard is the group's. Each coordinator of the shard
writes ``PendingOffsetsClaim`` before it reads those items, and every write of them is conditional
on the claim. So pending writes of previous coordinators fail.

None of these is logged: only their coordinators read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    OffsetsByTopic,
    shard_of_group,
)
from tidelog_core.metadata.coordination.packed_members import whole_number
from tidelog_core.metadata.fields import InKey, Natural, OrMinusOne, Stored, typed_rows
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

TRANSACTION_COLLECTION_PREFIX = "transaction:"
PENDING_OFFSETS_COLLECTION_PREFIX = "pending-offsets:"
PENDING_OFFSETS_CLAIM_COLLECTION = "pending-offsets-claim"

shard_of_transaction = shard_of_group  # Kafka hashes both alike


class TransactionState(Enum):
    """The state of a transaction. The values are Kafka's names, as clients see them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, but not yet in every partition."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


def transaction_collection(shard: int) -> str:
    """Return the collection that lists the transactional ids of a shard."""
    return f"{TRANSACTION_COLLECTION_PREFIX}{shard}"


@key_form
def transaction_key(shard: int, transactional_id: str) -> ItemKey:
    """Return the key of a transactional id."""
    return ItemKey(transaction_collection(shard), f"{transactional_id}")


def _write_partitions(record: TransactionRecord) -> JsonValue:
    """Return rows of topic and partitions."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        topics.setdefault(topic, []).append(partition)
    return [[topic, indexes] for topic, indexes in topics.items()]


def _read_partitions(rows: Any, _: Mapping[str, Any]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic, whole_number(index))
        for topic, indexes in typed_rows(rows, str, list)
        for index in indexes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord(Record):
    """A transactional id and its current or last transaction.

    ``producer_epoch`` is the one that the producer may write with. With transaction
    version 2 the end of a transaction raises it, so that the epoch of a prepared
    transaction is already that of its markers. Source: KIP-98, KIP-360, KIP-890.
    """

    KEY = transaction_key

    shard: InKey[int]
    transactional_id: InKey[str]
    producer_id: Natural
    producer_epoch: OrMinusOne  # -1 until the first InitProducerId has ended
    previous_producer_id: OrMinusOne = NO_PRODUCER_ID  # before the last change of id
    next_producer_id: OrMinusOne = NO_PRODUCER_ID  # taken over once the transaction has ended
    last_producer_epoch: OrMinusOne = (
        NO_PRODUCER_EPOCH  # the one before, if its producer still counts
    )
    timeout_ms: Natural
    state: TransactionState = TransactionState.EMPTY
    partitions: Annotated[
        frozenset[TopicPartition], Stored(_read_partitions, _write_partitions)
    ] = frozenset()
    started_ms: OrMinusOne = NO_TIMESTAMP  # wall clock, of the current or last transaction
    updated_ms: int  # wall clock, of the last change
    client_version: Natural = 0  # 2: the producer's epoch grows with every transaction (KIP-890)


def pending_offsets_collection(shard: int) -> str:
    """Return the collection that lists the pending offset commits of a shard of groups."""
    return f"{PENDING_OFFSETS_COLLECTION_PREFIX}{shard}"


def group_of_pending(key: ItemKey) -> str:
    """Return the group id in the key of a pending offsets item."""
    return key.key.partition("/")[2]


@key_form
def pending_offsets_key(shard: int, producer_id: int, group_id: str) -> ItemKey:
    """Return the key of a group's offsets in a producer's transaction."""
    return ItemKey(pending_offsets_collection(shard), f"{producer_id:020d}/{group_id}")


def _write_pending(record: PendingOffsets) -> JsonValue:
    """Return rows of topic, id, and rows of partition and offset."""
    return [
        [
            topic,
            str(topic_id),
            [
                [p, o.offset, o.leader_epoch, o.metadata, o.committed_ms]
                for p, o in sorted(partitions.items())
            ],
        ]
        for (topic, topic_id), partitions in sorted(record.offsets.items())
    ]


def _read_pending(
    rows: Any, _: Mapping[str, Any]
) -> dict[tuple[str, UUID], dict[int, CommittedOffset]]:
    return {
        (topic, UUID(topic_id)): {
            partition: CommittedOffset(*offset)
            for partition, *offset in typed_rows(offsets, int, int, int, str, int)
        }
        for topic, topic_id, offsets in typed_rows(rows, str, str, list)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsets(Record):
    """The offsets that a group commits if a producer's open transaction commits."""

    KEY = pending_offsets_key

    shard: InKey[int]
    group_id: InKey[str]
    producer_id: InKey[int]
    producer_epoch: Natural
    # By topic and its id, by partition.
    offsets: Annotated[
        OffsetsByTopic,
        Stored(_read_pending, _write_pending),
    ]


@key_form
def pending_offsets_claim_key(shard: int) -> ItemKey:
    """Return the key of the claim on a shard's pending offsets."""
    return ItemKey(PENDING_OFFSETS_CLAIM_COLLECTION, f"{shard:010d}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsetsClaim(Record):
    """The right to write a shard's pending offsets: its last writer is the coordinator."""

    KEY = pending_offsets_claim_key

    shard: InKey[int]
    broker_id: Natural
    leader_epoch: OrMinusOne
