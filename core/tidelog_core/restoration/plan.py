"""Plans a restoration: from the bucket's content to the items of an empty metadata store.

Values that the bucket does not have are chosen so that nothing old is mistaken for something new:

- **Leader epochs** continue far above the greatest one in any object. The last leaders may have
  had greater ones, and clients that have seen those ignore smaller ones. After the jump they
  continue, and OffsetForLeaderEpoch shows them that the log was truncated (KIP-320).
- **Producer ids** continue far above the greatest one too: a new producer must not get the id
  of one whose sequences are still known.
- **Diskless partitions** go on in their chains. The first leader finds there what the tier lacks,
  as after the death of another one.
- **The first replica alone is in sync.** Its log begins at the end of the tier, and a replica
  in sync is never sent to the tier: the others join the ISR once they have caught up.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.admin.names import is_internal, validate_topic_name
from tidelog_core.admin.settings.configs import new_topic_configs
from tidelog_core.admin.topics.topic_plans import PARTITIONS_MAX, TopicPlan
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.bucket.chains import ChainedPartition, ChainSurvey
from tidelog_core.errors import InvalidConfig, InvalidTopic
from tidelog_core.metadata.records import AckedBy, Partition, SegmentMeta, Topic
from tidelog_core.model import INT32_MAX
from tidelog_core.replication.placement.heirs import DISKLESS_ENABLE
from tidelog_core.replication.placement.placer import ReplicaPlacer, Replicas
from tidelog_core.restoration.chain_tail import ChainTail, join_tail
from tidelog_core.restoration.selection import Remark, Selection
from tidelog_core.restoration.survey import Survey, SurveyedTopic

LEADER_EPOCH_JUMP = 1_000
PRODUCER_ID_JUMP = 1_000_000
REPLICATION_FACTOR_MAX = 3  # of the default; Kafka's own topics have three replicas

_NOTHING_TIERED = Selection((), 0, 0, -1, -1, (), ())


@dataclass(frozen=True, slots=True)
class RestoredTopic:
    """A topic and its recovered state."""

    plan: TopicPlan
    segments: tuple[SegmentMeta, ...]  # of all partitions
    tails: Mapping[int, ChainTail] = field(default_factory=dict)  # in chains, by partition


@dataclass(frozen=True, slots=True)
class Restoration:
    """The items to write, and the problems to report."""

    cluster_id: str
    topics: tuple[RestoredTopic, ...]
    next_producer_id: int
    left_out: tuple[Remark, ...]
    problems: tuple[Remark, ...]
    fewer_replicas: tuple[str, ...]  # topics that had more replicas than there are brokers


def plan_restoration(
    survey: Survey, *, brokers: Sequence[int], replication_factor: int | None = None
) -> Restoration:
    """Return the items that restore the cluster. The brokers will be started on the store.

    A topic gets ``replication_factor`` replicas, by default as many as it had, which manifests of
    older programs lack. Raises ``InvalidReplicationFactor``.
    """
    left_out: list[Remark] = []
    problems = list(survey.problems)
    placer = ReplicaPlacer(racks=dict.fromkeys(brokers), live=set(brokers))
    broker_count = len(set(brokers))
    restored = []
    fewer_replicas = []
    chained = survey.chains.partitions
    producer_id_max = max((one.producer_id_max for one in chained.values()), default=-1)
    problems += _nameless(survey)
    for topic in _wanted(survey.topics, left_out, problems):
        for selection in topic.selections.values():
            left_out += selection.left_out
            problems += selection.problems
            producer_id_max = max(producer_id_max, selection.producer_id_max)
        assert topic.manifest is not None
        had, asked = topic.manifest.replication_factor, replication_factor
        if topic.manifest.configs.get(DISKLESS_ENABLE) == "true":
            had, asked = had or 1, None  # The bucket has its records: replicas are caches.
        factor = asked or had or REPLICATION_FACTOR_MAX
        if asked is None:
            if (had or 0) > broker_count:
                fewer_replicas.append(topic.manifest.name)
            factor = min(factor, broker_count)
        planned = _restored_topic(topic, survey.chains, placer, factor)
        for tail in planned.tails.values():
            problems += tail.problems
        restored.append(planned)
    return Restoration(
        cluster_id=survey.cluster_id,
        topics=tuple(restored),
        next_producer_id=producer_id_max + PRODUCER_ID_JUMP,
        left_out=tuple(left_out),
        problems=tuple(problems),
        fewer_replicas=tuple(fewer_replicas),
    )


def _nameless(survey: Survey) -> list[Remark]:
    """Return the chains' records of topics that no manifest names: a problem for each topic."""
    known = {topic.objects.topic_id for topic in survey.topics}
    first: dict[UUID, ChainedPartition] = {}
    counts: Counter[UUID] = Counter()
    for name, found in survey.chains.partitions.items():
        if name.topic_id not in known and found.runs:
            first.setdefault(name.topic_id, found)
            counts[name.topic_id] += sum(run.end_offset - run.base_offset for run in found.runs)
    text = "it has records of a topic whose manifest is not there; chains have {} offsets of {}"
    return [
        Remark(found.runs[0].key, text.format(counts[topic_id], topic_id))
        for topic_id, found in first.items()
    ]


