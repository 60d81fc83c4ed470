"""The values that the metadata store keeps, and where each lies.

    collection                      key                             value
    cluster                         cluster                         Cluster
    broker                          <broker id, 10 digits>          Broker
    broker-lease                    <broker id, 10 digits>          BrokerLease, never logged
    node-config                     default | <broker id, 10>       NodeConfigOverrides
    group-config                    <group id>                      GroupConfigOverrides
    topic                           <name>                          Topic
    partition:<topic id>            <partition, 10 digits>          Partition
    segment:<topic id>:<partition>  <base offset, 20>-<segment id>  SegmentMeta
    deleted-topic                   <topic id>                      DeletedTopic
    function-progress               <function>                      FunctionProgress, never logged
    local-erasure                   <topic id>:<partition, 10>      LocalErasure
    key-erasure                     <topic id>:<partition, 10>:<SHA-256>  KeyErasure
    rewrite-claim                   <topic id>:<partition, 10>      RewriteClaim
    scrub-sighting                  <key or prefix in the bucket>   ScrubOrphans, never logged
    producer-id                     next                            a counter, never logged
    transaction:<shard>             <transactional id>              TransactionRecord, never logged
    group:<shard>                   <group id>                      GroupRecord, logged by admins
    member:<shard>                  <group id>/<page, 6 digits>     MemberPage, never logged
    offset:<group id>               <topic>/<page, 6 digits>        GroupOffsets, never logged
    pending-offsets:<shard>         <producer id, 20>/<group id>    PendingOffsets, never logged
    pending-offsets-claim           <shard, 10 digits>              PendingOffsetsClaim, not logged
    restoration                     restoration                     RestorationMark, never logged

A topic is there when its ``topic`` item is: partition items under a topic id that no
topic item names, or past the topic's partition count, are not part of the cluster yet.

``version`` of a record is the version its item was read at, ``ABSENT`` for one that
was never stored. It takes no part in equality, and ``put`` and ``delete`` expect it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Protocol
from uuid import UUID

from tidelog_core.metadata.body import BodyReader
from tidelog_core.metadata.endpoints import BrokerEndpoint, read_endpoints, write_endpoints
from tidelog_core.metadata.store import ABSENT, Body, Check, Item, ItemKey, JsonValue, Write
from tidelog_core.model import NO_LEADER, NO_TIMESTAMP

CLUSTER_COLLECTION = "cluster"
BROKER_COLLECTION = "broker"
BROKER_LEASE_COLLECTION = "broker-lease"
NODE_CONFIG_COLLECTION = "node-config"
TOPIC_COLLECTION = "topic"
PARTITION_COLLECTION_PREFIX = "partition:"
SEGMENT_COLLECTION_PREFIX = "segment:"
DELETED_TOPIC_COLLECTION = "deleted-topic"
FUNCTION_PROGRESS_COLLECTION = "function-progress"
# The stored name is older than the record's: what is stored under it stays readable.
SCRUB_ORPHANS_COLLECTION = "scrub-sighting"
RESTORATION_COLLECTION = "restoration"
EVERY_NODE = "default"
NUMBER_DIGITS = 10  # of a broker or a partition in a key
PRODUCER_ID_COUNTER = ItemKey("producer-id", "next")  # the end of the last block given out


class Record(Protocol):
    """What every record here can say of its item."""

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""

    @property
    def version(self) -> int:
        """The version the item was read at; ``ABSENT`` where it was never stored."""

    def to_body(self) -> Body:
        """Return the item's body."""


def put(record: Record, *, is_logged: bool = True) -> Write:
    """Return the write that stores the record if its item is still as it was read."""
    return Write(record.item_id, record.to_body(), record.version, is_logged)


def delete(record: Record, *, is_logged: bool = True) -> Write:
    """Return the write that removes the record's item if it is still as it was read."""
    return Write(record.item_id, None, record.version, is_logged)


