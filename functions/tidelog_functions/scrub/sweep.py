"""One sweep over the bucket and the metadata side by side, in the order of keys.

The listing comes as groups: all objects of one partition are neighbours. Between two
groups lie the partitions that the metadata knows and the bucket has nothing of. For each
partition the objects are listed first and its items read after that, which is what makes
``judge_unnamed`` right while copies and retention go on.

A sweep that comes near its time limit says up to where it came; the next one goes on
behind it. It lists from the beginning, since stores do not list from a key on, but looks
at no item and no object again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.errors import ObjectNotFound, TidelogError
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState, Topic
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.store import ObjectMeta, ObjectStore
from tidelog_core.retention.deletion import read_segments
from tidelog_core.retention.orphans import (
    TopicState,
    is_manifest_orphan,
    judge_unnamed,
    select_missing,
)
from tidelog_core.tier.keys import (
    cluster_manifest_key,
    parse_segment_key,
    partition_prefix,
    segment_keys,
    topic_manifest_key,
)

from tidelog_functions.cluster_reader import Topics
from tidelog_functions.invocation import OutOfTime, TimeLimit
from tidelog_functions.scrub.settings import ScrubSettings

logger = logging.getLogger(__name__)

NAMED_IN_REPORT_MAX = 100  # of each kind; all are counted


@dataclass(slots=True)
class Report:
    """What a sweep has found and done."""

    is_dry_run: bool
    object_count: int = 0
    segment_count: int = 0
    orphan_count: int = 0  # removed, unless it is a dry run
    orphan_bytes: int = 0
    young_count: int = 0
    foreign_count: int = 0
    unexplained_count: int = 0
    missing_count: int = 0
    orphans: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failed: dict[str, TidelogError] = field(default_factory=dict)
    is_finished: bool = True
    resumes_after: str = ""


@dataclass(frozen=True, slots=True)
class _Group:
    """What the bucket has below one partition's prefix, or one object that is of none."""

    prefix: str
    objects: Sequence[ObjectMeta]


