"""The progress of an erasure, so that another process can continue it.

The position is small; the process that runs the erasure stores it. The receipt lists the replaced
segments; it may be large, and is in the bucket. A segment is noted in the receipt before it is
swapped in. After an interruption between the two, the same records are found again: then the new
note replaces the old one, so none is counted twice and none is forgotten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.erasure.tier import ErasedSegment
from tidelog_core.erasure.wal_copies import Frontier

NOT_ENDED = "the erasure has not ended"


class Phase(Enum):
    """The phases of an erasure, in order."""

    REQUESTING = "requesting"  # of the replicas
    WAITING = "waiting"  # for them
    SEARCHING = "searching"  # the tier
    DELETING = "deleting"  # the replaced objects
    CHAINS = "chains"  # waiting until they have no copy; of diskless topics only
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Position:
    """The next step of an erasure."""

    phase: Phase = Phase.REQUESTING
    partition: int = 0  # the number of those that the phase is done with
    after: int = 0  # segments of the next one that end here or before are searched
    wait_ends_ms: int | None = None  # Unix time; None: nothing is waited for
    frontier: Frontier | None = None  # of the chains; None: not looked yet


@dataclass(slots=True)
class ErasureProgress:
    """An erasure between two steps. Changed by the erasure, and stored by ``Checkpoint``."""

    erasure_id: UUID  # another one for each process: so no receipt has two writers
    holder: UUID | None  # of the claims on partitions; the same for every process
    requested_ms: int
    position: Position = field(default_factory=Position)
    partitions: dict[int, PartitionErasure] = field(default_factory=dict)  # that were begun

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self.position = Position(phase)

    def searched(self, end_offset: int) -> None:
        """Note that the next partition is searched up to there."""
        self.position = dataclasses.replace(self.position, after=end_offset, wait_ends_ms=None)

    def next_partition(self) -> None:
        """Note that the phase is done with one more partition."""
        at = self.position
        self.position = Position(at.phase, at.partition + 1)

    def may_wait(self, wait_ms: int, *, now_ms: int) -> bool:
        """Return whether a wait goes on, which ends ``wait_ms`` after the first call."""
        at = self.position
        ends_ms = now_ms + wait_ms
        if at.wait_ends_ms is not None:
            ends_ms = min(ends_ms, at.wait_ends_ms)  # The clock may have been set back.
        self.position = dataclasses.replace(at, wait_ends_ms=ends_ms)
        return now_ms < ends_ms

    def end_wait(self) -> None:
        """Note that nothing is waited for any more: the next wait has all its time."""
        self.position = dataclasses.replace(self.position, wait_ends_ms=None)

    def wal_gone(self, partition: int, now_ms: int) -> None:
        """Note that no chain has a copy of the erased records."""
        found = self.partitions[partition]
        self.partitions[partition] = dataclasses.replace(found, wal_gone_ms=now_ms)

    def note(self, partition: int, erased: ErasedSegment) -> None:
        """Note a segment in place of earlier notes of the same records."""
        found, offsets = self.partitions[partition], frozenset(erased.removed_offsets)
        others = [
            one
            for one in found.erased
            if one.end_offset <= erased.base_offset
            or one.base_offset >= erased.end_offset
            or offsets.isdisjoint(one.removed_offsets)
        ]
        kept = tuple(sorted((*others, erased), key=lambda one: one.base_offset))
        self.partitions[partition] = dataclasses.replace(found, erased=kept)

    def forget(self, partition: int, erased: ErasedSegment) -> None:
        """Remove a note that did not come true."""
        found = self.partitions[partition]
        kept = tuple(one for one in found.erased if one != erased)
        self.partitions[partition] = dataclasses.replace(found, erased=kept)

    def add_problem(self, partition: int, problem: str) -> None:
        """Note a part of the erasure that a partition lacks."""
        found = self.partitions[partition]
        if problem not in found.problems:
            problems = (*found.problems, problem)
            self.partitions[partition] = dataclasses.replace(found, problems=problems)

    def receipt(
        self, *, topic: str, topic_id: UUID, key_sha256: str, numbers: Sequence[int], now_ms: int
    ) -> ErasureReceipt:
        """Return the receipt of the erasure so far, for these partitions."""
        found = [self.partitions.get(number, _not_begun(number)) for number in numbers]
        if self.position.phase is not Phase.ENDED:
            found = [
                dataclasses.replace(one, problems=(*one.problems, NOT_ENDED))
                if NOT_ENDED not in one.problems
                else one
                for one in found
            ]
        return ErasureReceipt(
            erasure_id=self.erasure_id,
            topic=topic,
            topic_id=topic_id,
            key_sha256=key_sha256,
            requested_ms=self.requested_ms,
            ended_ms=now_ms,
            partitions=tuple(found),
        )

    def resume(self, receipt: ErasureReceipt) -> None:
        """Take over what an earlier process has done, as its receipt says."""
        for one in receipt.partitions:
            problems = tuple(problem for problem in one.problems if problem != NOT_ENDED)
            self.partitions[one.partition] = dataclasses.replace(one, problems=problems)


Checkpoint = Callable[[bool], Awaitable[None]]
"""Stores the progress: with true at once; with false when it is time, and it may raise
``Interrupted``."""


def _not_begun(number: int) -> PartitionErasure:
    return PartitionErasure(partition=number, up_to=None, erased=(), replicas=(), problems=())
