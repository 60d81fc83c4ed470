"""The keys of the tier's objects in the object store.

    <cluster id>/cluster.json                                              cluster manifest
    <cluster id>/object-store.json                                         ``store_identity``
    <cluster id>/<topic>-<topic id>.deleted.json                           the topic was deleted
    <cluster id>/<topic>-<topic id>/topic.json                             topic manifest
    <cluster id>/<topic>-<topic id>/erasure-<erasure id>.json              receipt of an erasure
    <cluster id>/<topic>-<topic id>/erasure-<erasure id>.<number>.json     part of an unfinished one
    <cluster id>/<topic>-<topic id>/<partition>/log-start-<offset>.json    where the log starts
    <cluster id>/<topic>-<topic id>/<partition>/<segment>.log              a segment's bytes
    <cluster id>/<topic>-<topic id>/<partition>/<segment>.index            their description
    <cluster id>/schemas/<sequence>.json                                   entry of the registry
    <cluster id>/schemas/<sequence>.checkpoint.json                        the registry up to it
    <cluster id>/schemas/<sequence>.void.json                              the entry does not count
    <cluster id>/wal/…                                                     ``diskless.wal.keys``

``<segment>`` is the base offset (20 digits), the leader epoch of the leader that copied
it, and the segment's id. Every attempt has another id, so no two attempts share a key.
The deletion of a topic and a log start offset are carried by the key alone (20 digits too):
of several log starts the greatest counts, so it can never be taken back.
The sequence of an entry has 20 digits as well.
A topic's name is cut to 200 characters, so that the folder's name stays a valid file name;
the id tells topics apart, and the topic manifest has the whole name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import INT32_MAX, INT64_MAX

TOPIC_NAME_LENGTH_MAX = 200
UUID_LENGTH = 36
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
LOG_START_PREFIX = "log-start-"  # of a name below a partition's prefix

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# A cluster's or topic's name. Any that a store takes: other programs may write to the bucket.
_NAME = r"(?!\.{1,2}/)[A-Za-z0-9._-]+"
# No leading zeros, and no more digits than such a number can have.
_PARTITION, _EPOCH = r"0|[1-9][0-9]{0,4}", r"0|[1-9][0-9]{0,9}"
_SEGMENT_KEY = re.compile(
    rf"(?P<cluster>{_NAME})/(?P<topic>{_NAME})-(?P<topic_id>{_UUID})/(?P<partition>{_PARTITION})/"
    rf"(?P<base>[0-9]{{20}})-(?P<epoch>{_EPOCH})-(?P<segment_id>{_UUID})\.(?P<kind>log|index)"
)
_TOPIC_MANIFEST_KEY = re.compile(rf"{_NAME}/{_NAME}-(?P<topic_id>{_UUID})/topic\.json")
_ERASURE_RECEIPT_KEY = re.compile(
    rf"{_NAME}/{_NAME}-(?P<topic_id>{_UUID})/erasure-{_UUID}(?P<part>\.[0-9]{{1,9}})?\.json"
)
_DELETION_KEY = re.compile(rf"(?P<folder>{_NAME}/{_NAME}-(?P<topic_id>{_UUID}))\.deleted\.json")
_TOPIC_FOLDER = re.compile(rf"{_NAME}/(?P<folder>{_NAME}-{_UUID})(?:/|\.deleted\.json)")
_LOG_START_KEY = re.compile(
    rf"{_NAME}/{_NAME}-(?P<topic_id>{_UUID})/(?P<partition>{_PARTITION})/"
    rf"{LOG_START_PREFIX}(?P<offset>[0-9]{{20}})\.json"
)
# Of objects of chains: ``diskless.wal.keys`` parses them.
WAL_KEY = re.compile(
    rf"(?P<cluster>{_NAME})/wal/(?P<broker>[0-9]{{10}})/(?P<chain>{_UUID})/"
    r"(?P<sequence>[0-9]{20})\.(?P<kind>wal|ckpt)"
)
# A note in a chain of who may have got its partitions: ``diskless.wal.keys`` parses it.
HEIR_KEY = re.compile(
    rf"(?P<cluster>{_NAME})/wal/(?P<broker>[0-9]{{10}})/(?P<chain>{_UUID})/"
    rf"heir-(?P<heir_broker>[0-9]{{10}})-(?P<heir>{_UUID})-(?P<sequence>[0-9]{{20}})"
)
_SCHEMA_KEY = re.compile(
    rf"(?P<cluster>{_NAME})/schemas/(?P<sequence>[0-9]{{20}})(?P<kind>|\.checkpoint|\.void)\.json"
)
_PROBE_KEY = re.compile(rf"{_NAME}/wal/probe-{_UUID}")


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The two objects of one segment."""

    log: str
    index: str


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The parts of a segment object's key."""

    cluster_id: str
    topic: str  # cut to TOPIC_NAME_LENGTH_MAX
    topic_id: UUID
    partition: int
    base_offset: int
    leader_epoch: int
    segment_id: UUID
    is_index: bool


