"""The records of a partition that chains have and the tier lacks, as a reader sees them.

Slices of committed objects come in any order (``add``). ``advance`` puts those of the partition's
leader epochs one after the other, from the tier's end on, and follows its transactions. Up to the
tier's end every transaction has ended: a segment is tiered only below the last stable offset. So
the batch rows of the tail alone say which of its transactions are aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.diskless.tail.tail_slice import (
    PackedSlices,
    base_offset_of,
    end_offset_of,
    leader_epoch_of,
    unpack_slice,
)
from tidelog_core.diskless.wal.rows import NO_MARKER, BatchRow
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.epoch_chains import EpochChains
from tidelog_core.records.control import ControlType

_TRANSACTIONAL = 0x10
_CONTROL = 0x20


class TailView(NamedTuple):
    """A partition's tail, from the tier's end on."""

    start_offset: int  # the first slice may begin below
    end_offset: int  # exclusive: of the committed records
    stable_offset: int  # what read_committed may read ends here
    slices: PackedSlices
    aborted: tuple[AbortedTransaction, ...]
    # ``None``: nothing is known to be above the end. Else these offsets are nowhere.
    missing: tuple[int, int] | None


class PartitionTail:
    """The tail of one partition. Used by one task."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[bytes]] = {}  # packed, by leader epoch
        self._slices: deque[bytes] = deque()  # packed
        self._start = self._end = 0
        self._epoch = -1  # of the last slice that was taken
        self._ongoing: dict[int, int] = {}  # producer id → first offset in the tail
        self._aborted: deque[AbortedTransaction] = deque()

    def add(self, packed: bytes) -> None:
        """Add a slice of a committed object; one that was added before does no harm."""
        epoch = leader_epoch_of(packed)
        if end_offset_of(packed) > self._end and epoch >= self._epoch:
            self._waiting.setdefault(epoch, []).append(packed)

    def advance(
        self, tiered_end: int, chains: EpochChains | None, *, is_over_gaps: bool = False
    ) -> TailView:
        """Return the tail from the tier's end on, or the log start if that is greater.

        ``chains`` are the chains in the partition's item, read before they were listed: slices of
        later epochs wait. ``None``: there is no item, and all found epochs follow each other.
        Without ``is_over_gaps`` the tail ends where offsets are missing.
        """
        self._start = max(self._start, tiered_end)
        missing = None
        for epoch, next_first in self._epochs(chains):
            missing = self._take_epoch(epoch, next_first, is_over_gaps=is_over_gaps) or missing
            if missing is not None and not is_over_gaps:
                break
        self._forget()
        end = max(self._end, self._start)
        stable = min([end, *self._ongoing.values()])
        return TailView(
            self._start, end, stable, PackedSlices(self._slices), tuple(self._aborted), missing
        )

    def _epochs(self, chains: EpochChains | None) -> Sequence[tuple[int, int | None]]:
        """Return the leader epochs, each with the first offset of the next one if known."""
        if chains is None:
            return [(epoch, None) for epoch in sorted(self._waiting)]
        if chains and self._start < chains[0].first_offset:
            return []  # The records below were never in a chain, and are not tiered yet.
        firsts: list[int | None] = [*(one.first_offset for one in chains[1:]), None]
        return [(one.leader_epoch, end) for one, end in zip(chains, firsts, strict=True)]

    def _take_epoch(
        self, epoch: int, next_first: int | None, *, is_over_gaps: bool
    ) -> tuple[int, int] | None:
        """Take the slices that follow; return the offsets that are missing in the epoch."""
        if epoch < self._epoch:
            return None
        missing = None
        waiting = deque(sorted(self._waiting.pop(epoch, ()), key=base_offset_of))
        while waiting:
            packed = waiting[0]
            base_offset, end = base_offset_of(packed), max(self._end, self._start)
            if next_first is not None and base_offset >= next_first:
                break  # Others have led from there on: it is no part of the log.
            if base_offset > end:
                missing = (end, base_offset)
                if not is_over_gaps:
                    self._waiting[epoch] = list(waiting)
                    return missing
                self._ongoing.clear()
                self._end = base_offset
            waiting.popleft()
            if end_offset_of(packed) > self._end:
                self._take(packed)
        if next_first is not None and next_first > max(self._end, self._start):
            missing = (max(self._end, self._start), next_first)
            if is_over_gaps:
                self._ongoing.clear()
                self._end = next_first
        return missing

    def _take(self, packed: bytes) -> None:
        one = unpack_slice(packed)
        self._epoch = one.leader_epoch
        if one.base_offset > self._end:
            # The records between are tiered, and their transactions ended.
            self._ongoing.clear()
            self._end = one.base_offset
        for row in one.batches:
            if row.base_offset >= self._end:
                self._follow(row)
        self._end = one.end_offset
        if one.end_offset > self._start:
            self._slices.append(packed)

    def _follow(self, row: BatchRow) -> None:
        if not row.attributes & _TRANSACTIONAL:
            return
        if not row.attributes & _CONTROL:
            self._ongoing.setdefault(row.producer_id, row.base_offset)
        elif row.marker != NO_MARKER:
            first = self._ongoing.pop(row.producer_id, None)
            if first is not None and row.marker == ControlType.ABORT:
                stable = min([row.base_offset, *self._ongoing.values()])
                self._aborted.append(
                    AbortedTransaction(row.producer_id, first, row.base_offset, stable)
                )

    def _forget(self) -> None:
        """Forget the slices that are tiered."""
        while self._slices and end_offset_of(self._slices[0]) <= self._start:
            self._slices.popleft()
        while self._aborted and self._aborted[0].last_offset < self._start:
            self._aborted.popleft()
        # A tiered part of a transaction says that it has ended; the marker is in the tail.
        for producer, first in self._ongoing.items():
            self._ongoing[producer] = max(first, self._start)
        for epoch in [epoch for epoch in self._waiting if epoch < self._epoch]:
            del self._waiting[epoch]
