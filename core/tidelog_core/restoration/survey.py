"""Reads a cluster's manifests and index objects from the bucket, no records.

One listing, and one GET for every manifest and every index object, many at once. A damaged
object does not stop the reading of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidelog_core.batched import batched
from tidelog_core.diskless.bucket.chains import ChainSurvey, survey_chains
from tidelog_core.errors import (
    ClusterNotFound,
    CorruptObject,
    InvalidObjectKey,
    ObjectNotFound,
    TidelogError,
)
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.objects.store import ObjectStore
from tidelog_core.restoration.selection import (
    BrokenSegment,
    CompleteSegment,
    Remark,
    Selection,
    select_segments,
)
from tidelog_core.tier.bucket import ClusterObjects, SegmentObjects, TopicObjects, sort_listing
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import check_replaced, continued_hashes, index_hash
from tidelog_core.tier.keys import topic_prefix
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest

READS_AT_ONCE_MAX = 16
# Errors of one object only. If the store itself fails, nothing can be read.
UNUSABLE = (CorruptObject, ObjectNotFound, InvalidObjectKey)
_NEVER_MS = 2**62

OnRead = Callable[[int], None]
"""Called with 1 for each object that has been read."""


@dataclass(slots=True)
class SurveyedTopic:
    """A topic's folder, read."""

    objects: TopicObjects
    # None: the topic was deleted, or the manifest is missing or damaged, see ``problems``.
    manifest: TopicManifest | None
    selections: dict[int, Selection] = field(default_factory=dict)  # by partition
    problems: list[Remark] = field(default_factory=list)  # of the manifest


@dataclass(slots=True)
class Survey:
    """A cluster's folder, read."""

    cluster_id: str
    topics: list[SurveyedTopic]
    problems: list[Remark]  # of the cluster's manifest, foreign objects, and objects of chains
    chains: ChainSurvey = field(default_factory=ChainSurvey)


async def list_clusters(
    objects: ObjectStore, cluster_id: str | None = None
) -> tuple[dict[str, ClusterObjects], list[str]]:
    """Return the clusters in the bucket, or the one named, and keys that are of none."""
    prefix = "" if cluster_id is None else f"{cluster_id}/"
    return sort_listing([found async for found in objects.list(prefix)])


async def find_cluster(
    objects: ObjectStore, url: str, cluster_id: str | None
) -> tuple[ClusterObjects, list[str]]:
    """Return the only cluster in the bucket, or the named one, and remarks on other content.

    Raises ``ClusterNotFound``.
    """
    clusters, outside = await list_clusters(objects, cluster_id)
    remarks = []
    if outside:
        remarks.append(f"{len(outside)} objects in {url} are of no cluster, such as {outside[0]}")
    if cluster_id is not None and cluster_id not in clusters:
        raise ClusterNotFound(f"there is no cluster {cluster_id} in {url}")
    if not clusters:
        raise ClusterNotFound(f"there is no cluster in {url}")
    if cluster_id is None and len(clusters) > 1:
        names = ", ".join(sorted(clusters))
        raise ClusterNotFound(f"there are several clusters in {url}, give --cluster-id: {names}")
    return clusters[cluster_id or next(iter(clusters))], remarks


def read_count(cluster: ClusterObjects) -> int:
    """Return how many objects ``survey`` will read."""
    topics = [topic for topic in cluster.topics.values() if not topic.is_deleted]
    segments = (
        segment for topic in topics for held in topic.partitions.values() for segment in held
    )
    index_count = sum(segment.index is not None for segment in segments)
    return 1 + len(topics) + index_count + len(cluster.chain_objects)


async def survey(
    objects: ObjectStore, cluster: ClusterObjects, *, on_read: OnRead = lambda _: None
) -> Survey:
    """Return the content of the cluster's manifests, index objects and chains.

    Chains are sealed before, or nobody writes them. Raises the store's errors if it is unreachable.
    """
    reading = _Reading(objects, on_read)
    problems = [Remark(key, "it is no object of the tier's") for key in cluster.foreign]
    problems += await reading.check_cluster(cluster)
    topics = [await reading.topic(topic) for topic in cluster.topics.values()]
    chains = await survey_chains(
        objects, cluster.cluster_id, cluster.chain_objects, on_read=on_read
    )
    problems += [Remark(key, text) for key, text in chains.problems]
    return Survey(cluster.cluster_id, topics, problems, chains)


async def check_manifests(
    objects: ObjectStore, cluster: ClusterObjects, topics: Iterable[TopicObjects]
) -> list[Remark]:
    """Return the problems of the manifests of the cluster and of these topics."""
    reading = _Reading(objects, lambda _: None)
    problems = await reading.check_cluster(cluster)
    for topic in topics:
        problems += (await reading.manifest(topic)).problems
    return problems


