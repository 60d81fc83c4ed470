"""Finds, from the bucket alone, the ends of chains and their slices of each partition.

The bucket alone has every acknowledged record, as long as nobody writes during the survey: a
restoration seals all chains first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog_core.diskless.wal.committed_slices import CommittedSlice, committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.header import WalHeader, WalKind


class ChainEnd(NamedTuple):
    """Data objects with lower sequences are committed, others are not."""

    sequence: int
    is_sealed: bool


def chain_end(headers: Iterable[WalHeader]) -> ChainEnd:
    """Return where a chain ends, by the headers of all of its objects.

    Objects missing below it were collected. A seal below it ends nothing: its PUT came late.
    """
    there = {header.sequence: header for header in headers}
    end = max((header.committed_end for header in there.values()), default=0)
    while header := there.get(end):
        if header.kind is WalKind.SEAL:
            return ChainEnd(end, is_sealed=True)
        end += 1
    return ChainEnd(end, is_sealed=False)


def partition_tails(
    chains: Iterable[Iterable[WalFooter]],
) -> Mapping[PartitionName, list[CommittedSlice]]:
    """Return the committed slices of each partition, in order of leader epoch and offset.

    Every chain is given with all footers that it has. A partition's slices are to follow each
    other from the end of its tier on, or below.
    """
    tails: dict[PartitionName, list[CommittedSlice]] = {}
    for chain in chains:
        footers = {footer.header.sequence: footer for footer in chain}
        end = chain_end(footer.header for footer in footers.values())
        for sequence, footer in footers.items():
            if sequence < end.sequence:
                for one in committed_slices(footer):
                    tails.setdefault(one.partition, []).append(one)
    for tail in tails.values():
        tail.sort(key=lambda one: (one.leader_epoch, one.base_offset))
    return tails
