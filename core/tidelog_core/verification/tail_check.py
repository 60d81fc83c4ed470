"""Checks the records of diskless topics that are in chains: their bytes, and that none is missing.

Every committed object with a wanted partition is read whole, all CRCs are checked. A partition's
slices follow each other from the end of its tier on, by leader epoch and offset, at least up to
where its current leader began. Objects may be collected during it: then the tier has their records,
so its end is read again before a gap counts. Objects above a seal or a gap are no part of the log.

Checkpoints must be whole, and have the slices that the objects have. References must name slices
that gateways' objects have.

A partition is in a chain only once its item says so. If the item, read after the listing, does not
know a leader epoch of the chains, the metadata store was set back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from crc32c import crc32c

from tidelog_core.diskless.bucket.chains import chains_of
from tidelog_core.diskless.chain.index import parse_index, rows_of
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.chain.walk import ObjectState, walk_chain
from tidelog_core.diskless.wal.committed_slices import CommittedSlice, committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter, parse_object
from tidelog_core.diskless.wal.keys import (
    WalKey,
    chain_prefix,
    chains_prefix,
    checkpoint_key,
    parse_wal_key,
    wal_key,
)
from tidelog_core.diskless.wal.rows import WalSection, pack_rows
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectMeta, ObjectStore
from tidelog_core.verification.referenced_slices import ReferencedSlices
from tidelog_core.verification.segment_check import Problem

LISTINGS_MAX = 2
FORKED = (
    "it has offsets [{}, {}) of leader epoch {}, which the metadata store does not know in this"
    " chain: it was set back, and nodes would give these offsets to other records; rebuild it from"
    " the bucket"
)


@dataclass(frozen=True, slots=True)
class TailPlan:
    """A partition, and where its tier ends."""

    name: TopicPartition
    tiered_end: int  # or the log start, if that is greater
    wal: EpochChains = ()  # of its item; empty if there is none


@dataclass(frozen=True, slots=True)
class ChainsPlan:
    """The chains to check."""

    objects: tuple[ObjectMeta, ...] = ()  # listed before the ends of the tier were read
    tails: Mapping[PartitionName, TailPlan] | None = None  # None: there is nothing to check


ReadTieredEnd = Callable[[PartitionName, TailPlan], Awaitable[int]]
"""Reads again where a partition's tier ends."""


@dataclass(frozen=True, slots=True)
class _Run:
    chain: ChainName  # that gives the offsets
    leader_epoch: int
    base_offset: int
    end_offset: int
    key: str  # of the object that gives the offsets


# What checkpoints say of each object: their keys, and the CRC-32C of its rows in them.
_Indexed = dict[int, list[tuple[str, int]]]