class _Reading:
    def __init__(self, objects: ObjectStore, on_read: OnRead) -> None:
        self._objects = objects
        self._on_read = on_read
        self._slots = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def check_cluster(self, cluster: ClusterObjects) -> list[Remark]:
        key = cluster.manifest_key
        try:
            manifest = ClusterManifest.parse(await self._get(key), key=key)
            if manifest.cluster_id != cluster.cluster_id:
                raise CorruptObject(key, f"it is of another cluster, {manifest.cluster_id}")
        except UNUSABLE as error:
            return [Remark(key, describe(error))]
        return []

    async def manifest(self, topic: TopicObjects) -> SurveyedTopic:
        found = SurveyedTopic(topic, None)
        key = topic.manifest_key
        try:
            manifest = TopicManifest.parse(await self._get(key), key=key)
            _check_manifest(manifest, topic, key)
            found.manifest = manifest
        except UNUSABLE as error:
            found.problems.append(Remark(key, describe(error)))
        return found

    async def topic(self, topic: TopicObjects) -> SurveyedTopic:
        if topic.is_deleted:
            return SurveyedTopic(topic, None)  # Nothing in it counts, whole or not.
        found = await self.manifest(topic)
        for partition in topic.partition_numbers:
            found.selections[partition] = await self._partition(
                topic.partitions.get(partition, ()), topic.log_starts.get(partition, 0)
            )
        return found

    async def _partition(
        self, segments: Sequence[SegmentObjects], published_start: int
    ) -> Selection:
        read: list[CompleteSegment | BrokenSegment] = []
        for some in batched(segments, 10 * READS_AT_ONCE_MAX):
            read += await asyncio.gather(*(self._segment(segment) for segment in some))
        complete = [segment for segment in read if isinstance(segment, CompleteSegment)]
        broken = [segment for segment in read if isinstance(segment, BrokenSegment)]
        return select_segments(complete, broken, published_start=published_start)

    async def _segment(self, segment: SegmentObjects) -> CompleteSegment | BrokenSegment:
        if segment.index is None:
            named = segment.key
            text = "it has no index object: a copy that was not finished"
            return BrokenSegment(
                segment.log_key,
                text,
                named.base_offset,
                None,
                named.leader_epoch,
                is_unfinished=True,
            )
        try:
            data = await self._get(segment.index_key)
        except UNUSABLE as error:
            return _broken(segment, segment.index_key, describe(error))
        return await asyncio.to_thread(assess_segment, segment, data)

    async def _get(self, key: str) -> bytes:
        async with self._slots:
            try:
                return await self._objects.get(key)
            finally:
                self._on_read(1)


def assess_segment(segment: SegmentObjects, data: bytes) -> CompleteSegment | BrokenSegment:
    """Return the segment as its index object describes it, checked against its key and log."""
    key = segment.index_key
    try:
        index = IndexFile.parse(data, key=key)
        _check_index(index, segment, key)
    except CorruptObject as error:
        return _broken(segment, key, error.problem)
    if segment.log is None:
        return _broken(segment, segment.log_key, "it is not there", index.end_offset)
    if segment.log.size_bytes != index.log_size_bytes:
        text = f"it has {segment.log.size_bytes} bytes instead of {index.log_size_bytes}"
        return _broken(segment, segment.log_key, text, index.end_offset)
    assert segment.index is not None
    meta = SegmentMeta(
        topic_id=index.topic_id,
        partition=index.partition,
        base_offset=index.base_offset,
        end_offset=index.end_offset,
        leader_epoch=index.leader_epoch,
        segment_id=index.segment_id,
        state=SegmentState.COPY_FINISHED,
        size_bytes=index.log_size_bytes,
        index_size_bytes=len(data),
        max_timestamp_ms=index.max_timestamp_ms,
        leader_epochs=index.leader_epochs,
        chained_hash=index.chained_hash.hex(),
        created_ms=segment.index.modified_ms,
        rewrite_epoch=index.rewrite_epoch,
        compacted_up_to=index.compacted_up_to,
    )
    return CompleteSegment(
        meta,
        segment.log_key,
        key,
        index.previous_hash,
        _producer_id_max(index),
        tuple(continued_hashes(index)),
    )


def describe(error: TidelogError) -> str:
    """Return the problem of an object, without its key."""
    if isinstance(error, CorruptObject):
        return error.problem
    if isinstance(error, ObjectNotFound):
        return "it is not there"
    return f"it could not be read: {error}"


def _check_manifest(manifest: TopicManifest, topic: TopicObjects, key: str) -> None:
    folder = topic_prefix(topic.folder.partition("/")[0], manifest.name, manifest.topic_id)
    if folder != f"{topic.folder}/":
        raise CorruptObject(key, f"it is of another topic, {manifest.name} {manifest.topic_id}")
    if manifest.partition_count < 1:
        raise CorruptObject(key, f"it says {manifest.partition_count} partitions")


def _check_index(index: IndexFile, segment: SegmentObjects, key: str) -> None:
    named = segment.key
    for what, found, expected in (
        ("topic id", index.topic_id, named.topic_id),
        ("partition", index.partition, named.partition),
        ("segment id", index.segment_id, named.segment_id),
        ("base offset", index.base_offset, named.base_offset),
        ("leader epoch", index.leader_epoch, named.leader_epoch),
    ):
        if found != expected:
            raise CorruptObject(key, f"its {what} is {found}, its name says {expected}")
    if index.end_offset <= index.base_offset:
        raise CorruptObject(key, f"it ends at {index.end_offset}, at or before its base offset")
    if not index.leader_epochs:
        raise CorruptObject(key, "it has no leader epochs")
    if index_hash(index) != index.chained_hash:
        raise CorruptObject(key, "the chained hash does not match")
    check_replaced(key, index)


def _producer_id_max(index: IndexFile) -> int:
    ids = [aborted.producer_id for aborted in index.aborted]
    try:
        if index.producer_snapshot:
            state = decode_snapshot(bytes(index.producer_snapshot), expiration_ms=_NEVER_MS)
            ids += [producer_id for producer_id, _ in state.items()]
    except CorruptSnapshot:
        pass  # A node ignores such a snapshot: to it, the producers are new.
    return max(ids, default=-1)


def _broken(
    segment: SegmentObjects, key: str, problem: str, end_offset: int | None = None
) -> BrokenSegment:
    named = segment.key
    return BrokenSegment(key, problem, named.base_offset, end_offset, named.leader_epoch)
