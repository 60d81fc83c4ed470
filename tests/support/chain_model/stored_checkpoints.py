"""The stored checkpoints of one chain; decides which of them may be deleted.

A checkpoint has the producers of a partition at an offset, and the log start as of then. Without
it an heir could not continue a partition whose records below a log start were deleted before they
were tiered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.wal.epoch_chains import PartitionName

NO_LOG_START = -1


class CheckpointMark(NamedTuple):
    """The producers' offset and the log start of a partition in a checkpoint."""

    log_start_offset: int
    end_offset: int  # its producers are as of there; at or above the log start


class StoredCheckpoints:
    """The checkpoints of one chain, by the sequence below which they have its objects."""

    def __init__(self) -> None:
        self._marks: OrderedDict[int, Mapping[PartitionName, CheckpointMark]] = OrderedDict()
        self._log_starts: dict[PartitionName, int] = {}

    def add(self, sequence: int, marks: Mapping[PartitionName, CheckpointMark]) -> None:
        """A checkpoint is stored: its PUT was answered, or it was read. In order of sequence."""
        for name, mark in marks.items():
            if not 0 <= mark.log_start_offset <= mark.end_offset:
                raise ValueError(f"{mark} of {name}: its producers are of before the log start")
            known = self._log_starts.get(name, NO_LOG_START)
            self._log_starts[name] = max(known, mark.log_start_offset)
        self._marks[sequence] = dict(marks)

    def log_start(self, name: PartitionName) -> int:
        """Return the partition's log start that a checkpoint has, -1 if none has it."""
        return self._log_starts.get(name, NO_LOG_START)

    def collectable(self, tier_ends: Mapping[PartitionName, int], *, is_sealed: bool) -> list[int]:
        """Return the sequences of checkpoints that may be deleted; see ``on_deleted``.

        A checkpoint is needed for a partition until a later one has it, or the tier has passed
        its end. A partition that has left the chain is in no later one. The last checkpoint of
        a chain that is not sealed stays: it makes a recovery shorter.
        """
        found: list[int] = []
        later: set[PartitionName] = set()
        last = next(reversed(self._marks), None)
        for sequence in reversed(self._marks):
            marks = self._marks[sequence]
            if (is_sealed or sequence != last) and all(
                name in later or mark.end_offset <= tier_ends.get(name, -1)
                for name, mark in marks.items()
            ):
                found.append(sequence)
            later |= marks.keys()
        return found[::-1]

    def on_deleted(self, sequence: int) -> None:
        """The checkpoint's deletion begins. What it made unneeded stays that: it was deleted."""
        self._marks.pop(sequence, None)


class CheckpointedEnds(UnneededEnds):
    """The ends of tiers, or the log starts beyond them that a stored checkpoint has."""

    def __init__(
        self, tier_ends: Mapping[PartitionName, int], checkpoints: StoredCheckpoints
    ) -> None:
        super().__init__(tier_ends)
        self._checkpoints = checkpoints

    def of(self, name: PartitionName) -> int:
        return max(super().of(name), self._checkpoints.log_start(name))