class TailCheck:
    """Checks the chains of one cluster. For one use."""

    def __init__(
        self, objects: ObjectStore, cluster_id: str, plan: ChainsPlan, read_end: ReadTieredEnd
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._plan = plan
        self._read_end = read_end
        self._tails = plan.tails or {}
        self._runs: dict[PartitionName, list[_Run]] = {}
        self.object_count = 0
        self.size_bytes = 0

    async def run(self, on_object: Callable[[], Awaitable[None]]) -> list[Problem]:
        """Return the problems. ``on_object`` is called after each object, and may raise."""
        if not self._tails:
            return []
        listed: Iterable[ObjectMeta] = self._plan.objects
        forks: list[Problem] | None = None
        for _ in range(LISTINGS_MAX):
            listed = tuple(listed)
            problems = await self._walk(listed, on_object)
            if forks is None:  # A later listing may be younger than the items.
                forks = self._forks()
            gaps: list[Problem] = []
            for name, tail in self._tails.items():
                gaps += await self._gaps(name, tail)
            if not gaps:
                break
            # The listing may be older than the items: look again before something is missing.
            prefix = chains_prefix(self._cluster_id)
            listed = [found async for found in self._objects.list(prefix)]
        return problems + (forks or []) + gaps

    async def _walk(
        self, objects: Iterable[ObjectMeta], on_object: Callable[[], Awaitable[None]]
    ) -> list[Problem]:
        """Read the objects of a listing; return their problems."""
        problems: list[Problem] = []
        self.object_count = self.size_bytes = 0
        self._runs = {name: [] for name in self._tails}
        chains = ChainStore(self._objects, self._cluster_id)
        listed_of = chains_of(objects)
        there = {
            (chain, one.sequence): one for chain, listed in listed_of.items() for one in listed
        }
        referenced = ReferencedSlices(chains)
        checkpoints = [name for one in objects if (name := _checkpoint_of(one)) is not None]
        for chain, listed in listed_of.items():
            indexed, damaged = await self._read_indexes(chain, checkpoints)
            problems += damaged
            async for one in walk_chain(chains, chain, listed):
                key = wal_key(self._cluster_id, chain, one.listed.sequence)
                if one.problem:
                    problems.append(Problem(None, key, one.problem))
                elif one.state is ObjectState.COMMITTED and one.footer is not None:
                    problems += _differing(one.footer, indexed)
                    problems += await self._check_object(key, one.footer, there, referenced)
                await on_object()
        return problems

    async def _read_indexes(
        self, chain: ChainName, checkpoints: Iterable[WalKey]
    ) -> tuple[_Indexed, list[Problem]]:
        """Return the objects that the chain's checkpoints index, and the damaged checkpoints."""
        indexed: _Indexed = {}
        problems: list[Problem] = []
        for name in checkpoints:
            if name.chain != chain:
                continue
            key = checkpoint_key(self._cluster_id, chain, name.sequence)
            try:
                index = parse_index(await self._objects.get(key), name, key=key)
            except ObjectNotFound:
                continue  # Another one has taken its place.
            except CorruptObject as error:
                problems.append(Problem(None, key, error.problem))
                continue
            crcs = dict.fromkeys(range(index.start, index.end), 0) if index else {}
            for sequence, row in index.slices() if index else ():
                crcs[sequence] = crc32c(pack_rows(WalSection.REFERENCES, [row]), crcs[sequence])
            for sequence, crc in crcs.items():
                indexed.setdefault(sequence, []).append((key, crc))
        return indexed, problems

    async def _check_object(
        self,
        key: str,
        footer: WalFooter,
        there: Mapping[tuple[ChainName, int], ListedObject],
        referenced: ReferencedSlices,
    ) -> list[Problem]:
        slices = [one for one in committed_slices(footer) if one.partition in self._tails]
        if not slices and not self._has_foreign(footer):
            return []
        try:
            data = await self._objects.get(key)
            parse_object(data, key=key)
        except ObjectNotFound:
            return []  # It was collected: the tier has its records.
        except CorruptObject as error:
            return [Problem(None, key, error.problem)]
        self.object_count += 1
        self.size_bytes += len(data)
        problems = []
        own = footer.header.chain, footer.header.sequence
        for one in slices:
            place = one.chain, one.sequence
            if place in there:
                self._add(one, footer.header.chain, key)
                if place != own and not await referenced.has(one, there[place]):
                    text = f"its reference to {self._key_of(one)} names no slice that is there"
                    problems.append(Problem(self._tails[one.partition].name, key, text))
            elif one.end_offset > self._tails[one.partition].tiered_end:
                text = f"it is not there, but {key} has a reference to it"
                name = self._tails[one.partition].name
                problems.append(Problem(name, self._key_of(one), text))
        return problems

    def _key_of(self, one: CommittedSlice) -> str:
        return wal_key(self._cluster_id, one.chain, one.sequence)

    def _has_foreign(self, footer: WalFooter) -> bool:
        """Whether a gateway's slices of checked partitions are in the object."""
        return any(
            row.is_foreign and PartitionName.of_row(row) in self._tails for row in footer.slices
        )

    def _add(self, one: CommittedSlice, chain: ChainName, key: str) -> None:
        runs = self._runs[one.partition]
        last = runs[-1] if runs else None
        run = _Run(chain, one.leader_epoch, one.base_offset, one.end_offset, key)
        if last and (last.chain, last.leader_epoch, last.end_offset) == (
            run.chain,
            run.leader_epoch,
            run.base_offset,
        ):
            runs[-1] = replace(last, end_offset=run.end_offset)  # One is enough for both.
        else:
            runs.append(run)

    def _forks(self) -> list[Problem]:
        """Return the records of leader epochs that the items do not know."""
        return [
            Problem(
                tail.name,
                run.key,
                FORKED.format(run.base_offset, run.end_offset, run.leader_epoch),
            )
            for name, tail in self._tails.items()
            for run in self._runs[name]
            if run.end_offset > tail.tiered_end and _is_unknown(run, tail.wal)
        ]

    async def _gaps(self, name: PartitionName, tail: TailPlan) -> list[Problem]:
        """Return the offsets that neither the tier nor a chain has."""
        if not _missing(tail, self._runs[name], tail.tiered_end, self._cluster_id):
            return []
        end = await self._read_end(name, tail)
        missing = _missing(tail, self._runs[name], end, self._cluster_id)
        return [Problem(tail.name, key, text) for key, text in missing]


def _checkpoint_of(found: ObjectMeta) -> WalKey | None:
    name = parse_wal_key(found.key)
    return name if name is not None and name.is_checkpoint else None


def _differing(footer: WalFooter, indexed: _Indexed) -> list[Problem]:
    """Return the checkpoints that have other slices of the object than its footer."""
    sequence = footer.header.sequence
    there = indexed.get(sequence, ())
    crc = crc32c(rows_of(footer)) if there else 0
    text = f"it has other slices of object {sequence} than the object"
    return [Problem(None, key, text) for key, found in there if found != crc]


def _is_unknown(run: _Run, wal: EpochChains) -> bool:
    """Return whether the item lacks the run's leader epoch, or has it in another chain."""
    chains = {one.leader_epoch: one.chain for one in wal}
    is_later = bool(wal) and run.leader_epoch > wal[-1].leader_epoch
    return is_later or chains.get(run.leader_epoch, run.chain) != run.chain


def _missing(
    tail: TailPlan, runs: Iterable[_Run], tiered_end: int, cluster_id: str
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    end = tiered_end
    for run in sorted(runs, key=lambda run: (run.leader_epoch, run.base_offset)):
        if run.base_offset > end:
            found.append((run.key, f"offsets [{end}, {run.base_offset}) are missing before it"))
        end = max(end, run.end_offset)
    if tail.wal and end < tail.wal[-1].first_offset:
        before = tail.wal[-2] if len(tail.wal) > 1 else tail.wal[-1]
        key = chain_prefix(cluster_id, before.chain)
        found.append((key, f"offsets [{end}, {tail.wal[-1].first_offset}) are in no object of it"))
    return found
