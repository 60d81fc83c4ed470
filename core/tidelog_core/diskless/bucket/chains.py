"""Reads every chain of a cluster, and keeps what a restoration needs of each partition.

Batches are checked and forgotten, and consecutive slices become one run: an hour of objects leaves
a few rows. ``survey`` returns the same with every slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.chain.walk import ObjectState, walk_chain
from tidelog_core.diskless.wal.committed_slices import CommittedSlice, committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.keys import parse_wal_key, wal_key
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectMeta, ObjectStore


class EpochRun(NamedTuple):
    """Offsets ``[base_offset, end_offset)`` of a leader epoch that a chain has."""

    leader_epoch: int
    chain: ChainName
    base_offset: int
    end_offset: int
    key: str  # of the object that has the first of them


@dataclass(slots=True)
class ChainedPartition:
    """The slices of a partition in the chains."""

    runs: list[EpochRun] = field(default_factory=list)  # by leader epoch and offset
    log_start_offset: int = 0  # the greatest that a leader has put into a chain
    leader_epoch_max: int = -1
    producer_id_max: int = -1


@dataclass(slots=True)
class ChainSurvey:
    """The contents of all chains."""

    partitions: dict[PartitionName, ChainedPartition] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)  # key and sentence
    object_count: int = 0


def chains_of(
    objects: Iterable[ObjectMeta],
) -> dict[ChainName, list[ListedObject]]:
    """Return the data objects and seals of a listing by their chain, in order."""
    named = [(name, one) for one in objects if (name := parse_wal_key(one.key))]
    return {
        chain: [
            ListedObject(name.sequence, one.size_bytes)
            for name, one in group
            if not name.is_checkpoint
        ]
        for chain, group in groupby(named, key=lambda pair: pair[0].chain)
    }


async def survey_chains(
    store: ObjectStore,
    cluster_id: str,
    objects: Iterable[ObjectMeta],
    *,
    on_read: Callable[[int], None] = lambda _: None,
) -> ChainSurvey:
    """Return the contents of the chains in a listing. Nobody may write them during the call.

    A damaged object is a problem; the others are read. Raises ``StoreUnavailable``.
    """
    found = ChainSurvey()
    chains = ChainStore(store, cluster_id)
    for chain, listed in chains_of(objects).items():
        reading = _ChainReading(found, cluster_id, chain)
        async for one in walk_chain(chains, chain, listed, on_read=on_read):
            found.object_count += 1
            if one.problem:
                key = wal_key(cluster_id, chain, one.listed.sequence)
                found.problems.append((key, one.problem))
            elif one.state is ObjectState.COMMITTED and one.footer is not None:
                reading.add(one.footer)
    for partition in found.partitions.values():
        partition.runs.sort(key=lambda run: (run.leader_epoch, run.base_offset))
    return found


class _ChainReading:
    """Adds the committed objects of one chain to the survey, in order."""

    def __init__(self, survey: ChainSurvey, cluster_id: str, chain: ChainName) -> None:
        self._survey = survey
        self._cluster_id = cluster_id
        self._chain = chain

    def add(self, footer: WalFooter) -> None:
        """Add the slices of the object."""
        for one in committed_slices(footer):
            self._add_slice(one, footer.header.sequence)
        for epoch in footer.epochs:
            found = self._partition(PartitionName.of_row(epoch))
            found.leader_epoch_max = max(found.leader_epoch_max, epoch.leader_epoch)
        for mark in footer.marks:
            found = self._partition(PartitionName.of_row(mark))
            found.log_start_offset = max(found.log_start_offset, mark.log_start_offset)

    def _add_slice(self, one: CommittedSlice, sequence: int) -> None:
        found = self._partition(one.partition)
        found.leader_epoch_max = max(found.leader_epoch_max, one.leader_epoch)
        producer_id = max((row.producer_id for row in one.batches), default=-1)
        found.producer_id_max = max(found.producer_id_max, producer_id)
        last = found.runs[-1] if found.runs else None
        if (
            last is not None
            and (last.leader_epoch, last.chain) == (one.leader_epoch, self._chain)
            and last.end_offset == one.base_offset
        ):
            found.runs[-1] = last._replace(end_offset=one.end_offset)
            return
        key = wal_key(self._cluster_id, self._chain, sequence)
        found.runs.append(
            EpochRun(one.leader_epoch, self._chain, one.base_offset, one.end_offset, key)
        )

    def _partition(self, name: PartitionName) -> ChainedPartition:
        return self._survey.partitions.setdefault(name, ChainedPartition())
