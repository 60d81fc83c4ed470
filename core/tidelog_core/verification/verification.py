"""Checks every tiered segment against its index, its metadata and the segments before it.

For each segment that counts: both objects exist and have the sizes in the metadata; every section
of the index object has its CRC; the log has its own CRC and SHA-256; every batch in it is valid and
agrees with the batch table; the chained hash follows from them. For each partition: offsets have no
gaps from the log start on, and every segment continues the chain of hashes. Every fault becomes a
``Problem`` that names the object, and the check continues. The plans say which segments count: see
``plan``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import (
    CHAIN_PROBLEM,
    NO_HASH,
    continued_hashes,
    continues_chain,
)
from tidelog_core.tier.keys import SegmentKeys, segment_keys
from tidelog_core.verification.segment_check import Problem, check_segment, read_index

INDEXES_AT_ONCE_MAX = 16

_Checked = tuple[SegmentMeta, SegmentKeys, IndexFile | None]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The checks of one partition."""

    name: TopicPartition
    log_start_offset: int
    segments: tuple[SegmentMeta, ...]  # those that count, by base offset
    problems: tuple[Problem, ...] = ()  # found already

    @property
    def size_bytes(self) -> int:
        """The bytes of all the segments."""
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(slots=True)
class Findings:
    """The results of a check."""

    segment_count: int = 0
    size_bytes: int = 0
    chain_object_count: int = 0  # of diskless topics
    chain_size_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    leftovers: list[Problem] = field(default_factory=list)

    def document(self, *, problems_max: int | None = None) -> dict[str, object]:
        """Return the findings for JSON, with at most so many problems of each kind."""
        chains: dict[str, object] = {}
        if self.chain_object_count:
            chains = {
                "chain_objects": self.chain_object_count,
                "chain_bytes": self.chain_size_bytes,
            }
        return {
            "ok": not self.problems,
            "segments": self.segment_count,
            "bytes": self.size_bytes,
            **chains,
            "problem_count": len(self.problems),
            "leftover_count": len(self.leftovers),
            "problems": [problem_row(problem) for problem in self.problems[:problems_max]],
            "leftovers": [problem_row(leftover) for leftover in self.leftovers[:problems_max]],
        }


def problem_row(problem: Problem) -> dict[str, object]:
    """Return the problem for JSON."""
    name = problem.partition
    return {
        "topic": None if name is None else name.topic,
        "partition": None if name is None else name.partition,
        "object": problem.object,
        "problem": problem.problem,
    }


class Truth(Protocol):
    """The source of the segments that count. Queried again when one has a problem."""

    async def is_still_there(self, segment: SegmentMeta, keys: SegmentKeys) -> bool:
        """Whether the segment still counts: retention may have removed it."""

    async def log_start_offset(self, planned: PartitionPlan) -> int:
        """The partition's current log start offset."""


@dataclass(frozen=True, slots=True)
class CheckPosition:
    """The progress of a verification: the partitions before this one are checked."""

    partition: TopicPartition
    start: int | None  # segments of it that begin before this offset are checked; None: all are


OnChecked = Callable[[CheckPosition], Awaitable[None]]
"""Hears of each checked segment. May raise ``Interrupted``, to be continued from there."""


async def _unheard(_position: CheckPosition) -> None:
    pass


class Verification:
    """Checks planned partitions. ``on_bytes`` gets the number of bytes read of the segments."""

    def __init__(
        self,
        *,
        cluster_id: str,
        truth: Truth,
        objects: ObjectStore,
        on_bytes: Callable[[int], None],
        on_checked: OnChecked = _unheard,
    ) -> None:
        self._cluster_id = cluster_id
        self._truth = truth
        self._objects = objects
        self._on_bytes = on_bytes
        self._on_checked = on_checked
        self.findings = Findings()

    async def run(
        self, plans: Sequence[PartitionPlan], *, start: int = 0
    ) -> AsyncIterator[Problem]:
        """Check all of it, yielding each problem as it is found.

        Segments that begin before ``start`` were checked by an earlier verification.
        """
        for planned in plans:
            async for problem in self._check_partition(planned, start):
                self.add(problem)
                yield problem
            await self._on_checked(CheckPosition(planned.name, None))

    def add(self, problem: Problem) -> None:
        """Add a problem that was found elsewhere."""
        findings = self.findings
        (findings.leftovers if problem.is_leftover else findings.problems).append(problem)

    async def _check_partition(self, planned: PartitionPlan, start: int) -> AsyncIterator[Problem]:
        if start == 0:
            for problem in planned.problems:
                yield problem
        before = [segment for segment in planned.segments if segment.base_offset < start]
        checked: list[_Checked] = []
        for segment in planned.segments[len(before) :]:
            if segment.base_offset > start:
                start = segment.base_offset
                await self._on_checked(CheckPosition(planned.name, start))
            keys = segment_keys(self._cluster_id, planned.name.topic, segment)
            index, problems = await check_segment(
                self._objects, planned.name, segment, keys, on_bytes=self._on_bytes
            )
            if problems and not await self._truth.is_still_there(segment, keys):
                continue  # Retention has removed it in between.
            self.findings.segment_count += 1
            self.findings.size_bytes += segment.size_bytes
            checked.append((segment, keys, index))
            for problem in problems:
                yield problem
        checked = [*await self._indexes_again(planned.name.topic, before), *checked]
        log_start = await self._truth.log_start_offset(planned)
        for key, text in chain_problems(checked, log_start_offset=log_start):
            yield Problem(planned.name, key, text)

    async def _indexes_again(self, topic: str, segments: Sequence[SegmentMeta]) -> list[_Checked]:
        """Return segments that were checked before, with their indexes.

        An index that cannot be read was a problem then.
        """
        slots = asyncio.Semaphore(INDEXES_AT_ONCE_MAX)

        async def read(segment: SegmentMeta) -> _Checked:
            keys = segment_keys(self._cluster_id, topic, segment)
            async with slots:
                try:
                    return segment, keys, await read_index(self._objects, segment, keys.index)
                except (CorruptObject, ObjectNotFound):
                    return segment, keys, None

        return await asyncio.gather(*map(read, segments))


def chain_problems(
    checked: Sequence[tuple[SegmentMeta, SegmentKeys, IndexFile | None]], *, log_start_offset: int
) -> list[tuple[str, str]]:
    """Return (object key, problem) for every place where a segment does not follow the others.

    A first segment that chains to one before it was not the partition's first: the
    segments before it may be gone only if the log starts after them.
    """
    problems: list[tuple[str, str]] = []
    bases: dict[bytes, int] = {}
    first_end = end_offset = 0
    for segment, keys, index in checked:
        if not bases:
            is_first = index is None or index.previous_hash == NO_HASH
            expected = segment.base_offset if is_first else log_start_offset
            first_end = end_offset = segment.end_offset
        else:
            expected = end_offset
        if expected < segment.base_offset:
            gap = f"offsets [{expected}, {segment.base_offset}) are missing before it"
            problems.append((keys.log, gap))
        elif (
            bases
            and index is not None
            and not continues_chain(
                segment.base_offset, index.previous_hash, first_end=first_end, bases=bases
            )
        ):
            problems.append((keys.index, CHAIN_PROBLEM))
        bases[bytes.fromhex(segment.chained_hash)] = segment.base_offset
        if index is not None:
            bases.update(continued_hashes(index))
        end_offset = max(end_offset, segment.end_offset)
    return problems
