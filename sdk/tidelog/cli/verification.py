"""Checks every tiered segment against its index, its metadata and the segment before it.

Of each COPY_FINISHED segment: both objects are there and as long as the metadata says;
every section of the index object has its CRC; the log has its own CRC and SHA-256, and
so has every batch in it, each where the batch table says; the chained hash follows from
them. Of each partition: offsets without gaps from the log start on, and one chain of
hashes through all of its segments. What is wrong becomes a ``Problem`` that names the
object, and the check goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO

from tidelog_core.errors import CorruptItem, CorruptObject, ObjectNotFound, TidelogError
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState, segment_collection
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import NO_HASH, verify_chain, verify_segment
from tidelog_core.tier.keys import SegmentKeys, segment_keys
from tidelog_core.tier.planning import finished_segments

CHUNK_SIZE_BYTES = 8 << 20
READS_AT_ONCE_MAX = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it must be."""

    partition: TopicPartition
    object: str  # the object's key, or the metadata item's where that is wrong
    problem: str


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What is to be checked of one partition."""

    name: TopicPartition
    partition: Partition
    segments: tuple[SegmentMeta, ...]  # finished ones by base offset
    unreadable: tuple[Problem, ...]  # items that are no segments

    @property
    def size_bytes(self) -> int:
        """The bytes of all the segments."""
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(slots=True)
class Findings:
    """What a check has come to."""

    segment_count: int = 0
    size_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


async def plan(
    store: MetadataStore, image: ClusterImage, topics: Iterable[str]
) -> list[PartitionPlan]:
    """Return what there is to check."""
    plans = []
    for topic in topics:
        for partition in image.partitions(topic):
            name = TopicPartition(topic, partition.partition)
            metas: list[SegmentMeta] = []
            unreadable: list[Problem] = []
            collection = segment_collection(partition.topic_id, partition.partition)
            for item in await store.list(collection):
                try:
                    metas.append(SegmentMeta.from_item(item))
                except CorruptItem as error:
                    key = f"{item.id.collection}/{item.id.key}"
                    unreadable.append(Problem(name, key, error.problem))
            finished = tuple(finished_segments(metas))
            plans.append(PartitionPlan(name, partition, finished, tuple(unreadable)))
    return plans


class Verification:
    """Checks planned partitions. ``on_bytes`` is told what has been read of the segments."""

    def __init__(
        self,
        *,
        cluster_id: str,
        metadata: MetadataStore,
        objects: ObjectStore,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._objects = objects
        self._on_bytes = on_bytes
        self.findings = Findings()

    async def run(self, plans: Sequence[PartitionPlan]) -> AsyncIterator[Problem]:
        """Check all of it, yielding each problem as it is found."""
        for planned in plans:
            async for problem in self._check_partition(planned):
                self.findings.problems.append(problem)
                yield problem

    async def _check_partition(self, planned: PartitionPlan) -> AsyncIterator[Problem]:
        for problem in planned.unreadable:
            yield problem
        checked: list[tuple[SegmentMeta, SegmentKeys, IndexFile | None]] = []
        for segment in planned.segments:
            keys = segment_keys(self._cluster_id, planned.name.topic, segment)
            index, problems = await self._check_segment(planned.name, segment, keys)
            if problems and not await self._is_still_there(segment):
                continue  # Retention has removed it meanwhile.
            self.findings.segment_count += 1
            self.findings.size_bytes += segment.size_bytes
            checked.append((segment, keys, index))
            for problem in problems:
                yield problem
        log_start = await self._log_start_offset(planned.partition)
        for key, text in chain_problems(checked, log_start_offset=log_start):
            yield Problem(planned.name, key, text)

    async def _check_segment(
        self, name: TopicPartition, segment: SegmentMeta, keys: SegmentKeys
    ) -> tuple[IndexFile | None, list[Problem]]:
        """Return the index, None if it is not whole, and what is wrong with the segment."""
        problems: list[Problem] = []
        index: IndexFile | None = None
        try:
            index = await self._read_index(segment, keys.index)
        except TidelogError as error:
            problems.append(Problem(name, keys.index, _describe(error)))
        try:
            await self._check_log(segment, keys.log, index)
        except TidelogError as error:
            problems.append(Problem(name, keys.log, _describe(error)))
        return index, problems

    async def _read_index(self, segment: SegmentMeta, key: str) -> IndexFile:
        data = await self._objects.get(key)
        if len(data) != segment.index_size_bytes:
            raise CorruptObject(
                key, f"it has {len(data)} bytes instead of {segment.index_size_bytes}"
            )
        index = IndexFile.parse(data, key=key)
        for what, found, expected in (
            ("topic id", index.topic_id, segment.topic_id),
            ("partition", index.partition, segment.partition),
            ("segment id", index.segment_id, segment.segment_id),
            ("base offset", index.base_offset, segment.base_offset),
            ("end offset", index.end_offset, segment.end_offset),
            ("leader epoch", index.leader_epoch, segment.leader_epoch),
            ("size of the log", index.log_size_bytes, segment.size_bytes),
            ("greatest timestamp", index.max_timestamp_ms, segment.max_timestamp_ms),
            ("chained hash", index.chained_hash.hex(), segment.chained_hash),
        ):
            if found != expected:
                raise CorruptObject(
                    key, f"its {what} is {found}, the metadata store says {expected}"
                )
        return index

    async def _check_log(self, segment: SegmentMeta, key: str, index: IndexFile | None) -> None:
        """Check the segment's bytes; without an index only that they are all there."""
        found = (await self._objects.head(key)).size_bytes
        if found != segment.size_bytes:
            raise CorruptObject(key, f"it has {found} bytes instead of {segment.size_bytes}")
        if index is None:
            self._on_bytes(segment.size_bytes)
            return
        # A segment may be larger than memory: it goes through an unnamed file.
        with tempfile.TemporaryFile(prefix="tidelog-verify-") as file:
            await self._download(key, segment.size_bytes, file)
            await asyncio.to_thread(_verify_file, key, file, segment.size_bytes, index)

    async def _download(self, key: str, size_bytes: int, file: IO[bytes]) -> None:
        starts = iter(range(0, size_bytes, CHUNK_SIZE_BYTES))
        while some := list(itertools.islice(starts, READS_AT_ONCE_MAX)):
            chunks = await asyncio.gather(
                *(
                    self._objects.get_range(key, start, min(start + CHUNK_SIZE_BYTES, size_bytes))
                    for start in some
                )
            )
            for chunk in chunks:
                file.write(chunk)
                self._on_bytes(len(chunk))
        file.flush()

    async def _is_still_there(self, segment: SegmentMeta) -> bool:
        item = await self._metadata.get(segment.item_id)
        return item is not None and SegmentMeta.from_item(item).state is SegmentState.COPY_FINISHED

    async def _log_start_offset(self, partition: Partition) -> int:
        item = await self._metadata.get(partition.item_id)
        return (
            partition.log_start_offset
            if item is None
            else Partition.from_item(item).log_start_offset
        )


