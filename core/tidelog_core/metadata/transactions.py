"""The records of transactions: one item a transactional id, one an offset commit that is pending.

``transaction:<shard>`` / ``<transactional id>`` holds how far the id's transaction is. The
shard is the partition of ``__transaction_state`` whose leader coordinates it, found as the
shard of a group is. Source: ``TransactionStateManager.partitionFor`` of Kafka.

``pending-offsets:<shard>`` / ``<producer id, 20 digits>/<group id>`` holds the offsets that
a group commits with a producer's transaction, from TxnOffsetCommit to the transaction's
end; the shard is the group's. ``pending-offsets-claim`` / ``<shard>`` is written by each
coordinator of the shard before it looks at those items, and every write of them is
conditional on it: what a coordinator of before still has under way fails.

None of these is logged: only their coordinators read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from tidelog_core.metadata.body import BodyReader
from tidelog_core.metadata.groups import CommittedOffset, shard_of_group
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey, JsonValue
from tidelog_core.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

TRANSACTION_COLLECTION_PREFIX = "transaction:"
PENDING_OFFSETS_COLLECTION_PREFIX = "pending-offsets:"
PENDING_OFFSETS_CLAIM_COLLECTION = "pending-offsets-claim"

shard_of_transaction = shard_of_group  # Kafka hashes both alike


class TransactionState(Enum):
    """How far a transaction is. The values are Kafka's names, as clients see them."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A transactional id and its current or last transaction.

    ``producer_epoch`` is the one that the producer may write with. With transaction
    version 2 the end of a transaction raises it, so that the epoch of a prepared
    transaction is already that of its markers. Source: KIP-98, KIP-360, KIP-890.
    """

    shard: int
    transactional_id: str
    producer_id: int
    producer_epoch: int  # -1 until the first InitProducerId has ended
    previous_producer_id: int = NO_PRODUCER_ID  # before the last change of id
    next_producer_id: int = NO_PRODUCER_ID  # taken over once the transaction has ended
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # the one before, if its producer still counts
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP  # wall clock, of the current or last transaction
    updated_ms: int  # wall clock, of the last change
    client_version: int = 0  # 2: the producer's epoch grows with every transaction (KIP-890)
    version: int = field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return ItemKey(transaction_collection(self.shard), self.transactional_id)

    def to_body(self) -> Body:
        """Return the item's body."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, []).append(partition)
        return {
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "previous_producer_id": self.previous_producer_id,
            "next_producer_id": self.next_producer_id,
            "last_producer_epoch": self.last_producer_epoch,
            "timeout_ms": self.timeout_ms,
            "state": self.state.value,
            "partitions": [[topic, indexes] for topic, indexes in topics.items()],
            "started_ms": self.started_ms,
            "updated_ms": self.updated_ms,
            "client_version": self.client_version,
        }

    @classmethod
    def from_item(cls, item: Item) -> TransactionRecord:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        state = fields.text("state")
        if state not in _STATES:
            raise fields.error(f"{state!r} is no state of a transaction")
        partitions: list[TopicPartition] = []
        for row in fields.sequence("partitions"):
            partitions += _topic_row(row, fields)
        record = cls(
            shard=int(item.id.collection.removeprefix(TRANSACTION_COLLECTION_PREFIX)),
            transactional_id=item.id.key,
            producer_id=fields.integer("producer_id", at_least=0),
            producer_epoch=fields.integer("producer_epoch", at_least=-1),
            previous_producer_id=fields.integer("previous_producer_id", at_least=-1),
            next_producer_id=fields.integer("next_producer_id", at_least=-1),
            last_producer_epoch=fields.integer("last_producer_epoch", at_least=-1),
            timeout_ms=fields.integer("timeout_ms", at_least=0),
            state=_STATES[state],
            partitions=frozenset(partitions),
            started_ms=fields.integer("started_ms", at_least=-1),
            updated_ms=fields.integer("updated_ms"),
            client_version=fields.integer("client_version", at_least=0),
            version=item.version,
        )
        fields.finish()
        return record


_STATES: Mapping[str, TransactionState] = {state.value: state for state in TransactionState}


def _topic_row(row: JsonValue, fields: BodyReader) -> list[TopicPartition]:
    match row:
        case [str(topic), [*indexes]] if all(type(index) is int for index in indexes):
            return [TopicPartition(topic, int(index)) for index in indexes]  # type: ignore[arg-type]
        case _:
            raise fields.error(f"{row!r} is not a topic and its partitions")


def pending_offsets_collection(shard: int) -> str:
    """Return the collection that lists the pending offset commits of a shard of groups."""
    return f"{PENDING_OFFSETS_COLLECTION_PREFIX}{shard}"


def group_of_pending(key: ItemKey) -> str:
    """Return the group that the item of pending offsets is of; none's where it is another's."""
    return key.key.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsets:
    """What a group commits if a producer's open transaction does."""

    shard: int
    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: Mapping[tuple[str, UUID], Mapping[int, CommittedOffset]]  # by topic, by partition
    version: int = field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        collection = pending_offsets_collection(self.shard)
        return ItemKey(collection, f"{self.producer_id:020d}/{self.group_id}")

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "producer_epoch": self.producer_epoch,
            "offsets": [
                [
                    topic,
                    str(topic_id),
                    [
                        [p, o.offset, o.leader_epoch, o.metadata, o.committed_ms]
                        for p, o in sorted(partitions.items())
                    ],
                ]
                for (topic, topic_id), partitions in sorted(self.offsets.items())
            ],
        }

    @classmethod
    def from_item(cls, item: Item) -> PendingOffsets:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        producer_id, _, group_id = item.id.key.partition("/")
        if not producer_id.isdecimal() or not group_id:
            raise fields.error("the key is not a producer id and a group")
        record = cls(
            shard=int(item.id.collection.removeprefix(PENDING_OFFSETS_COLLECTION_PREFIX)),
            group_id=group_id,
            producer_id=int(producer_id),
            producer_epoch=fields.integer("producer_epoch", at_least=0),
            offsets=dict(_pending_topic(row, fields) for row in fields.sequence("offsets")),
            version=item.version,
        )
        fields.finish()
        return record


def _pending_topic(
    row: JsonValue, fields: BodyReader
) -> tuple[tuple[str, UUID], dict[int, CommittedOffset]]:
    match row:
        case [str(topic), str(topic_id), [*rows]]:
            partitions = dict(_pending_partition(some, fields) for some in rows)
            try:
                return (topic, UUID(topic_id)), partitions
            except ValueError:
                raise fields.error(f"{topic_id!r} is not a topic's id") from None
        case _:
            raise fields.error(f"{row!r} is not a topic with pending offsets")


def _pending_partition(row: JsonValue, fields: BodyReader) -> tuple[int, CommittedOffset]:
    match row:
        case [
            int(partition),
            int(offset),
            int(leader_epoch),
            str(metadata),
            int(committed_ms),
        ]:
            return partition, CommittedOffset(offset, leader_epoch, metadata, committed_ms)
        case _:
            raise fields.error(f"{row!r} is not a pending offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsetsClaim:
    """Which coordinator may write a shard's pending offsets: whoever wrote this item last."""

    shard: int
    broker_id: int
    leader_epoch: int
    version: int = field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return pending_offsets_claim_key(self.shard)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {"broker_id": self.broker_id, "leader_epoch": self.leader_epoch}


def pending_offsets_claim_key(shard: int) -> ItemKey:
    """Return where the claim on a shard's pending offsets lies."""
    return ItemKey(PENDING_OFFSETS_CLAIM_COLLECTION, f"{shard:010d}")