@dataclass(frozen=True, slots=True)
class LogStartKey:
    """The parsed key of a log start object."""

    topic_id: UUID
    partition: int
    offset: int


class SchemaObject(Enum):
    """The kinds of objects of the schema registry."""

    ENTRY = ""
    CHECKPOINT = ".checkpoint"
    VOID = ".void"


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """The parsed key of an object of the schema registry."""

    sequence: int
    kind: SchemaObject


@dataclass(frozen=True, slots=True)
class DeletionKey:
    """The parsed key of a deletion object."""

    topic_id: UUID
    folder: str  # the topic's, without the slash at its end


def cluster_manifest_key(cluster_id: str) -> str:
    """Return the key of the cluster's manifest."""
    return f"{cluster_id}/cluster.json"


def store_identity_key(cluster_id: str) -> str:
    """Return the key of the object that says which store this is."""
    return f"{cluster_id}/object-store.json"


def topic_prefix(cluster_id: str, topic: str, topic_id: UUID) -> str:
    """Return the prefix of the keys of all of the topic's objects, slash included."""
    return f"{cluster_id}/{topic[:TOPIC_NAME_LENGTH_MAX]}-{topic_id}/"


def topic_manifest_key(cluster_id: str, topic: str, topic_id: UUID) -> str:
    """Return the key of the topic's manifest."""
    return f"{topic_prefix(cluster_id, topic, topic_id)}topic.json"


def erasure_receipt_key(cluster_id: str, topic: str, topic_id: UUID, erasure_id: UUID) -> str:
    """Return the key of the receipt of an erasure."""
    return f"{topic_prefix(cluster_id, topic, topic_id)}erasure-{erasure_id}.json"


def erasure_part_key(receipt_key: str, number: int) -> str:
    """Return the key of a part of the receipt."""
    return f"{receipt_key.removesuffix('.json')}.{number}.json"


def deletion_key(cluster_id: str, topic: str, topic_id: UUID) -> str:
    """Return the key of the topic's deletion object: outside its folder, to outlive it."""
    return f"{topic_prefix(cluster_id, topic, topic_id)[:-1]}.deleted.json"


def partition_prefix(cluster_id: str, topic: str, topic_id: UUID, partition: int) -> str:
    """Return the prefix of the keys of the partition's segments, slash included."""
    return f"{topic_prefix(cluster_id, topic, topic_id)}{partition}/"


def segment_keys(cluster_id: str, topic: str, segment: SegmentMeta) -> SegmentKeys:
    """Return the keys of the segment's two objects."""
    stem = (
        f"{partition_prefix(cluster_id, topic, segment.topic_id, segment.partition)}"
        f"{segment.base_offset:020d}-{segment.leader_epoch}-{segment.segment_id}"
    )
    return SegmentKeys(log=stem + LOG_SUFFIX, index=stem + INDEX_SUFFIX)


