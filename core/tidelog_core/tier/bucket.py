"""Groups the keys of a bucket's listing, without reading objects.

Keys that are not the tier's are *foreign*: they are never read, only reported. Which
segments count is not decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.objects.store import ObjectMeta
from tidelog_core.tier.keys import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SegmentKey,
    cluster_manifest_key,
    is_heir_key,
    is_probe_key,
    is_wal_key,
    parse_deletion_key,
    parse_erasure_receipt_key,
    parse_log_start_key,
    parse_schema_key,
    parse_segment_key,
    parse_topic_manifest_key,
    store_identity_key,
)


@dataclass(slots=True)
class SegmentObjects:
    """The objects of one segment; one of the two may be missing."""

    key: SegmentKey  # of either
    stem: str  # the common prefix of both keys
    log: ObjectMeta | None = None
    index: ObjectMeta | None = None

    @property
    def log_key(self) -> str:
        """The key that the segment's bytes have, whether they are there or not."""
        return self.stem + LOG_SUFFIX

    @property
    def index_key(self) -> str:
        """The key that the segment's index object has, whether it is there or not."""
        return self.stem + INDEX_SUFFIX


@dataclass(slots=True)
class TopicObjects:
    """One topic's folder."""

    topic_id: UUID
    folder: str  # without the slash at its end
    has_manifest: bool = False
    is_deleted: bool = False  # the bucket has the topic's deletion object
    partitions: dict[int, list[SegmentObjects]] = field(default_factory=dict)
    log_starts: dict[int, int] = field(default_factory=dict)  # by partition; the greatest published

    @property
    def manifest_key(self) -> str:
        """The key of the topic's manifest, whether it is there or not."""
        return f"{self.folder}/topic.json"

    @property
    def deletion_key(self) -> str:
        """The key of the topic's deletion object, which may not exist."""
        return f"{self.folder}.deleted.json"

    @property
    def partition_numbers(self) -> list[int]:
        """The partitions with a segment or a log start, ascending."""
        return sorted(self.partitions.keys() | self.log_starts.keys())


@dataclass(slots=True)
class ClusterObjects:
    """One cluster's folder."""

    cluster_id: str
    has_manifest: bool = False
    topics: dict[str, TopicObjects] = field(default_factory=dict)  # by folder
    chain_objects: list[ObjectMeta] = field(default_factory=list)  # of diskless topics, by key
    has_schemas: bool = False  # of the schema registry
    foreign: list[str] = field(default_factory=list)  # keys below the cluster's folder

    @property
    def manifest_key(self) -> str:
        """The key of the cluster's manifest, whether it is there or not."""
        return cluster_manifest_key(self.cluster_id)


def sort_listing(objects: Iterable[ObjectMeta]) -> tuple[dict[str, ClusterObjects], list[str]]:
    """Return the clusters that the objects belong to, and the keys that are of none."""
    sorting = _Sorting()
    for found in objects:
        sorting.add(found)
    outside = []
    for cluster_id, keys in sorting.unknown.items():
        if cluster_id in sorting.clusters:
            sorting.clusters[cluster_id].foreign = keys
        else:
            outside += keys
    return sorting.clusters, outside


class _Sorting:
    def __init__(self) -> None:
        self.clusters: dict[str, ClusterObjects] = {}
        self.unknown: dict[str, list[str]] = defaultdict(list)  # by the first part of the key
        self._segments: dict[str, SegmentObjects] = {}

    def add(self, meta: ObjectMeta) -> None:
        key = meta.key
        cluster_id = key.partition("/")[0]
        if key == cluster_manifest_key(cluster_id):
            self._cluster(cluster_id).has_manifest = True
        elif key == store_identity_key(cluster_id):
            return  # It names the store, and says nothing about its content.
        elif (parsed := parse_segment_key(key)) is not None:
            self._add_segment(self._topic(key, parsed.topic_id), parsed, meta)
        elif (start := parse_log_start_key(key)) is not None:
            starts = self._topic(key, start.topic_id).log_starts
            starts[start.partition] = max(start.offset, starts.get(start.partition, 0))
        elif (topic_id := parse_topic_manifest_key(key)) is not None:
            self._topic(key, topic_id).has_manifest = True
        elif is_wal_key(key):
            self._cluster(cluster_id).chain_objects.append(meta)
        elif parse_schema_key(key) is not None:
            self._cluster(cluster_id).has_schemas = True
        elif is_heir_key(key) or is_probe_key(key) or parse_erasure_receipt_key(key) is not None:
            return  # It does not describe the content.
        elif (deletion := parse_deletion_key(key)) is not None:
            self._topic(f"{deletion.folder}/", deletion.topic_id).is_deleted = True
        else:
            self.unknown[cluster_id].append(key)

    def _cluster(self, cluster_id: str) -> ClusterObjects:
        return self.clusters.setdefault(cluster_id, ClusterObjects(cluster_id))

    def _topic(self, key: str, topic_id: UUID) -> TopicObjects:
        cluster_id, name = key.split("/")[:2]
        folder = f"{cluster_id}/{name}"
        topics = self._cluster(cluster_id).topics
        return topics.setdefault(folder, TopicObjects(topic_id, folder))

    def _add_segment(self, topic: TopicObjects, parsed: SegmentKey, found: ObjectMeta) -> None:
        stem = found.key.rpartition(".")[0]
        segment = self._segments.get(stem)
        if segment is None:
            segment = self._segments[stem] = SegmentObjects(parsed, stem)
            topic.partitions.setdefault(parsed.partition, []).append(segment)
        if parsed.is_index:
            segment.index = found
        else:
            segment.log = found
