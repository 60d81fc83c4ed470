"""Plans a verification: the segments to check, and the unexpected objects in the bucket.

With a metadata store, the store says which segments count, and every other object of the cluster
is a problem. It is a leftover if a segment that counts has its first record: a tier worker that
continues after its node has lost the lead stores such objects, and the scrub removes them. Without
a metadata store, the rules of ``tidelog_core.restoration`` say which segments count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptItem, CorruptObject, InvalidObjectKey, ObjectNotFound
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.records import (
    DELETED_TOPIC_COLLECTION,
    TOPIC_COLLECTION,
    Partition,
    SegmentMeta,
    SegmentState,
    partition_collection,
    partition_key,
    segment_collection,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.restoration.survey import Survey, SurveyedTopic, check_manifests
from tidelog_core.retention.orphans import (
    TopicState,
    is_accounted_for,
    named_segments,
    state_of_topic,
)
from tidelog_core.tier.bucket import ClusterObjects, SegmentObjects, TopicObjects
from tidelog_core.tier.contents import read_tiered_end
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import SegmentKeys, log_start_key, parse_segment_key, partition_prefix
from tidelog_core.tier.planning import finished_segments
from tidelog_core.tier.tiered_segments import TieredSegments
from tidelog_core.verification.segment_check import Problem
from tidelog_core.verification.tail_check import ChainsPlan, TailPlan
from tidelog_core.verification.verification import PartitionPlan

ORPHAN = "no segment in the metadata store has it"
LEFTOVER = "left over from a copy that was given up: its offsets were copied again"


class MetadataPlan:
    """The plan by the metadata store. Made after the bucket was listed.

    In this order, an upload that begins in between is never taken for an orphan: its item is
    written before its objects.
    """

    def __init__(self, store: MetadataStore, image: ClusterImage, objects: ObjectStore) -> None:
        self._store = store
        self._image = image
        self._objects = objects
        self._known: set[UUID] = set()  # segments in any state
        self._tiered: set[UUID] = set()  # topics that have segments
        self._finished: dict[tuple[UUID, int], tuple[SegmentMeta, ...]] = {}
        self._names: dict[UUID, str] = {}

    async def partitions(self, topics: Iterable[str]) -> list[PartitionPlan]:
        """Return the plans of the topics' partitions."""
        plans: list[PartitionPlan] = []
        for topic in topics:
            self._names[self._image.topics[topic].topic_id] = topic
            plans += [await self._partition(topic, p) for p in self._image.partitions(topic)]
        return plans

    def chains(self, cluster: ClusterObjects) -> ChainsPlan:
        """Return the chains to check of the topics of ``partitions``, which was called before."""
        tails: dict[PartitionName, TailPlan] = {}
        for topic_id, topic in self._names.items():
            for partition in self._image.partitions(topic):
                finished = self._finished.get((topic_id, partition.partition), ())
                end = max((one.end_offset for one in finished), default=0)
                tails[PartitionName(topic_id, partition.partition)] = TailPlan(
                    TopicPartition(topic, partition.partition),
                    max(end, partition.log_start_offset),
                    partition.wal,
                )
        return _chains_plan(cluster, tails)

    async def tiered_end(self, name: PartitionName, tail: TailPlan) -> int:
        """The end of the partition's tier now."""
        return await read_tiered_end(self._store, name.topic_id, name.partition, tail.tiered_end)

    async def strays(self, cluster: ClusterObjects, *, is_all: bool) -> list[Problem]:
        """Return the unexpected objects in the bucket, and damaged manifests and items.

        ``partitions`` was called before. Without ``is_all`` only of its topics.
        """
        problems = [Problem(None, key, "it is no object of the tier's") for key in cluster.foreign]
        problems = problems if is_all else []
        ours = {partition_collection(topic_id) for topic_id in self._names}
        problems += [
            Problem(None, f"{key.collection}/{key.key}", f"it cannot be read: {why}")
            for key, why in self._image.unreadable.items()
            if is_all or key.collection in ours
        ]
        wanted = []
        for topic in cluster.topics.values():
            if topic.topic_id in self._names:
                problems += await self._orphans(topic)
                problems += self._published_too_much(topic)
                if topic.topic_id in self._tiered:
                    wanted.append(topic)
            elif is_all and not await self._is_known_topic(topic):
                count = sum(map(len, topic.partitions.values()))
                text = f"the metadata store knows no such topic; there are {count} segments of it"
                problems.append(Problem(None, topic.folder, text))
        if wanted:
            remarks = await check_manifests(self._objects, cluster, wanted)
            problems += [Problem(None, remark.object, remark.text) for remark in remarks]
        return problems

    async def is_still_there(self, segment: SegmentMeta, keys: SegmentKeys) -> bool:  # noqa: ARG002
        """Whether the segment's item is still COPY_FINISHED."""
        item = await self._store.get(segment.item_id)
        return item is not None and SegmentMeta.from_item(item).state is SegmentState.COPY_FINISHED

    async def log_start_offset(self, planned: PartitionPlan) -> int:
        """The log start offset in the partition's item."""
        topic = self._image.topics[planned.name.topic]
        item = await self._store.get(partition_key(topic.topic_id, planned.name.partition))
        if item is None:
            return planned.log_start_offset
        try:
            return Partition.from_item(item).log_start_offset
        except CorruptItem:  # It is reported as a problem of its own.
            return planned.log_start_offset

    async def _partition(self, topic: str, partition: Partition) -> PartitionPlan:
        name = TopicPartition(topic, partition.partition)
        metas: list[SegmentMeta] = []
        problems: list[Problem] = []
        items = await self._store.list(segment_collection(partition.topic_id, partition.partition))
        self._known |= named_segments(items)
        for item in items:
            try:
                metas.append(SegmentMeta.from_item(item))
            except CorruptItem as error:
                key = f"{item.id.collection}/{item.id.key}"
                problems.append(Problem(name, key, error.problem))
        finished = tuple(finished_segments(metas))
        self._finished[partition.topic_id, partition.partition] = finished
        if finished:
            self._tiered.add(partition.topic_id)
        log_start_offset = partition.log_start_offset
        if finished and not is_readable(partition):
            log_start_offset = max(log_start_offset, finished[0].base_offset)
        return PartitionPlan(name, log_start_offset, finished, tuple(problems))

    async def _orphans(self, topic: TopicObjects) -> list[Problem]:
        problems = []
        for number, segments in sorted(topic.partitions.items()):
            name = TopicPartition(self._names[topic.topic_id], number)
            finished = TieredSegments(self._finished.get((topic.topic_id, number), ()))
            for segment in segments:
                if segment.key.segment_id in self._known:
                    continue
                is_leftover = is_accounted_for(segment.key, finished)
                text = LEFTOVER if is_leftover else ORPHAN
                keys = [key for key in _keys_of(segment) if await _exists(self._objects, key)]
                problems += [Problem(name, key, text, is_leftover) for key in keys]
        return problems

    def _published_too_much(self, topic: TopicObjects) -> list[Problem]:
        """Return the deletions and log starts in the bucket that the metadata store lacks.

        This happens when the metadata is set back to an earlier time; the scrub removes them.
        """
        name = self._names[topic.topic_id]
        problems = []
        if topic.is_deleted:
            text = "it says that the topic was deleted, but the metadata store has it"
            problems.append(Problem(None, topic.deletion_key, text))
        for partition in self._image.partitions(name):
            stored = topic.log_starts.get(partition.partition, 0)
            if stored > partition.log_start_offset and is_readable(partition):
                start = partition.log_start_offset
                text = f"the log starts at {start}, not at {stored} as this says"
                key = log_start_key(
                    self._image.cluster_id, name, topic.topic_id, partition.partition, stored
                )
                where = TopicPartition(name, partition.partition)
                problems.append(Problem(where, key, text))
        return problems

    async def _is_known_topic(self, topic: TopicObjects) -> bool:
        """Whether the topic exists, or is being deleted together with its objects.

        If only the bucket has the deletion, the metadata was restored: the scrub finishes it.
        """
        image = self._image
        state = state_of_topic(
            topic.topic_id,
            live=image.topic_names,
            deleted=image.deleted_topics,
            # An unreadable item is reported as a problem of its own.
            is_complete=not any(
                key.collection in (TOPIC_COLLECTION, DELETED_TOPIC_COLLECTION)
                for key in image.unreadable
            ),
        )
        if topic.is_deleted or state is not TopicState.UNKNOWN:
            return True
        keys = itertools.chain.from_iterable(
            _keys_of(segment) for held in topic.partitions.values() for segment in held
        )
        if topic.has_manifest:
            keys = itertools.chain([topic.manifest_key], keys)
        first = next(keys, None)
        return first is None or not await _exists(self._objects, first)