def check(record: Record) -> Check:
    """Return the condition that the record's item is still as it was read."""
    return Check(record.item_id, record.version)


def _version() -> Any:
    return dataclasses.field(default=ABSENT, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster itself. Written once, by the first node that starts."""

    cluster_id: str
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return cluster_key()

    def to_body(self) -> Body:
        """Return the item's body."""
        return {"cluster_id": self.cluster_id}

    @classmethod
    def from_item(cls, item: Item) -> Cluster:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(cluster_id=fields.text("cluster_id"), version=item.version)
        fields.finish()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A node that has registered, and where clients reach it."""

    broker_id: int
    incarnation: UUID  # another one with every start of the process
    endpoints: tuple[BrokerEndpoint, ...]  # at least one, each of another listener
    rack: str | None = None
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return broker_key(self.broker_id)

    @property
    def endpoint(self) -> BrokerEndpoint:
        """The first endpoint: where nodes and operators reach the broker."""
        return self.endpoints[0]

    def endpoint_of(self, listener: str) -> BrokerEndpoint | None:
        """Return where clients of a listener reach the broker; ``None`` if it has no such one."""
        return next((e for e in self.endpoints if e.listener == listener), None)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "broker_id": self.broker_id,
            "incarnation": str(self.incarnation),
            **write_endpoints(self.endpoints),
            "rack": self.rack,
        }

    @classmethod
    def from_item(cls, item: Item) -> Broker:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            broker_id=fields.integer("broker_id", at_least=0),
            incarnation=fields.uuid("incarnation"),
            endpoints=read_endpoints(fields),
            rack=fields.text_or_none("rack"),
            version=item.version,
        )
        fields.finish()
        return record


class StepDownReason(StrEnum):
    """Why a broker asks others to lead in its place while they can."""

    DISK = "disk"  # its disk takes no records: what it follows falls behind as well
    DRAINING = "draining"  # it stops soon, and follows until then


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLease:
    """A broker's sign of life: it is alive as long as others see the counter move."""

    broker_id: int
    incarnation: UUID
    counter: int
    step_down_reason: StepDownReason | None = None  # None: it leads like any other
    # What the broker's clock said when it wrote this; NO_TIMESTAMP before nodes told. No lease
    # is measured by it: others see by it when a clock is wrong.
    wall_ms: int = NO_TIMESTAMP
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return broker_lease_key(self.broker_id)

    def to_body(self) -> Body:
        """Return the item's body."""
        body: dict[str, JsonValue] = {
            "broker_id": self.broker_id,
            "incarnation": str(self.incarnation),
            "counter": self.counter,
        }
        # A program from before a field cannot read a lease that has it, and goes by its moving.
        if self.step_down_reason is not None:
            body["step_down_reason"] = self.step_down_reason.value
        if self.wall_ms != NO_TIMESTAMP:
            body["wall_ms"] = self.wall_ms
        return body

    @classmethod
    def from_item(cls, item: Item) -> BrokerLease:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            broker_id=fields.integer("broker_id", at_least=0),
            incarnation=fields.uuid("incarnation"),
            counter=fields.integer("counter", at_least=0),
            step_down_reason=_step_down_reason(fields),
            wall_ms=fields.integer_or_absent("wall_ms", absent=NO_TIMESTAMP, at_least=0),
            version=item.version,
        )
        fields.finish()
        return record


