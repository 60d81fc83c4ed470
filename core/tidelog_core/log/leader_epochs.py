"""Maps leader epochs to their start offsets: (epoch, start offset), both ascending.

A follower uses it to find where its log diverges from the leader's. The checkpoint file
is written before the recovery point moves, so it has every epoch of flushed batches.
Recovery reads the epochs of later batches from the batches.
Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from tidelog_core.model import NO_LEADER_EPOCH, NO_OFFSET

EpochEntry = tuple[int, int]  # epoch, its start offset


class LeaderEpochs:
    """The epochs of one log, oldest first."""

    __slots__ = ("_entries", "is_dirty")

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.is_dirty = False  # whether the checkpoint file lacks a change

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All epochs, oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1][0] if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that ``epoch`` starts at ``start_offset``, unless it is known to start before.

        Entries that contradict the new one (later offset or higher epoch) go.
        """
        entries = self._entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start_offset:
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((epoch, start_offset))
        self.is_dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """Return the greatest epoch at or below ``epoch`` and the offset where it ends.

        (-1, -1) if ``epoch`` is newer than the latest. An epoch older than the first ends where
        the first one starts.
        """
        if not self._entries or epoch > self.latest or epoch < 0:
            return NO_LEADER_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        index = bisect_right(self._entries, epoch, key=_epoch)
        floor_epoch = self._entries[index - 1][0] if index else epoch
        return floor_epoch, self._entries[index][1]

    def epoch_for(self, offset: int) -> int:
        """Return the epoch that wrote ``offset``, -1 if it is not known."""
        return _epoch_for(self._entries, offset)

    def within(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """Return the epochs of ``[start_offset, end_offset)``, the first cut to its start."""
        first = max(0, bisect_right(self._entries, start_offset, key=_start_offset) - 1)
        last = bisect_left(self._entries, end_offset, key=_start_offset)
        return tuple(
            (epoch, max(start, start_offset)) for epoch, start in self._entries[first:last]
        )

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at ``end_offset`` or later."""
        kept = bisect_left(self._entries, end_offset, key=_start_offset)
        if kept < len(self._entries):
            del self._entries[kept:]
            self.is_dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end at or below ``start_offset``; cut the epoch that spans it."""
        index = bisect_right(self._entries, start_offset, key=_start_offset) - 1
        if index < 0 or (index == 0 and self._entries[0][1] == start_offset):
            return
        self._entries[: index + 1] = [(self._entries[index][0], start_offset)]
        self.is_dirty = True

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.is_dirty = True


def is_epoch_at(entries: Sequence[EpochEntry], epoch: int, offset: int) -> bool:
    """Return whether ``epoch`` may have written ``offset``, according to the entries.

    Offsets below the first entry have its epoch or an older one.
    """
    known = _epoch_for(entries, offset)
    if known == NO_LEADER_EPOCH:
        return not entries or epoch <= entries[0][0]
    return epoch == known


def _epoch_for(entries: Sequence[EpochEntry], offset: int) -> int:
    index = bisect_right(entries, offset, key=_start_offset)
    return entries[index - 1][0] if index else NO_LEADER_EPOCH


def _epoch(entry: EpochEntry) -> int:
    return entry[0]


def _start_offset(entry: EpochEntry) -> int:
    return entry[1]