class BucketPlan:
    """The plan by the bucket alone."""

    def __init__(self, survey: Survey, objects: ObjectStore) -> None:
        self._survey = survey
        self._topics = [topic for topic in survey.topics if not topic.objects.is_deleted]
        self._objects = objects
        self.problems = [Problem(None, r.object, r.text) for r in survey.problems]

    @property
    def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted({_name_of(topic) for topic in self._topics})

    @property
    def configs(self) -> dict[str, Mapping[str, str]]:
        """The settings that topics override, of topics with a manifest."""
        return {t.manifest.name: t.manifest.configs for t in self._topics if t.manifest}

    def partitions(self, topics: Sequence[str]) -> list[PartitionPlan]:
        """Return the plans of the topics' partitions."""
        plans = []
        for topic in sorted(self._topics, key=_name_of):
            if _name_of(topic) not in topics:
                continue
            self.problems += [Problem(None, r.object, r.text) for r in topic.problems]
            for number, selection in topic.selections.items():
                name = TopicPartition(_name_of(topic), number)
                problems = tuple(Problem(name, r.object, r.text) for r in selection.problems)
                segments = tuple(segment.meta for segment in selection.segments)
                plans.append(PartitionPlan(name, selection.log_start_offset, segments, problems))
        return plans

    def chains(self, cluster: ClusterObjects, topics: Sequence[str]) -> ChainsPlan:
        """Return the chains to check of these topics."""
        tails: dict[PartitionName, TailPlan] = {}
        chained = self._survey.chains.partitions
        for topic in self._topics:
            if _name_of(topic) not in topics:
                continue
            topic_id = topic.objects.topic_id
            numbers = {name.partition for name in chained if name.topic_id == topic_id}
            for number in sorted(numbers | topic.selections.keys()):
                name = PartitionName(topic_id, number)
                selection = topic.selections.get(number)
                start = 0 if selection is None else selection.log_start_offset
                segments = () if selection is None else selection.segments
                marked = chained[name].log_start_offset if name in chained else 0
                ends = (one.meta.end_offset for one in segments)
                tails[name] = TailPlan(
                    TopicPartition(_name_of(topic), number), max([start, marked, *ends])
                )
        return _chains_plan(cluster, tails)

    async def tiered_end(self, name: PartitionName, tail: TailPlan) -> int:
        """The end of the partition's tier now: of segments that came since."""
        end = tail.tiered_end
        prefix = partition_prefix(
            self._survey.cluster_id, tail.name.topic, name.topic_id, name.partition
        )
        async for found in self._objects.list(prefix):
            key = parse_segment_key(found.key)
            if key is not None and key.is_index and key.base_offset >= tail.tiered_end:
                try:
                    index = IndexFile.parse(await self._objects.get(found.key), key=found.key)
                except (CorruptObject, ObjectNotFound):
                    continue
                if index.base_offset <= end:
                    end = max(end, index.end_offset)
        return end

    async def is_still_there(self, segment: SegmentMeta, keys: SegmentKeys) -> bool:  # noqa: ARG002
        """Whether either object is there: a deletion takes both."""
        return await _exists(self._objects, keys.index) or await _exists(self._objects, keys.log)

    async def log_start_offset(self, planned: PartitionPlan) -> int:
        """The first offset of the segments that count."""
        return planned.log_start_offset


def _chains_plan(cluster: ClusterObjects, tails: dict[PartitionName, TailPlan]) -> ChainsPlan:
    """Return the plan; there is nothing to check without objects of chains and chains in items."""
    if not cluster.chain_objects:
        tails = {name: tail for name, tail in tails.items() if tail.wal}
    return ChainsPlan(tuple(cluster.chain_objects), tails)


async def _exists(objects: ObjectStore, key: str) -> bool:
    """Whether the object still exists: its deletion may have ended since."""
    try:
        await objects.head(key)
    except (ObjectNotFound, InvalidObjectKey):
        return False
    return True


def _keys_of(segment: SegmentObjects) -> Iterator[str]:
    if segment.index is not None:
        yield segment.index_key
    if segment.log is not None:
        yield segment.log_key


def _name_of(topic: SurveyedTopic) -> str:
    """Return the topic's name; without a manifest the folder's, which may be cut."""
    if topic.manifest is not None:
        return topic.manifest.name
    return topic.objects.folder.partition("/")[2].removesuffix(f"-{topic.objects.topic_id}")