def _step_down_reason(fields: BodyReader) -> StepDownReason | None:
    """Return the reason; leases of before there were reasons have a flag, mostly for the disk."""
    text = fields.text_or_absent("step_down_reason", absent="")
    is_unfit = fields.boolean_or_absent("is_unfit", absent=False)
    if not text:
        return StepDownReason.DISK if is_unfit else None
    try:
        return StepDownReason(text)
    except ValueError:
        raise fields.error(f"step_down_reason is {text!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfigOverrides:
    """Node settings changed while running: of one broker, or of every broker."""

    broker_id: int | None  # None: every broker that has no override of its own
    configs: Mapping[str, str]
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return node_config_key(self.broker_id)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {"broker_id": self.broker_id, "configs": dict(self.configs)}

    @classmethod
    def from_item(cls, item: Item) -> NodeConfigOverrides:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            broker_id=fields.integer_or_none("broker_id", at_least=0),
            configs=fields.texts("configs"),
            version=item.version,
        )
        fields.finish()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic, without its partitions."""

    name: str
    topic_id: UUID
    partition_count: int
    configs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # overrides only
    is_internal: bool = False
    created_ms: int = 0  # Unix time
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return topic_key(self.name)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "name": self.name,
            "topic_id": str(self.topic_id),
            "partition_count": self.partition_count,
            "configs": dict(self.configs),
            "is_internal": self.is_internal,
            "created_ms": self.created_ms,
        }

    @classmethod
    def from_item(cls, item: Item) -> Topic:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            name=fields.text("name"),
            topic_id=fields.uuid("topic_id"),
            partition_count=fields.integer("partition_count", at_least=1),
            configs=fields.texts("configs"),
            is_internal=fields.boolean("is_internal"),
            created_ms=fields.integer("created_ms"),
            version=item.version,
        )
        fields.finish()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Who holds a partition, who leads it, and where its log starts."""

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]  # in order of preference; the first is the preferred leader
    leader: int  # NO_LEADER while nobody leads
    leader_epoch: int  # grows with every change of leader, never otherwise
    isr: tuple[int, ...]  # a subset of replicas
    log_start_offset: int = 0  # local and tiered together; never goes back
    adding: tuple[int, ...] = ()  # replicas that a reassignment brings in
    removing: tuple[int, ...] = ()  # replicas that it takes out
    # Where a restoration began the log though nobody is known to have deleted what lies before:
    # it could not be read. The bucket does not get it, so that it can be put back. 0: nowhere.
    restored_log_start: int = 0
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return partition_key(self.topic_id, self.partition)

    def to_body(self) -> Body:
        """Return the item's body; without ``restored_log_start`` where it is 0, as before."""
        body: dict[str, JsonValue] = {
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "replicas": list(self.replicas),
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
            "log_start_offset": self.log_start_offset,
            "adding": list(self.adding),
            "removing": list(self.removing),
        }
        if self.restored_log_start:
            body["restored_log_start"] = self.restored_log_start
        return body

    @classmethod
    def from_item(cls, item: Item) -> Partition:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            topic_id=fields.uuid("topic_id"),
            partition=fields.integer("partition", at_least=0),
            replicas=fields.integers("replicas"),
            leader=fields.integer("leader", at_least=NO_LEADER),
            leader_epoch=fields.integer("leader_epoch", at_least=0),
            isr=fields.integers("isr"),
            log_start_offset=fields.integer("log_start_offset", at_least=0),
            adding=fields.integers("adding"),
            removing=fields.integers("removing"),
            restored_log_start=fields.integer_or_absent("restored_log_start", absent=0, at_least=0),
            version=item.version,
        )
        fields.finish()
        if record.item_id != item.id:
            raise fields.error(f"holds another partition: {record.item_id.key}")
        return record


