"""Which objects of a chain may be deleted.

An object is needed until every slice in it is tiered, or below its partition's log start and in a
checkpoint. An owner deletes only what the header of its last committed object says to have existed.
An heir finds that object, and takes no deleted place for one that was never filled. Everybody else
deletes only from sealed chains. Seals stay for ever: a resumed owner must meet them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from uuid import UUID

from tidelog_core.config import INT64_MAX
from tidelog_core.diskless.chain_rules import ChainRules
from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.wal_footer import WalFooter
from tidelog_core.diskless.wal_header import WalHeader

DELETE_COUNT_MAX = 1_000  # keys in one request of S3


class OwnedObjects:
    """An owner's committed objects, and what each of them is needed for."""

    def __init__(self, rules: ChainRules | None = None) -> None:
        self._rules = rules or ChainRules()
        self._needs: OrderedDict[int, Mapping[PartitionName, int]] = OrderedDict()
        self._last: WalHeader | None = None

    def __len__(self) -> int:
        return len(self._needs)

    def add(self, header: WalHeader, ends: Mapping[PartitionName, int]) -> None:
        """An object is committed, the next one; ``ends`` are the offsets that it ends at."""
        self._needs[header.sequence] = dict(ends)
        self._last = header

    def collectable(self, unneeded_ends: Mapping[PartitionName, int]) -> list[int]:
        """Return the sequences that may be deleted now, at most 1,000, oldest first.

        ``unneeded_ends`` has for each partition its tier's end. A greater log start counts only
        up to where a stored checkpoint has the producers: from the tier's end, no heir can go on
        over a gap. A deleted topic's partitions are unneeded up to the greatest offset.
        """
        if self._last is None:
            return []
        end = self._rules.collection_end(self._last)
        found: list[int] = []
        for sequence, ends in self._needs.items():
            if sequence >= end or len(found) == DELETE_COUNT_MAX:
                break
            if is_unneeded(ends, unneeded_ends):
                found.append(sequence)
        return found

    def on_deleted(self, sequences: Iterable[int]) -> None:
        """They are deleted."""
        for sequence in sequences:
            self._needs.pop(sequence, None)


def needs_of(footer: WalFooter) -> dict[PartitionName, int]:
    """Return up to which offset of each partition an object is needed.

    Nobody knows it of a gateway's slices: another chain has their offsets.
    """
    needs: dict[PartitionName, int] = {}
    for row in footer.slices:
        name = PartitionName(UUID(bytes=row.topic_id), row.partition)
        end_offset = INT64_MAX if row.is_foreign else row.end_offset
        needs[name] = max(end_offset, needs.get(name, 0))
    for reference in footer.references:
        name = PartitionName(UUID(bytes=reference.topic_id), reference.partition)
        needs[name] = max(reference.end_offset, needs.get(name, 0))
    return needs


def is_unneeded(
    ends: Mapping[PartitionName, int], unneeded_ends: Mapping[PartitionName, int]
) -> bool:
    """Return whether nothing at or above the partitions' ends is in an object with these ends."""
    return all(end <= unneeded_ends.get(name, -1) for name, end in ends.items())


def collectable_of_sealed(
    end: int,
    listed: Iterable[int],
    ends_of: Mapping[int, Mapping[PartitionName, int]],
    unneeded_ends: Mapping[PartitionName, int],
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
        or (sequence in ends_of and is_unneeded(ends_of[sequence], unneeded_ends))
    ]
    return found[:DELETE_COUNT_MAX]