class Sweep:
    """Looks through one cluster. Used once."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        objects: ObjectStore,
        cluster_id: str,
        topics: Topics,
        settings: ScrubSettings,
        clock_ms: Callable[[], int],
        limit: TimeLimit,
    ) -> None:
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id
        self._settings = settings
        self._clock_ms = clock_ms
        self._limit = limit
        self._topics = {topic.topic_id: topic for topic in topics.live}
        self._topics_failed = topics.failed
        self._deleted = {tombstone.topic_id for tombstone in topics.deleted}
        self._report = Report(settings.is_dry_run, failed=dict(topics.failed))

    async def run(self, *, resumes_after: str) -> Report:
        """Sweep behind that key, as far as the time reaches."""
        report = self._report
        report.resumes_after = resumes_after
        known = {
            partition_prefix(self._cluster_id, topic.name, topic.topic_id, number): (topic, number)
            for topic in self._topics.values()
            for number in range(topic.partition_count)
        }
        waiting = sorted((p for p in known if p > resumes_after), reverse=True)
        try:
            async for group in self._groups():
                if group.prefix <= resumes_after:
                    continue
                while waiting and waiting[-1] < group.prefix:
                    await self._partition(_Group(waiting.pop(), ()), known)
                if waiting and waiting[-1] == group.prefix:
                    waiting.pop()
                await self._look_at(group, known)
            while waiting:
                await self._partition(_Group(waiting.pop(), ()), known)
        except OutOfTime:
            report.is_finished = False
        else:
            report.resumes_after = ""
        return report

    async def _groups(self) -> AsyncIterator[_Group]:
        prefix, objects = "", list[ObjectMeta]()
        async for found in self._objects.list(f"{self._cluster_id}/"):
            of = _group_prefix(found.key)
            if of != prefix:
                if objects:
                    yield _Group(prefix, objects)
                prefix, objects = of, []
            objects.append(found)
        if objects:
            yield _Group(prefix, objects)

    async def _look_at(self, group: _Group, known: dict[str, tuple[Topic, int]]) -> None:
        self._limit.require()
        self._report.object_count += len(group.objects)
        if group.prefix.endswith("/"):
            return await self._partition(group, known)
        (found,) = group.objects
        topic_id = _topic_of_manifest(found.key)
        if topic_id is not None:
            state, now_ms = self._state(topic_id), self._clock_ms()
            if is_manifest_orphan(found, topic=state, limits=self._settings.limits, now_ms=now_ms):
                await self._remove([found])
        elif found.key != cluster_manifest_key(self._cluster_id):
            self._pass_over(found)
        self._report.resumes_after = group.prefix
        return None

    async def _partition(self, group: _Group, known: dict[str, tuple[Topic, int]]) -> None:
        """Compare one partition's objects with its items; trouble with it stops no other."""
        self._limit.require()
        try:
            await self._compare(group, known.get(group.prefix))
        except OutOfTime:
            raise
        except TidelogError as error:
            self._report.failed[group.prefix] = error
            problem = f"{type(error).__name__}: {error}"
            logger.error("scrub failed", extra={"partition": group.prefix, "problem": problem})
        self._report.resumes_after = group.prefix

    async def _compare(self, group: _Group, owner: tuple[Topic, int] | None) -> None:
        segments = []
        for found in group.objects:
            if parse_segment_key(found.key) is None:
                self._pass_over(found)
            else:
                segments.append(found)
        if owner is not None:
            topic_id, number = owner[0].topic_id, owner[1]
        elif segments:
            key = parse_segment_key(segments[0].key)
            assert key is not None
            topic_id, number = key.topic_id, key.partition
        else:
            return
        metas = await read_segments(self._store, topic_id, number)
        self._report.segment_count += len(metas)
        item = await self._store.get(records.partition_key(topic_id, number))
        state = self._state(topic_id)
        if state is TopicState.LIVE and item is None:
            state = TopicState.DELETED  # since the sweep began
        judgement = judge_unnamed(
            segments,
            metas,
            topic=state,
            log_start_offset=0 if item is None else Partition.from_item(item).log_start_offset,
            limits=self._settings.limits,
            now_ms=self._clock_ms(),
        )
        self._report.young_count += len(judgement.young)
        for found in judgement.unexplained:
            self._report.unexplained_count += 1
            _name(self._report.unexplained, found.key)
            logger.warning("object without metadata kept", extra={"key": found.key})
        await self._remove(judgement.orphans)
        if owner is not None:
            await self._report_missing(owner[0], metas, group.objects)

    def _pass_over(self, found: ObjectMeta) -> None:
        self._report.foreign_count += 1
        logger.info("foreign object ignored", extra={"key": found.key})

    def _state(self, topic_id: UUID) -> TopicState:
        if topic_id in self._topics:
            return TopicState.LIVE
        # An item that cannot be read may be this topic's: it is left alone like one that
        # retention takes care of.
        is_left_alone = topic_id in self._deleted or bool(self._topics_failed)
        return TopicState.DELETED if is_left_alone else TopicState.UNKNOWN

    async def _remove(self, orphans: Sequence[ObjectMeta]) -> None:
        for found in orphans:
            self._report.orphan_count += 1
            self._report.orphan_bytes += found.size_bytes
            _name(self._report.orphans, found.key)
            logger.info(
                "orphan found" if self._settings.is_dry_run else "orphan removed",
                extra={"key": found.key, "size_bytes": found.size_bytes},
            )
        if orphans and not self._settings.is_dry_run:
            await self._objects.delete([found.key for found in orphans])

    async def _report_missing(
        self, topic: Topic, metas: Sequence[SegmentMeta], objects: Sequence[ObjectMeta]
    ) -> None:
        present = {found.key: found.size_bytes for found in objects}
        keys = [segment_keys(self._cluster_id, topic.name, meta) for meta in metas]
        for meta, key in select_missing(metas, keys, present):
            problem = await self._problem(meta, key)
            if problem is not None:
                self._report.missing_count += 1
                _name(self._report.missing, f"{key}: {problem}")
                logger.error(
                    "object of a segment is missing", extra={"key": key, "problem": problem}
                )

    async def _problem(self, meta: SegmentMeta, key: str) -> str | None:
        """Return what is wrong with a finished segment's object, asked for by itself."""
        size_bytes = meta.index_size_bytes if key.endswith(".index") else meta.size_bytes
        try:
            found = await self._objects.head(key)
            if found.size_bytes == size_bytes:
                return None  # It was written after the listing.
            problem = f"has {found.size_bytes} bytes instead of {size_bytes}"
        except ObjectNotFound:
            problem = "is not there"
        item = await self._store.get(meta.item_id)
        if item is None or SegmentMeta.from_item(item).state is not SegmentState.COPY_FINISHED:
            return None  # Retention has begun to delete it meanwhile.
        return problem


def _group_prefix(key: str) -> str:
    """Return the partition's prefix for what lies below one, the key itself for the rest."""
    parts = key.split("/")
    return key if len(parts) < 4 else "/".join(parts[:3]) + "/"


def _topic_of_manifest(key: str) -> UUID | None:
    """Return the topic's id if the key is of a topic's manifest."""
    cluster_id, _, rest = key.partition("/")
    folder, _, name = rest.partition("/")
    topic, topic_id = folder[:-37], folder[-36:]
    try:
        parsed = UUID(topic_id)
    except ValueError:
        return None
    is_manifest = name == "topic.json" and topic_manifest_key(cluster_id, topic, parsed) == key
    return parsed if is_manifest else None


def _name(names: list[str], name: str) -> None:
    if len(names) < NAMED_IN_REPORT_MAX:
        names.append(name)