class SegmentState(Enum):
    """How far a tiered segment is. Only ``COPY_FINISHED`` segments are read."""

    COPY_STARTED = "copy-started"
    COPY_FINISHED = "copy-finished"
    DELETE_STARTED = "delete-started"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMeta:
    """A sealed segment in the object store, ``[base_offset, end_offset)``."""

    topic_id: UUID
    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int  # of the leader that copied it
    segment_id: UUID  # another one with every attempt to copy or to rewrite
    state: SegmentState
    size_bytes: int
    index_size_bytes: int
    max_timestamp_ms: int
    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, its first offset), ascending
    chained_hash: str  # hex; of the partition up to and including this segment
    created_ms: int
    # Unix time from which its objects may go; DELETE_STARTED only. 0: at once.
    deletable_ms: int = 0
    # Of the claim that wrote it in place of others; 0: its bytes are those that were copied.
    rewrite_epoch: int = 0
    # It has no record with a newer one of its key below this offset. 0: nobody has looked.
    compacted_up_to: int = 0
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        key = _segment_key(self.base_offset, self.segment_id)
        return ItemKey(segment_collection(self.topic_id, self.partition), key)

    def to_body(self) -> Body:
        """Return the item's body; what came later than the first clusters only where it is set."""
        body: dict[str, JsonValue] = {
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "base_offset": self.base_offset,
            "end_offset": self.end_offset,
            "leader_epoch": self.leader_epoch,
            "segment_id": str(self.segment_id),
            "state": self.state.value,
            "size_bytes": self.size_bytes,
            "index_size_bytes": self.index_size_bytes,
            "max_timestamp_ms": self.max_timestamp_ms,
            "leader_epochs": [list(pair) for pair in self.leader_epochs],
            "chained_hash": self.chained_hash,
            "created_ms": self.created_ms,
        }
        for field in ("deletable_ms", "rewrite_epoch", "compacted_up_to"):
            value: int = getattr(self, field)
            if value:
                body[field] = value
        return body

    @classmethod
    def from_item(cls, item: Item) -> SegmentMeta:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            topic_id=fields.uuid("topic_id"),
            partition=fields.integer("partition", at_least=0),
            base_offset=fields.integer("base_offset", at_least=0),
            end_offset=fields.integer("end_offset", at_least=0),
            leader_epoch=fields.integer("leader_epoch", at_least=0),
            segment_id=fields.uuid("segment_id"),
            state=_segment_state(fields),
            size_bytes=fields.integer("size_bytes", at_least=0),
            index_size_bytes=fields.integer("index_size_bytes", at_least=0),
            max_timestamp_ms=fields.integer("max_timestamp_ms"),
            leader_epochs=fields.integer_pairs("leader_epochs"),
            chained_hash=fields.text("chained_hash"),
            created_ms=fields.integer("created_ms"),
            deletable_ms=fields.integer_or_absent("deletable_ms", absent=0, at_least=0),
            rewrite_epoch=fields.integer_or_absent("rewrite_epoch", absent=0, at_least=0),
            compacted_up_to=fields.integer_or_absent("compacted_up_to", absent=0, at_least=0),
            version=item.version,
        )
        fields.finish()
        # As they are spelled, which is what they were read from: of many segments that is less.
        key = _segment_key(record.base_offset, str(item.body["segment_id"]))
        collection = segment_collection(str(item.body["topic_id"]), record.partition)
        if (item.id.collection, item.id.key) != (collection, key):
            raise fields.error(f"holds another segment: {record.item_id.key}")
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A topic that is gone for clients but whose logs and objects may still be there."""

    topic_id: UUID
    name: str
    partition_count: int
    deleted_ms: int  # Unix time
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return deleted_topic_key(self.topic_id)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {
            "topic_id": str(self.topic_id),
            "name": self.name,
            "partition_count": self.partition_count,
            "deleted_ms": self.deleted_ms,
        }

    @classmethod
    def from_item(cls, item: Item) -> DeletedTopic:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            topic_id=fields.uuid("topic_id"),
            name=fields.text("name"),
            partition_count=fields.integer("partition_count", at_least=1),
            deleted_ms=fields.integer("deleted_ms"),
            version=item.version,
        )
        fields.finish()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionProgress:
    """Where a function's next run goes on with the pass that its time limit cut short."""

    function: str
    resumes_after: str  # the last key that is done, in the function's own order; empty: none
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return function_progress_key(self.function)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {"function": self.function, "resumes_after": self.resumes_after}

    @classmethod
    def from_item(cls, item: Item) -> FunctionProgress:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            function=fields.text("function"),
            resumes_after=fields.text("resumes_after"),
            version=item.version,
        )
        fields.finish()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOrphans:
    """Since when the scrub has seen objects that nothing needs, and that wait to be old."""

    prefix: str  # of a partition's objects, slash included, or one object's key
    first_seen_ms: Mapping[str, int]  # Unix time, by what follows the prefix in the key
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return ItemKey(SCRUB_ORPHANS_COLLECTION, self.prefix)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {"prefix": self.prefix, "first_seen_ms": dict(self.first_seen_ms)}

    @classmethod
    def from_item(cls, item: Item) -> ScrubOrphans:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(
            prefix=fields.text("prefix"),
            first_seen_ms=fields.integers_by_name("first_seen_ms"),
            version=item.version,
        )
        fields.finish()
        if record.item_id != item.id:
            raise fields.error(f"holds orphans of another prefix: {record.item_id.key}")
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorationMark:
    """That the store is being filled from a bucket; gone once all of it is there."""

    cluster_id: str
    version: int = _version()

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return restoration_key()

    def to_body(self) -> Body:
        """Return the item's body."""
        return {"cluster_id": self.cluster_id}

    @classmethod
    def from_item(cls, item: Item) -> RestorationMark:
        """Return the record. Raises ``CorruptItem``."""
        fields = BodyReader(item)
        record = cls(cluster_id=fields.text("cluster_id"), version=item.version)
        fields.finish()
        return record


