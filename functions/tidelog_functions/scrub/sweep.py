"""A sweep over the bucket and the metadata in parallel, in the order of keys.

The listing is processed in groups: all objects of one partition are adjacent. Between two
groups are the partitions that the metadata knows but the bucket does not. For each
partition the objects are listed first and its items read afterwards, which makes
``judge_unnamed`` correct during copies and retention.

A sweep near its time limit returns its position; the next one continues after it, and
lists from there.

Unneeded objects are removed once they have been seen in that state for long enough,
measured only by the sweeps' times. The first times are stored in the metadata store,
beside the metadata that they depend on: another store, as after a restoration, starts
without any.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.errors import CorruptItem, ObjectNotFound, TidelogError
from tidelog_core.metadata import records
from tidelog_core.metadata.records import (
    Partition,
    ScrubOrphans,
    SegmentMeta,
    SegmentState,
    Topic,
)
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.retention.orphans import (
    Candidate,
    TopicState,
    deletion_age_limit_ms,
    judge_log_starts,
    judge_unnamed,
    manifest_age_limit_ms,
    select_missing,
    select_old,
    state_of_topic,
)
from tidelog_core.tier.keys import (
    cluster_manifest_key,
    is_probe_key,
    parse_deletion_key,
    parse_erasure_receipt_key,
    parse_log_start_key,
    parse_schema_key,
    parse_segment_key,
    parse_topic_manifest_key,
    partition_prefix,
    segment_keys,
    store_identity_key,
)
from tidelog_core.tier.lifecycle import delete_objects, read_segments

from tidelog_functions.cluster_reader import Topics
from tidelog_functions.invocation import OutOfTime
from tidelog_functions.scrub.chains import (
    ChainReport,
    ChainScrub,
    KnownTopics,
    group_of_chain,
    is_chain_prefix,
)
from tidelog_functions.scrub.scrub_run import ScrubRun

logger = logging.getLogger(__name__)

NAMED_IN_REPORT_MAX = 100  # of each kind; all are counted
# Per partition, about 100 bytes each; more follow once some of these are gone.
ORPHANS_MAX = 1000


@dataclass(slots=True)
class Report:
    """The findings and actions of a sweep."""

    is_dry_run: bool
    object_count: int = 0
    segment_count: int = 0
    orphan_count: int = 0  # removed, or found in a dry run
    orphan_bytes: int = 0
    young_count: int = 0
    foreign_count: int = 0
    unexplained_count: int = 0
    missing_count: int = 0
    orphans: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    chains: ChainReport = field(default_factory=ChainReport)
    failed: dict[str, TidelogError] = field(default_factory=dict)
    is_finished: bool = True
    resumes_after: str = ""


@dataclass(frozen=True, slots=True)
class _Group:
    """The objects below one partition's prefix, or one object of no partition."""

    prefix: str
    objects: Sequence[ObjectMeta]


