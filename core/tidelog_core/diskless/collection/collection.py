"""Decides which objects of a chain may be deleted.

An object is needed until every slice in it is tiered. An owner deletes only what the header of its
last committed object says to have existed. An heir finds that object, and takes no deleted place
for one that was never filled. Everybody else deletes only from sealed chains. Seals stay for ever:
a resumed owner must meet them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.collection.offset_runs import OffsetRuns
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.model import INT64_MAX

DELETE_COUNT_MAX = 1_000  # keys in one request of S3


class UnneededEnds:
    """The offsets below which no reader and no heir needs partitions' records in chains.

    That is the end of the tier. A greater log start does not count: from the tier's end, no heir
    could go on over a gap.
    """

    def __init__(
        self,
        tier_ends: Mapping[PartitionName, int],
        *,
        deleted_topics: Collection[UUID] = (),
    ) -> None:
        self._tier_ends = tier_ends
        self._deleted_topics = deleted_topics

    def of(self, name: PartitionName) -> int:
        """Return the offset below which nothing is needed, -1 if nothing is known."""
        if name.topic_id in self._deleted_topics:
            return INT64_MAX
        return self._tier_ends.get(name, -1)


class OwnedObjects:
    """An owner's committed objects, and how many partitions need each of them."""

    def __init__(self, rules: ChainRules | None = None) -> None:
        self._rules = rules or ChainRules()
        self._needed_by: OrderedDict[int, int] = OrderedDict()  # sequence → partitions
        self._runs: dict[PartitionName, OffsetRuns] = {}
        self._foreign_runs: dict[PartitionName, OffsetRuns] = {}  # of slices that others lead
        # By sequence, of objects with foreign slices: where their references end, ``None`` until
        # that is known. Ascending.
        self._foreign: dict[int, Mapping[PartitionName, int] | None] = {}
        self._last: WalHeader | None = None
        self.last_has_records = False  # the last object, which stays as long as it is the last

    def __len__(self) -> int:
        return len(self._needed_by)

    @property
    def first_kept(self) -> int | None:
        """The least sequence that is not deleted, ``None`` if there is none."""
        return next(iter(self._needed_by), None)

    def names(self) -> set[PartitionName]:
        """Return the partitions that need an object, as of the last ``collectable``."""
        return set(self._runs) | set(self._foreign_runs)

    def add(
        self, header: WalHeader, ends: Mapping[PartitionName, int], *, has_foreign: bool = False
    ) -> None:
        """An object is committed, the next one; ``ends`` are the offsets that it ends at.

        One with foreign slices stays until ``settle_foreign`` says where references to them end.
        """
        self._needed_by[header.sequence] = len(ends) + has_foreign
        if has_foreign:
            self._foreign[header.sequence] = None
        for name, end_offset in ends.items():
            runs = self._runs.get(name)
            if runs is None:
                runs = self._runs[name] = OffsetRuns()
            runs.add(header.sequence, end_offset)
        self._last = header
        self.last_has_records = bool(ends) or has_foreign

    def settle_foreign(self, sequence: int, ends: Mapping[PartitionName, int]) -> None:
        """References to the object's foreign slices end there; those not in it have none."""
        if sequence not in self._foreign:
            return
        self._foreign[sequence] = ends
        # In order: runs take sequences that grow.
        for settled, settled_ends in tuple(self._foreign.items()):
            if settled_ends is None:
                break
            del self._foreign[settled]
            self._needed_by[settled] += len(settled_ends) - 1
            for name, end_offset in settled_ends.items():
                runs = self._foreign_runs.get(name)
                if runs is None:
                    runs = self._foreign_runs[name] = OffsetRuns()
                runs.add(settled, end_offset)

    def collectable(self, unneeded: UnneededEnds) -> list[int]:
        """Return the sequences that may be deleted now, at most 1,000, oldest first.

        What was not needed once is not needed any more: ends never go back.
        """
        if self._last is None:
            return []
        self._forget(unneeded)
        end = self._rules.collection_end(self._last)
        found: list[int] = []
        for sequence, count in self._needed_by.items():
            if sequence >= end or len(found) == DELETE_COUNT_MAX:
                break
            if not count:
                found.append(sequence)
        return found

    def on_deleted(self, sequences: Iterable[int]) -> None:
        """They are deleted."""
        for sequence in sequences:
            self._needed_by.pop(sequence, None)

    def _forget(self, unneeded: UnneededEnds) -> None:
        for runs_of in (self._runs, self._foreign_runs):
            done: list[PartitionName] = []
            for name, runs in runs_of.items():
                for sequence in runs.take(unneeded.of(name)):
                    self._needed_by[sequence] -= 1
                if not runs:
                    done.append(name)
            for name in done:
                del runs_of[name]


def needs_of(footer: WalFooter, *, is_referenced: bool = True) -> dict[PartitionName, int]:
    """Return up to which offset of each partition an object is needed.

    Nobody knows it of a gateway's slices, another chain has their offsets: they are needed unless
    no reference names the object (``is_referenced``).
    """
    needs: dict[PartitionName, int] = {}
    for row in footer.slices:
        if row.is_foreign and not is_referenced:
            continue
        name = PartitionName.of_row(row)
        end_offset = INT64_MAX if row.is_foreign else row.end_offset
        needs[name] = max(end_offset, needs.get(name, 0))
    for reference in footer.references:
        name = PartitionName.of_row(reference)
        needs[name] = max(reference.end_offset, needs.get(name, 0))
    return needs


def is_unneeded(ends: Mapping[PartitionName, int], unneeded: UnneededEnds) -> bool:
    """Return whether nothing of an object is needed that ends at these offsets."""
    return all(end <= unneeded.of(name) for name, end in ends.items())


def collectable_of_sealed(
    end: int,
    listed: Iterable[int],
    ends_of: Mapping[int, Mapping[PartitionName, int]],
    unneeded: UnneededEnds,
    rules: ChainRules | None = None,
) -> list[int]:
    """Return the sequences of a sealed chain that may be deleted, at most 1,000.

    ``end`` is where it was found to be sealed, ``ends_of`` has the data objects below. Listed ones
    above the seal are garbage. A listed one below that is not in ``ends_of`` stays.
    """
    keeps_seal = (rules or ChainRules()).keeps_seal()
    found = [
        sequence
        for sequence in listed
        if sequence > end
        or (sequence == end and not keeps_seal)
        or (sequence in ends_of and is_unneeded(ends_of[sequence], unneeded))
    ]
    return found[:DELETE_COUNT_MAX]