def log_start_key(cluster_id: str, topic: str, topic_id: UUID, partition: int, offset: int) -> str:
    """Return the key that says that the partition's log starts at ``offset`` or later."""
    prefix = partition_prefix(cluster_id, topic, topic_id, partition)
    return f"{prefix}{LOG_START_PREFIX}{offset:020d}.json"


def schemas_prefix(cluster_id: str) -> str:
    """Return the prefix of the keys of the schema registry's objects, slash included."""
    return f"{cluster_id}/schemas/"


def schema_key(cluster_id: str, sequence: int, kind: SchemaObject = SchemaObject.ENTRY) -> str:
    """Return the key of an object of the schema registry."""
    return f"{schemas_prefix(cluster_id)}{sequence:020d}{kind.value}.json"


def parse_schema_key(key: str) -> SchemaKey | None:
    """Parse the key; return ``None`` if it is not of the schema registry."""
    match = _SCHEMA_KEY.fullmatch(key)
    if match is None or int(match["sequence"]) > INT64_MAX:
        return None
    return SchemaKey(int(match["sequence"]), SchemaObject(match["kind"]))


def parse_segment_key(key: str) -> SegmentKey | None:
    """Parse the key; return ``None`` if it is not a segment object's."""
    match = _SEGMENT_KEY.fullmatch(key)
    if match is None or int(match["base"]) > INT64_MAX or int(match["epoch"]) > INT32_MAX:
        return None
    return SegmentKey(
        cluster_id=match["cluster"],
        topic=match["topic"],
        topic_id=UUID(match["topic_id"]),
        partition=int(match["partition"]),
        base_offset=int(match["base"]),
        leader_epoch=int(match["epoch"]),
        segment_id=UUID(match["segment_id"]),
        is_index=match["kind"] == "index",
    )


def topic_folder_of(key: str) -> str:
    """Return ``<topic>-<topic id>`` of a key or a prefix, empty if it is of no topic."""
    match = _TOPIC_FOLDER.match(key)
    return "" if match is None else match["folder"]


def split_topic_folder(folder: str) -> tuple[str, UUID]:
    """Return the topic's name, which may be cut, and its id."""
    return folder[: -UUID_LENGTH - 1], UUID(folder[-UUID_LENGTH:])


def parse_topic_manifest_key(key: str) -> UUID | None:
    """Return the topic's id in the key, ``None`` if it is not a topic manifest's key."""
    match = _TOPIC_MANIFEST_KEY.fullmatch(key)
    return None if match is None else UUID(match["topic_id"])


def parse_erasure_receipt_key(key: str) -> UUID | None:
    """Return the topic's id in the key of a receipt or of a part of one, ``None`` in others."""
    match = _ERASURE_RECEIPT_KEY.fullmatch(key)
    return None if match is None else UUID(match["topic_id"])


def is_whole_receipt(key: str) -> bool:
    """Return whether it is the key of an erasure's receipt, and not of a part of one."""
    match = _ERASURE_RECEIPT_KEY.fullmatch(key)
    return match is not None and match["part"] is None


def parse_deletion_key(key: str) -> DeletionKey | None:
    """Parse the key; return ``None`` if it is not a topic's deletion object's."""
    match = _DELETION_KEY.fullmatch(key)
    return None if match is None else DeletionKey(UUID(match["topic_id"]), match["folder"])


def is_wal_key(key: str) -> bool:
    """Return whether the key is one of a chain's objects."""
    return WAL_KEY.fullmatch(key) is not None


def is_heir_key(key: str) -> bool:
    """Return whether the key names a note of an heir in a chain."""
    return HEIR_KEY.fullmatch(key) is not None


def is_probe_key(key: str) -> bool:
    """Return whether the key names an object of a probe: a crash may leave one."""
    return _PROBE_KEY.fullmatch(key) is not None


def parse_log_start_key(key: str) -> LogStartKey | None:
    """Parse the key; return ``None`` if it is not a log start object's."""
    match = _LOG_START_KEY.fullmatch(key)
    if match is None or int(match["offset"]) > INT64_MAX:
        return None
    return LogStartKey(UUID(match["topic_id"]), int(match["partition"]), int(match["offset"]))