def _wanted(
    topics: Iterable[SurveyedTopic], left_out: list[Remark], problems: list[Remark]
) -> list[SurveyedTopic]:
    """Return the topics to restore, one of each name, by name."""
    by_name: dict[str, SurveyedTopic] = {}
    for topic in sorted(topics, key=_created_ms):
        problems += topic.problems
        if topic.objects.is_deleted:
            left_out.append(Remark(topic.objects.folder, "the topic was deleted"))
        if topic.manifest is None:
            continue
        trouble = _trouble(topic)
        if trouble is not None:
            problems.append(Remark(topic.objects.manifest_key, trouble))
            continue
        older = by_name.pop(topic.manifest.name, None)
        if older is not None:
            text = f"the topic was deleted: {topic.objects.folder} was created after it"
            left_out.append(Remark(older.objects.manifest_key, text))
        by_name[topic.manifest.name] = topic
    return [by_name[name] for name in sorted(by_name)]


def _created_ms(topic: SurveyedTopic) -> tuple[int, str]:
    created_ms = -1 if topic.manifest is None else topic.manifest.created_ms
    return created_ms, topic.objects.folder


def _trouble(topic: SurveyedTopic) -> str | None:
    """Return why the topic cannot be created, ``None`` if it can."""
    assert topic.manifest is not None
    try:
        validate_topic_name(topic.manifest.name)
        new_topic_configs(dict(topic.manifest.configs), NodeConfig())
    except InvalidTopic as error:
        return str(error)
    except InvalidConfig as error:
        return f"its settings are not valid here: {error}"
    if is_internal(topic.manifest.name):
        return "the cluster's own topics have no segments"
    if _partition_count(topic) > PARTITIONS_MAX:
        return f"it has {_partition_count(topic)} partitions; at most {PARTITIONS_MAX} may be"
    return None


def _partition_count(topic: SurveyedTopic, chained: Iterable[int] = ()) -> int:
    """Return the number of partitions; the manifest may be from before the last one was added."""
    assert topic.manifest is not None
    numbers = [*topic.selections, *chained]
    return max([topic.manifest.partition_count, *(number + 1 for number in numbers)])


def _restored_topic(
    topic: SurveyedTopic, chains: ChainSurvey, placer: ReplicaPlacer, replication_factor: int
) -> RestoredTopic:
    manifest = topic.manifest
    assert manifest is not None
    chained = {
        name.partition: found
        for name, found in chains.partitions.items()
        if name.topic_id == manifest.topic_id and name.partition < PARTITIONS_MAX
    }
    count = _partition_count(topic, chained)
    partitions: list[Partition] = []
    segments: list[SegmentMeta] = []
    tails: dict[int, ChainTail] = {}
    for number, replicas in enumerate(placer.place(count, replication_factor)):
        selection = topic.selections.get(number, _NOTHING_TIERED)
        kept = [segment.meta for segment in selection.segments]
        found, tail = chained.get(number), None
        if found is not None:
            start = max(selection.log_start_offset, found.log_start_offset)
            tiered_end = max((segment.end_offset for segment in kept), default=start)
            tail = tails[number] = join_tail(
                found,
                tiered_end=tiered_end,
                log_start_offset=start,
                has_segments=bool(kept),
                tiered_epoch=_last_epoch(kept),
            )
            if tail.starts_at is not None:
                kept = []
        partition = _restored_partition(manifest.topic_id, number, replicas, selection)
        if manifest.configs.get(DISKLESS_ENABLE) == "true":
            partition = dataclasses.replace(partition, acked_by=AckedBy.CHAIN)
        if found is not None and tail is not None:
            partition = _chained_partition(partition, found, tail)
        partitions.append(partition)
        segments += kept
    restored = Topic(
        name=manifest.name,
        topic_id=manifest.topic_id,
        partition_count=count,
        configs=manifest.configs,
        created_ms=manifest.created_ms,
    )
    return RestoredTopic(TopicPlan(restored, tuple(partitions)), tuple(segments), tails)


def _restored_partition(
    topic_id: UUID, number: int, replicas: Replicas, selection: Selection
) -> Partition:
    start = selection.log_start_offset
    return Partition(
        topic_id=topic_id,
        partition=number,
        replicas=replicas,
        leader=replicas[0],
        # It takes over in the next epoch: this one is of the leader that is lost.
        leader_epoch=_next_epoch(selection.leader_epoch_max),
        isr=replicas[:1],
        log_start_offset=start,
        restored_log_start=start if start > selection.deleted_end else 0,
    )


def _chained_partition(partition: Partition, found: ChainedPartition, tail: ChainTail) -> Partition:
    """Return the partition with its tail. The log start is known from the chain as well."""
    start = max(partition.log_start_offset, found.log_start_offset)
    restored_start = partition.restored_log_start if start == partition.log_start_offset else 0
    if tail.starts_at is not None:
        start = restored_start = max(start, tail.starts_at)
    return dataclasses.replace(
        partition,
        wal=tail.wal,
        leader_epoch=max(partition.leader_epoch, _next_epoch(found.leader_epoch_max)),
        log_start_offset=start,
        restored_log_start=restored_start,
    )


def _last_epoch(segments: Iterable[SegmentMeta]) -> int:
    """Return the leader epoch of the last tiered record, -1 without one."""
    last = max(segments, key=lambda one: one.end_offset, default=None)
    if last is None:
        return -1
    return max(
        (epoch for epoch, first in last.leader_epochs if first < last.end_offset), default=-1
    )


def _next_epoch(leader_epoch_max: int) -> int:
    return min(leader_epoch_max + LEADER_EPOCH_JUMP, INT32_MAX - 1)