class Sweep:
    """One sweep over one cluster. For one use."""

    def __init__(self, run: ScrubRun, topics: Topics) -> None:
        self._run = run
        self._topics = {topic.topic_id: topic for topic in topics.live}
        self._topics_failed = topics.failed
        self._deleted = {tombstone.topic_id for tombstone in topics.deleted}
        known = KnownTopics(self._topics, self._deleted, is_complete=not topics.failed)
        self._chains = ChainScrub(run, known)
        self._report = Report(
            run.settings.is_dry_run, chains=self._chains.report, failed=dict(topics.failed)
        )
        # By prefix: when each object was first seen; None if the item cannot be read.
        self._orphans: dict[str, Mapping[str, int] | None] = {}

    async def run(self, *, resumes_after: str) -> Report:
        """Sweep from after that key on, until the time limit."""
        report = self._report
        report.resumes_after = resumes_after
        cluster_id = self._run.cluster_id
        known = {
            partition_prefix(cluster_id, topic.name, topic.topic_id, number): (topic, number)
            for topic in self._topics.values()
            for number in range(topic.partition_count)
        }
        await self._load_orphans()
        await self._guarded("lifecycle rules", self._chains.check_rules())
        expected = known.keys() | self._orphans.keys()
        waiting = sorted((p for p in expected if p > resumes_after), reverse=True)
        try:
            async for group in self._groups(resumes_after):
                if group.prefix <= resumes_after:
                    continue
                while waiting and waiting[-1] < group.prefix:
                    await self._visit(_Group(waiting.pop(), ()), known)
                if waiting and waiting[-1] == group.prefix:
                    waiting.pop()
                await self._visit(group, known)
            while waiting:
                await self._visit(_Group(waiting.pop(), ()), known)
            await self._guarded("chains", self._chains.check_missing())
        except OutOfTime:
            report.is_finished = False
        else:
            report.resumes_after = ""
        return report

    async def _groups(self, resumes_after: str) -> AsyncIterator[_Group]:
        # After everything that the tier has below the finished prefix. Foreign objects may still
        # follow: their names may contain any character.
        start_after = f"{resumes_after}~" if resumes_after.endswith("/") else resumes_after
        prefix, objects, cluster_id = "", list[ObjectMeta](), self._run.cluster_id
        async for found in self._run.objects.list(f"{cluster_id}/", start_after=start_after):
            of = group_of_chain(cluster_id, found.key) or _group_prefix(found.key)
            if of != prefix:
                if objects:
                    yield _Group(prefix, objects)
                prefix, objects = of, []
            objects.append(found)
        if objects:
            yield _Group(prefix, objects)

    async def _visit(self, group: _Group, known: dict[str, tuple[Topic, int]]) -> None:
        self._run.limit.require()
        self._report.object_count += len(group.objects)
        if group.prefix.endswith("/"):
            return await self._partition(group, known)
        candidates = []
        for found in group.objects:
            age_limit_ms = await self._age_limit_ms(found)
            if age_limit_ms is not None:
                candidates.append(Candidate(found, age_limit_ms))
        await self._remove_old(group.prefix, candidates)
        self._report.resumes_after = group.prefix
        return None

    async def _age_limit_ms(self, found: ObjectMeta) -> int | None:
        """Return the removal age of an object of no partition, ``None`` to keep it."""
        limits = self._run.settings.limits
        # A receipt stays as long as the objects that describe its topic.
        topic_id = parse_topic_manifest_key(found.key) or parse_erasure_receipt_key(found.key)
        if topic_id is not None:
            return manifest_age_limit_ms(self._state(topic_id), limits)
        deletion = parse_deletion_key(found.key)
        if deletion is not None:
            state = self._state(deletion.topic_id)
            if await self._run.store.get(records.deleted_topic_key(deletion.topic_id)) is not None:
                state = TopicState.DELETED  # since the sweep started
            elif state is TopicState.UNKNOWN and await self._has_any(f"{deletion.folder}/"):
                return None  # It prevents a restoration of deleted topics.
            return deletion_age_limit_ms(state, limits)
        if is_probe_key(found.key):  # A node's start was cut short.
            return limits.orphan_age_ms
        cluster_id = self._run.cluster_id
        of_cluster = (cluster_manifest_key(cluster_id), store_identity_key(cluster_id))
        is_known = parse_schema_key(found.key) is not None  # The registry removes its own.
        if not is_known and found.key not in of_cluster:
            self._pass_over(found)
        return None

    async def _has_any(self, prefix: str) -> bool:
        async for _ in self._run.objects.list(prefix):
            return True
        return False

    async def _partition(self, group: _Group, known: dict[str, tuple[Topic, int]]) -> None:
        """Compare one partition's objects with its items, or scrub one chain.

        Failures do not stop others.
        """
        self._run.limit.require()
        if is_chain_prefix(self._run.cluster_id, group.prefix):
            await self._guarded(group.prefix, self._scrub_chain(group))
        else:
            await self._guarded(group.prefix, self._compare(group, known.get(group.prefix)))
        self._report.resumes_after = group.prefix

    async def _guarded(self, what: str, step: Awaitable[None]) -> None:
        """Do the step; a failure is reported under this name, and does not stop others."""
        try:
            await step
        except OutOfTime:
            raise
        except TidelogError as error:
            self._report.failed[what] = error
            problem = f"{type(error).__name__}: {error}"
            logger.error("scrub failed", extra={"partition": what, "reason": problem})

    async def _scrub_chain(self, group: _Group) -> None:
        times = await self._chains.visit(group.objects, self._orphans.get(group.prefix) or {})
        await self._store_times(group.prefix, times)

    async def _compare(self, group: _Group, owner: tuple[Topic, int] | None) -> None:
        segments, log_starts = self._by_kind(group)
        if owner is not None:
            topic_id, number = owner[0].topic_id, owner[1]
        elif segments or log_starts:
            first = (segments + log_starts)[0].key
            key = parse_segment_key(first) or parse_log_start_key(first)
            assert key is not None
            topic_id, number = key.topic_id, key.partition
        else:
            return await self._remove_old(group.prefix, ())
        metas = await read_segments(self._run.store, topic_id, number)
        self._report.segment_count += len(metas)
        item = await self._run.store.get(records.partition_key(topic_id, number))
        partition = None if item is None else Partition.from_item(item)
        state = self._state(topic_id)
        if state is TopicState.LIVE and partition is None:
            state = TopicState.DELETED  # since the sweep started
        log_start_offset = 0 if partition is None else partition.log_start_offset
        limits = self._run.settings.limits
        judgement = judge_unnamed(
            segments,
            metas,
            topic=state,
            log_start_offset=log_start_offset,
            restored_log_start=0 if partition is None else partition.restored_log_start,
            limits=limits,
        )
        obsolete = judge_log_starts(
            log_starts, topic=state, log_start_offset=log_start_offset, limits=limits
        )
        for found in judgement.unexplained:
            self._report.unexplained_count += 1
            _name(self._report.unexplained, found.key)
            logger.warning("object without metadata kept", extra={"key": found.key})
        await self._remove_old(group.prefix, judgement.candidates + obsolete.candidates)
        if owner is not None:
            await self._report_missing(owner[0], metas, group.objects)
        return None

    def _by_kind(self, group: _Group) -> tuple[list[ObjectMeta], list[ObjectMeta]]:
        """Return the group's objects of segments and its log starts; count all others."""
        segments: list[ObjectMeta] = []
        log_starts: list[ObjectMeta] = []
        for found in group.objects:
            if parse_segment_key(found.key) is not None:
                segments.append(found)
            elif parse_log_start_key(found.key) is not None:
                log_starts.append(found)
            else:
                self._pass_over(found)
        return segments, log_starts

    def _pass_over(self, found: ObjectMeta) -> None:
        self._report.foreign_count += 1
        logger.info("foreign object ignored", extra={"key": found.key})

    def _state(self, topic_id: UUID) -> TopicState:
        return state_of_topic(
            topic_id,
            live=self._topics,
            deleted=self._deleted,
            is_complete=not self._topics_failed,
        )

    async def _load_orphans(self) -> None:
        for item in await self._run.store.list(records.SCRUB_ORPHANS_COLLECTION):
            try:
                self._orphans[item.id.key] = ScrubOrphans.from_item(item).first_seen_ms
            except CorruptItem as error:
                # The item is written again: its orphans count as first seen now.
                logger.warning(
                    "orphan records cannot be read, ages start again", extra={"reason": str(error)}
                )
                self._orphans[item.id.key] = None

    async def _remove_old(self, prefix: str, candidates: Sequence[Candidate]) -> None:
        """Remove the group's orphans that are old enough; store the first times of the others.

        In this order a crash leaves records of removed orphans, which the next sweep drops.
        """
        before, now_ms = self._orphans.get(prefix, {}), self._run.clock_ms()
        # A future time comes from a wrong clock.
        seen = {prefix + name: min(ms, now_ms) for name, ms in (before or {}).items()}
        old = select_old(candidates, seen, now_ms=now_ms)
        gone = {found.key for found in old}
        young = [one.found.key for one in candidates if one.found.key not in gone]
        self._report.young_count += len(young)
        await self._remove(old)
        first_seen_ms = {key.removeprefix(prefix): seen.get(key, now_ms) for key in young}
        oldest = sorted(first_seen_ms, key=first_seen_ms.__getitem__)[:ORPHANS_MAX]
        await self._store_times(prefix, {name: first_seen_ms[name] for name in sorted(oldest)})

    async def _store_times(self, prefix: str, times: Mapping[str, int]) -> None:
        """Store when the group's orphans were first seen, if that has changed."""
        if self._run.settings.is_dry_run or times == self._orphans.get(prefix, {}):
            return
        orphans = ScrubOrphans(prefix=prefix, first_seen_ms=times)
        body = orphans.to_body() if times else None
        await self._run.store.commit([Write(orphans.item_id, body, ANY_VERSION, False)])

    async def _remove(self, orphans: Sequence[ObjectMeta]) -> None:
        for found in orphans:
            self._report.orphan_count += 1
            self._report.orphan_bytes += found.size_bytes
            _name(self._report.orphans, found.key)
            logger.info(
                "orphan found" if self._run.settings.is_dry_run else "orphan removed",
                extra={"key": found.key, "size_bytes": found.size_bytes},
            )
        if orphans and not self._run.settings.is_dry_run:
            await delete_objects(self._run.objects, [found.key for found in orphans])

    async def _report_missing(
        self, topic: Topic, metas: Sequence[SegmentMeta], objects: Sequence[ObjectMeta]
    ) -> None:
        present = {found.key: found.size_bytes for found in objects}
        keys = [segment_keys(self._run.cluster_id, topic.name, meta) for meta in metas]
        for meta, key in select_missing(metas, keys, present):
            problem = await self._problem(meta, key)
            if problem is not None:
                self._report.missing_count += 1
                _name(self._report.missing, f"{key}: {problem}")
                logger.error(
                    "object of a segment is missing", extra={"key": key, "reason": problem}
                )

    async def _problem(self, meta: SegmentMeta, key: str) -> str | None:
        """Return the problem of a finished segment's object, read individually."""
        size_bytes = meta.index_size_bytes if key.endswith(".index") else meta.size_bytes
        try:
            found = await self._run.objects.head(key)
            if found.size_bytes == size_bytes:
                return None  # It was written after the listing.
            problem = f"has {found.size_bytes} bytes instead of {size_bytes}"
        except ObjectNotFound:
            problem = "is not there"
        item = await self._run.store.get(meta.item_id)
        if item is None or SegmentMeta.from_item(item).state is not SegmentState.COPY_FINISHED:
            return None  # Retention has started to delete it since.
        return problem


def _group_prefix(key: str) -> str:
    """Return the partition's prefix of a key below one, or the key itself."""
    parts = key.split("/")
    return key if len(parts) < 4 else "/".join(parts[:3]) + "/"


def _name(names: list[str], name: str) -> None:
    if len(names) < NAMED_IN_REPORT_MAX:
        names.append(name)
