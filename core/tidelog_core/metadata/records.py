"""The records of the cluster itself: brokers, topics, partitions, segments, and work on them.

``items`` lists all records, with their keys, writers and readers.

A topic exists when its ``topic`` item exists. Partition items under another topic id, or above
the topic's partition count, are not part of the cluster yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Annotated
from uuid import UUID

from tidelog_core.metadata.endpoints import (
    PLAINTEXT,
    BrokerEndpoint,
    plaintext_endpoints,
    read_endpoints,
)
from tidelog_core.metadata.epoch_chains import (
    EpochChains,
    cut_tiered,
    read_epoch_chains,
    write_epoch_chains,
)
from tidelog_core.metadata.fields import Natural, Omitted, OrMinusOne, Positive, Stored
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import Body, Check, ItemKey, JsonValue, Write
from tidelog_core.model import NO_TIMESTAMP

CLUSTER_COLLECTION = "cluster"
BROKER_COLLECTION = "broker"
BROKER_LEASE_COLLECTION = "broker-lease"
NODE_CONFIG_COLLECTION = "node-config"
TOPIC_COLLECTION = "topic"
PARTITION_COLLECTION_PREFIX = "partition:"
SEGMENT_COLLECTION_PREFIX = "segment:"
DELETED_TOPIC_COLLECTION = "deleted-topic"
CHAIN_TOMBSTONE_COLLECTION = "chain-tombstone"
FUNCTION_PROGRESS_COLLECTION = "function-progress"
# The stored name is older than the constant's: existing items stay readable.
SCRUB_ORPHANS_COLLECTION = "scrub-sighting"
RESTORATION_COLLECTION = "restoration"
KNOWN_OBJECT_STORE_COLLECTION = "object-store"
JOB_START_COLLECTION = "job-start"
EVERY_NODE = "default"
NUMBER_DIGITS = 10  # of a broker or a partition in a key
PRODUCER_ID_COUNTER = ItemKey("producer-id", "next")  # the end of the last block given out


def put(record: Record, *, is_logged: bool = True) -> Write:
    """Return the write that stores the record if its item has not changed since it was read."""
    return Write(record.item_id, record.to_body(), record.version, is_logged)


def delete(record: Record, *, is_logged: bool = True) -> Write:
    """Return the write that removes the record's item if it has not changed since it was read."""
    return Write(record.item_id, None, record.version, is_logged)


def check(record: Record) -> Check:
    """Return the condition that the record's item has not changed since it was read."""
    return Check(record.item_id, record.version)


def parse_id(text: str) -> UUID | None:
    """Return the topic id that a part of a key is, ``None`` for other text."""
    try:
        return UUID(text)
    except ValueError:
        return None


def parse_number(key: str) -> int | None:
    """Return the number that the key of a broker or a partition is, ``None`` for another key."""
    is_number = len(key) == NUMBER_DIGITS and key.isascii() and key.isdigit()
    return int(key) if is_number else None


@key_form
def cluster_key() -> ItemKey:
    """Return the key of the cluster's own item."""
    return ItemKey(CLUSTER_COLLECTION, CLUSTER_COLLECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Record):
    """The cluster itself. Written once, by the first node that starts."""

    KEY = cluster_key

    cluster_id: str


@key_form
def broker_key(broker_id: int) -> ItemKey:
    """Return the key of a broker's registration."""
    return ItemKey(BROKER_COLLECTION, f"{broker_id:010d}")


