"""What a listing of the bucket says is there, without reading an object.

Keys that are none of the tier's are *foreign*: nobody reads them, and they are named so
that somebody looks. Nothing is decided here about which segments count.
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
    parse_segment_key,
    parse_topic_manifest_key,
)


@dataclass(slots=True)
class SegmentObjects:
    """The objects of one segment; one of the two may be missing."""

    key: SegmentKey  # of either
    stem: str  # what both keys start with
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
    partitions: dict[int, list[SegmentObjects]] = field(default_factory=dict)

    @property
    def manifest_key(self) -> str:
        """The key of the topic's manifest, whether it is there or not."""
        return f"{self.folder}/topic.json"


@dataclass(slots=True)
class ClusterObjects:
    """One cluster's folder."""

    cluster_id: str
    has_manifest: bool = False
    topics: dict[str, TopicObjects] = field(default_factory=dict)  # by folder
    foreign: list[str] = field(default_factory=list)  # keys below the cluster's folder

    @property
    def manifest_key(self) -> str:
        """The key of the cluster's manifest, whether it is there or not."""
        return cluster_manifest_key(self.cluster_id)


def sort_listing(objects: Iterable[ObjectMeta]) -> tuple[dict[str, ClusterObjects], list[str]]:
    """Return the clusters that the objects belong to, and the keys that are of none."""
    clusters: dict[str, ClusterObjects] = {}
    unknown: dict[str, list[str]] = defaultdict(list)  # by the first part of the key
    segments: dict[str, SegmentObjects] = {}
    for found in objects:
        cluster_id, _, rest = found.key.partition("/")
        parsed = parse_segment_key(found.key)
        topic_id = parse_topic_manifest_key(found.key)
        if parsed is None and topic_id is None and rest != "cluster.json":
            unknown[cluster_id].append(found.key)
            continue
        cluster = clusters.setdefault(cluster_id, ClusterObjects(cluster_id))
        if rest == "cluster.json":
            cluster.has_manifest = True
        elif topic_id is not None:
            _topic(cluster, found.key, topic_id).has_manifest = True
        elif parsed is not None:
            _add_segment(_topic(cluster, found.key, parsed.topic_id), segments, parsed, found)
    outside = []
    for cluster_id, keys in unknown.items():
        if cluster_id in clusters:
            clusters[cluster_id].foreign = keys
        else:
            outside += keys
    return clusters, outside


def _topic(cluster: ClusterObjects, key: str, topic_id: UUID) -> TopicObjects:
    folder = "/".join(key.split("/")[:2])
    return cluster.topics.setdefault(folder, TopicObjects(topic_id, folder))


def _add_segment(
    topic: TopicObjects, known: dict[str, SegmentObjects], parsed: SegmentKey, found: ObjectMeta
) -> None:
    stem = found.key.rpartition(".")[0]
    segment = known.get(stem)
    if segment is None:
        segment = known[stem] = SegmentObjects(parsed, stem)
        topic.partitions.setdefault(parsed.partition, []).append(segment)
    if parsed.is_index:
        segment.index = found
    else:
        segment.log = found