def cluster_key() -> ItemKey:
    """Return where the cluster's own item lies."""
    return ItemKey(CLUSTER_COLLECTION, CLUSTER_COLLECTION)


def broker_key(broker_id: int) -> ItemKey:
    """Return where a broker's registration lies."""
    return ItemKey(BROKER_COLLECTION, f"{broker_id:010d}")


def broker_lease_key(broker_id: int) -> ItemKey:
    """Return where a broker's lease lies."""
    return ItemKey(BROKER_LEASE_COLLECTION, f"{broker_id:010d}")


def node_config_key(broker_id: int | None) -> ItemKey:
    """Return where a broker's changed settings lie, or with ``None`` every broker's."""
    key = EVERY_NODE if broker_id is None else f"{broker_id:010d}"
    return ItemKey(NODE_CONFIG_COLLECTION, key)


def topic_key(name: str) -> ItemKey:
    """Return where a topic lies."""
    return ItemKey(TOPIC_COLLECTION, name)


def partition_collection(topic_id: UUID) -> str:
    """Return the collection of a topic's partitions."""
    return f"{PARTITION_COLLECTION_PREFIX}{topic_id}"


def partition_key(topic_id: UUID, partition: int) -> ItemKey:
    """Return where a partition lies."""
    return ItemKey(partition_collection(topic_id), f"{partition:010d}")


def segment_collection(topic_id: UUID | str, partition: int) -> str:
    """Return the collection of a partition's tiered segments."""
    return f"{SEGMENT_COLLECTION_PREFIX}{topic_id}:{partition}"


def segment_key_from(offset: int) -> str:
    """Return the key in a segment collection from which on the segments begin at or above it."""
    return f"{offset:020d}"


def _segment_key(base_offset: int, segment_id: UUID | str) -> str:
    return f"{segment_key_from(base_offset)}-{segment_id}"


def deleted_topic_key(topic_id: UUID) -> ItemKey:
    """Return where a deleted topic's tombstone lies."""
    return ItemKey(DELETED_TOPIC_COLLECTION, str(topic_id))


def function_progress_key(function: str) -> ItemKey:
    """Return where a function's progress lies."""
    return ItemKey(FUNCTION_PROGRESS_COLLECTION, function)


def restoration_key() -> ItemKey:
    """Return where it lies that a restoration is under way."""
    return ItemKey(RESTORATION_COLLECTION, RESTORATION_COLLECTION)


def _segment_state(fields: BodyReader) -> SegmentState:
    text = fields.text("state")
    try:
        return SegmentState(text)
    except ValueError:
        allowed = ", ".join(state.value for state in SegmentState)
        raise fields.error(f"state must be one of {allowed}, not {text!r}") from None