def _write_endpoints(broker: Broker) -> JsonValue:
    return [{"listener": e.listener, "host": e.host, "port": e.port} for e in broker.endpoints]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker(Record):
    """A node that has registered, and where clients reach it."""

    KEY = broker_key

    broker_id: Natural
    incarnation: UUID  # another one with every start of the process
    # At least one, each of another listener.
    endpoints: Annotated[tuple[BrokerEndpoint, ...], Stored(read_endpoints, _write_endpoints)]
    rack: str | None = None
    # Base64 of the certificate (DER) with which the process identifies itself to other nodes.
    certificate: Omitted[str] = ""

    @property
    def endpoint(self) -> BrokerEndpoint:
        """The first endpoint: where operators reach the broker."""
        return self.endpoints[0]

    def endpoint_of(self, listener: str) -> BrokerEndpoint | None:
        """Return the broker's endpoint for a listener; ``None`` if it has no such listener."""
        return next((e for e in self.endpoints if e.listener == listener), None)

    def to_body(self) -> Body:
        """Return the item's body in the form that ``endpoints`` describes."""
        body = dict(Record.to_body(self))
        host, port = self.endpoint.host, self.endpoint.port
        if self.endpoints != plaintext_endpoints(host, port):
            return body
        del body["endpoints"]
        rack = body.pop("rack")
        return {**body, "host": host, "port": port, "rack": rack}

    @classmethod
    def renewed(cls, body: Body) -> Body:
        """Return the body with ``endpoints`` instead of ``host`` and ``port``."""
        if "endpoints" in body or not body.keys() & {"host", "port"}:
            return body
        others = dict(body)
        for name in ("host", "port"):
            if name not in body:
                raise ValueError(f"{name} is missing")
        endpoint = {"listener": PLAINTEXT, "host": others.pop("host"), "port": others.pop("port")}
        return {**others, "endpoints": [endpoint]}


class StepDownReason(StrEnum):
    """A broker's reason for asking others to lead its partitions."""

    DISK = "disk"  # its disk takes no records: its follower replicas fall behind too
    DRAINING = "draining"  # it stops soon, and follows until then
    STORE = "store"  # it cannot write the object store: it can acknowledge nothing diskless