def chain_problems(
    checked: Sequence[tuple[SegmentMeta, SegmentKeys, IndexFile | None]], *, log_start_offset: int
) -> list[tuple[str, str]]:
    """Return (object key, problem) for every place where a segment does not follow the last.

    A first segment that chains to one before it was not the partition's first: the
    segments before it may be gone only if the log starts after them.
    """
    problems = []
    if checked:
        first, keys, index = checked[0]
        is_first = index is None or index.previous_hash == NO_HASH
        if not is_first and log_start_offset < first.base_offset:
            gap = f"offsets [{log_start_offset}, {first.base_offset}) are missing before it"
            problems.append((keys.log, gap))
    for (before, before_keys, before_index), (after, keys, index) in itertools.pairwise(checked):
        if after.base_offset > before.end_offset:
            gap = f"offsets [{before.end_offset}, {after.base_offset}) are missing before it"
            problems.append((keys.log, gap))
        elif before_index is not None and index is not None:
            try:
                verify_chain([(before_keys.index, before_index), (keys.index, index)])
            except CorruptObject as error:
                problems.append((error.key, error.problem))
    return problems


def _verify_file(key: str, file: IO[bytes], size_bytes: int, index: IndexFile) -> None:
    found = os.fstat(file.fileno()).st_size
    if found != size_bytes:
        raise CorruptObject(key, f"{found} bytes could be read instead of {size_bytes}")
    if size_bytes == 0:
        verify_segment(key, b"", index)
        return
    with mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) as log:
        verify_segment(key, log, index)


def _describe(error: TidelogError) -> str:
    if isinstance(error, CorruptObject):
        return error.problem
    if isinstance(error, ObjectNotFound):
        return "it is not there"
    return f"it could not be read: {error}"