@key_form
def broker_lease_key(broker_id: int) -> ItemKey:
    """Return the key of a broker's lease."""
    return ItemKey(BROKER_LEASE_COLLECTION, f"{broker_id:010d}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLease(Record):
    """A broker's lease. The broker counts as alive while the counter grows."""

    KEY = broker_lease_key

    broker_id: Natural
    incarnation: UUID
    counter: Natural
    step_down_reason: Omitted[StepDownReason | None] = None  # None: it may lead
    # The broker's wall clock when it wrote this; NO_TIMESTAMP from older nodes. No lease is
    # measured by it: other nodes compare it with their clocks.
    wall_ms: Omitted[Natural] = NO_TIMESTAMP

    @classmethod
    def renewed(cls, body: Body) -> Body:
        """Return the body with a reason in place of the flag of before there were reasons.

        The flag was mostly for the disk.
        """
        if "is_unfit" not in body:
            return body
        others = {name: value for name, value in body.items() if name != "is_unfit"}
        match body["is_unfit"]:
            case False:
                return others
            case True:
                return {"step_down_reason": StepDownReason.DISK.value, **others}
        raise ValueError(f"is_unfit must be true or false, not {body['is_unfit']!r}")


@key_form
def node_config_key(broker_id: int | None) -> ItemKey:
    """Return the key of a broker's changed settings, or with ``None`` of every broker's."""
    key = EVERY_NODE if broker_id is None else f"{broker_id:010d}"
    return ItemKey(NODE_CONFIG_COLLECTION, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfigOverrides(Record):
    """Node settings changed while running: of one broker, or of every broker."""

    KEY = node_config_key

    broker_id: Natural | None  # None: every broker that has no override of its own
    configs: Mapping[str, str]


@key_form
def topic_key(name: str) -> ItemKey:
    """Return the key of a topic."""
    return ItemKey(TOPIC_COLLECTION, f"{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(Record):
    """A topic, without its partitions."""

    KEY = topic_key

    name: str
    topic_id: UUID
    partition_count: Positive
    configs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # overrides only
    is_internal: bool = False
    created_ms: int = 0  # Unix time


def partition_collection(topic_id: UUID) -> str:
    """Return the collection of a topic's partitions."""
    return f"{PARTITION_COLLECTION_PREFIX}{topic_id}"


@key_form
def partition_key(topic_id: UUID, partition: int) -> ItemKey:
    """Return the key of a partition."""
    return ItemKey(partition_collection(topic_id), f"{partition:010d}")


class AckedBy(StrEnum):
    """The copies that a leader's acknowledgement waits for: replicas, or the chain."""

    CHAIN = "chain"  # the object store: the partition is diskless
    REPLICAS = "replicas"  # the ISR, though chains may still have records that the tier lacks


def _write_wal(partition: Partition) -> JsonValue:
    return write_epoch_chains(partition.wal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Record):
    """A partition's replicas, leader, ISR and log start offset."""

    KEY = partition_key

    topic_id: UUID
    partition: Natural
    replicas: tuple[int, ...]  # in order of preference; the first is the preferred leader
    leader: OrMinusOne  # NO_LEADER: offline
    leader_epoch: Natural  # grows with every change of leader, never otherwise
    isr: tuple[int, ...]  # a subset of replicas
    log_start_offset: Natural = 0  # local and tiered together; never goes back
    adding: tuple[int, ...] = ()  # replicas that a reassignment brings in
    removing: tuple[int, ...] = ()  # replicas that it takes out
    # The log's start after a restoration from a bucket without readable older records. These are
    # not known to be deleted, so the bucket does not get this log start. 0: none.
    restored_log_start: Omitted[Natural] = 0
    # Of a diskless partition: the chains of its leader epochs. Epochs that the tier has are left
    # out (``cut_history``). Empty: no leader has appended yet. A partition that was diskless keeps
    # them until the tier has their records.
    wal: Annotated[Omitted[EpochChains], Stored(read_epoch_chains, _write_wal)] = ()
    # None: the chain if ``wal`` has one, else the replicas. The topic's setting is what it is to
    # become (``diskless.enable``).
    acked_by: Omitted[AckedBy | None] = None

    @property
    def is_diskless(self) -> bool:
        """Whether the object store acknowledges the records that are appended now."""
        if self.acked_by is None:
            return bool(self.wal)
        return self.acked_by is AckedBy.CHAIN

    @property
    def readable_wal(self) -> EpochChains:
        """The chains that may have records at or above the log start, and the current one.

        Those before them say to an heir who has written deleted records. Nobody else needs them.
        """
        return cut_tiered(self.wal, self.log_start_offset)

    @property
    def awaits_first_leader(self) -> bool:
        """Whether it is diskless, and its first leader has not entered a chain yet.

        That leader begins the next leader epoch. So a client that learned the present one would be
        fenced with its first request, and nobody takes records before.
        """
        return self.is_diskless and not self.wal


class SegmentState(Enum):
    """The state of a tiered segment. Only ``COPY_FINISHED`` segments are read."""

    COPY_STARTED = "copy-started"
    COPY_FINISHED = "copy-finished"
    DELETE_STARTED = "delete-started"


def segment_collection(topic_id: UUID, partition: int) -> str:
    """Return the collection of a partition's tiered segments."""
    return f"{SEGMENT_COLLECTION_PREFIX}{topic_id}:{partition}"


def segment_key_from(offset: int) -> str:
    """Return the key in a segment collection from which on the segments begin at or above it."""
    return f"{offset:020d}"


@key_form
def segment_key(topic_id: UUID, partition: int, base_offset: int, segment_id: UUID) -> ItemKey:
    """Return the key of a tiered segment."""
    key = f"{segment_key_from(base_offset)}-{segment_id}"
    return ItemKey(segment_collection(topic_id, partition), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMeta(Record):
    """A sealed segment in the object store, ``[base_offset, end_offset)``."""

    KEY = segment_key

    topic_id: UUID
    partition: Natural
    base_offset: Natural
    end_offset: Natural
    leader_epoch: Natural  # of the leader that copied it
    segment_id: UUID  # another one with every attempt to copy or to rewrite
    state: SegmentState
    size_bytes: Natural
    index_size_bytes: Natural
    max_timestamp_ms: int
    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, its first offset), ascending
    chained_hash: str  # hex; of the partition up to and including this segment
    created_ms: int
    # Unix time from which its objects may be deleted; DELETE_STARTED only. 0: immediately.
    deletable_ms: Omitted[Natural] = 0
    # The epoch of the claim under which a rewrite wrote it; 0: a copy of the local segment.
    rewrite_epoch: Omitted[Natural] = 0
    # Below this offset no key has an older record. 0: not compacted.
    compacted_up_to: Omitted[Natural] = 0


@key_form
def deleted_topic_key(topic_id: UUID) -> ItemKey:
    """Return the key of a deleted topic's tombstone."""
    return ItemKey(DELETED_TOPIC_COLLECTION, f"{topic_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic(Record):
    """A deleted topic whose logs and objects may still exist."""

    KEY = deleted_topic_key

    topic_id: UUID
    name: str
    partition_count: Positive
    deleted_ms: int  # Unix time
    # Read and never written: some programs have stored here what ``ChainTombstone`` says.
    was_diskless: Omitted[bool] = False
    is_cleaned: Omitted[bool] = False


@key_form
def chain_tombstone_key(topic_id: UUID) -> ItemKey:
    """Return the key of the mark on a deleted topic's tombstone that chains may need it."""
    return ItemKey(CHAIN_TOMBSTONE_COLLECTION, f"{topic_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTombstone(Record):
    """Keeps the tombstone of a topic that was diskless for some time after its clean-up.

    Chains may have objects with its records, and without the tombstone nobody knows that they are
    for nobody. It is an item of its own, so that older programs can read the tombstone: they remove
    it with the topic's remains, and the mark is left.
    """

    KEY = chain_tombstone_key

    topic_id: UUID
    is_cleaned: Omitted[bool] = False  # its items, and its objects but those of chains, are gone


@key_form
def function_progress_key(function: str) -> ItemKey:
    """Return the key of a function's progress."""
    return ItemKey(FUNCTION_PROGRESS_COLLECTION, f"{function}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionProgress(Record):
    """The position from which a function continues a pass that its time limit ended."""

    KEY = function_progress_key

    function: str
    resumes_after: str  # the last key that is done, in the function's own order; empty: none


@key_form
def scrub_orphans_key(prefix: str) -> ItemKey:
    """Return the key of the orphans under a prefix."""
    return ItemKey(SCRUB_ORPHANS_COLLECTION, f"{prefix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOrphans(Record):
    """The times at which the scrub first saw objects that are no longer needed."""

    KEY = scrub_orphans_key

    prefix: str  # of a partition's or chain's objects, slash included, or one object's key
    # Unix time, by the key without the prefix. Of a chain: ``unneeded``, and when it was ``read``.
    first_seen_ms: Mapping[str, int]


@key_form
def restoration_key() -> ItemKey:
    """Return the key of the mark that a restoration is under way."""
    return ItemKey(RESTORATION_COLLECTION, RESTORATION_COLLECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorationMark(Record):
    """The mark that the store is being filled from a bucket; removed when that is complete."""

    KEY = restoration_key

    cluster_id: str


@key_form
def known_object_store_key() -> ItemKey:
    """Return the key of the item that names the cluster's object store."""
    return ItemKey(KNOWN_OBJECT_STORE_COLLECTION, KNOWN_OBJECT_STORE_COLLECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownObjectStore(Record):
    """The object store that the cluster uses; ``tier.store_identity`` recognizes it."""

    KEY = known_object_store_key

    store_id: str  # a UUID; that of the object ``store_identity_key``


@key_form
def job_start_key(job: str) -> ItemKey:
    """Return the key of a job's last start."""
    return ItemKey(JOB_START_COLLECTION, f"{job}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart(Record):
    """The invocation that wanted to start a job last."""

    KEY = job_start_key

    job: str
    token: str
    claimed_ms: Natural  # Unix time; 0: given back
