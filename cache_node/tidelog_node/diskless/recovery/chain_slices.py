"""Finds the committed records of partitions in their chains, by footers and indexes alone.

A partition's item names its chains by leader epoch. The indexes of each chain are read
(``chain.index``), and the footers of objects that they lack, 64 at once; chains do not wait for
each other. Only slices above the end of the tier are kept. The slices of a partition follow each
other without a gap: a gap is an error, because its records were acknowledged. Indexes also have
the producers of partitions at committed offsets. The last of these are kept, and so are some of the
footers: an heir that leads before it has the records needs to know what producers did since.

A damaged footer does not say whose records the object has. It does not matter to partitions that
have records in a later object: if theirs were damaged, there would be a gap.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tidelog_core.diskless.chain.index import ChainIndex, Covered
from tidelog_core.diskless.chain.store import ChainStore, ListedChain, ListedObject
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import SUFFIX_SIZE_BYTES, WalFooter
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.rows import ReferenceRow, SliceRow
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains

from tidelog_node.diskless.recovery.concurrent_calls import for_each

FOOTERS_AT_ONCE_MAX = 64
CHAINS_AT_ONCE_MAX = 8
ROWS_IN_TURN = 2_000  # of an index, in one turn of the loop
FOOTERS_KEPT_BYTES_MAX = 32 << 20

_TOPIC_ID = ReferenceRow._fields.index("topic_id")
_PARTITION = ReferenceRow._fields.index("partition")


class StoredSlice(NamedTuple):
    """A committed run of batches of one partition, and the object that has its bytes."""

    chain: ChainName  # that has the bytes
    sequence: int
    leader_epoch: int
    base_offset: int
    end_offset: int  # exclusive
    position: int
    size_bytes: int
    crc32c: int
    committed_sequence: int  # of the object that commits it: where the slice or a reference is
    # A gateway's: its batches count their offsets from 0, and have no leader epoch.
    is_reference: bool = False

    @property
    def end(self) -> int:
        """The position behind the slice."""
        return self.position + self.size_bytes


class StoredObject(NamedTuple):
    """An object of a chain."""

    chain: ChainName
    sequence: int


class ProducersAt(NamedTuple):
    """The producers of a partition at an offset below which everything is committed."""

    end_offset: int
    snapshot: bytes


class WantedSlices(NamedTuple):
    """The part of one partition to read."""

    chains: EpochChains
    start_offset: int  # the tier, or a log start, has everything below


# By partition and by the chain in which they were committed, in any order.
FoundSlices = dict[PartitionName, dict[ChainName, list[StoredSlice]]]


class ReadChains(NamedTuple):
    """The slices found in chains."""

    slices: FoundSlices
    whole_from: Mapping[ChainName, int]  # all objects from there to the chain's end were read
    last_seen: Mapping[tuple[PartitionName, ChainName], int]  # the last object that has any of it
    damaged: Mapping[ChainName, Mapping[int, CorruptObject]]  # by sequence
    producers: Mapping[PartitionName, ProducersAt]  # the last ones that indexes have
    footers: Mapping[StoredObject, WalFooter]  # some of those that were read

    def damage_of(self, name: PartitionName, chain: ChainName) -> CorruptObject | None:
        """Return the error of a damaged object that may have the partition's last records."""
        last = self.last_seen.get((name, chain), -1)
        for sequence, error in sorted(self.damaged.get(chain, {}).items()):
            if sequence > last:
                return error
        return None

    def require_whole(self) -> None:
        """Raise ``CorruptObject`` if any object is damaged."""
        for damaged in self.damaged.values():
            for error in damaged.values():
                raise error

    def is_end_certain(self, name: PartitionName, chain: ChainName) -> bool:
        """Return whether every object that may have the partition's last records was read.

        If not, one was collected, and the tier in the metadata store must reach as far.
        """
        whole_from = self.whole_from.get(chain)
        return whole_from is not None and self.last_seen.get((name, chain), -1) + 1 >= whole_from


async def find_slices(
    chains: ChainStore,
    wanted: Mapping[PartitionName, WantedSlices],
    ends: Mapping[ChainName, int],
    listings: Mapping[ChainName, ListedChain] | None = None,
) -> ReadChains:
    """Return the slices above each partition's start, of all chains that its item names.

    ``ends`` has the sequences of the seals of those chains that are the last of a partition.
    ``listings`` has the chains, if they were listed before. Raises the store's errors.
    """
    reading = _Reading(chains, wanted)

    async def read(chain: ChainName) -> None:
        listed = (listings or {}).get(chain) or await chains.list_all(chain)
        await reading.read(chain, listed, ends.get(chain))

    names = sorted({entry.chain for one in wanted.values() for entry in one.chains})
    await for_each(names, read, at_once_max=CHAINS_AT_ONCE_MAX)
    return ReadChains(
        reading.found,
        reading.whole_from,
        reading.last_seen,
        reading.damaged,
        reading.producers,
        reading.footers,
    )


async def list_chains(
    chains: ChainStore, names: Sequence[ChainName]
) -> dict[ChainName, ListedChain]:
    """Return listings of the chains, made after the call. Raises the store's errors."""
    listed = await for_each(names, chains.list_all, at_once_max=CHAINS_AT_ONCE_MAX)
    return dict(zip(names, listed, strict=True))


class _Reading:
    """Reads chains: their indexes first, then the footers that those lack."""

    def __init__(self, chains: ChainStore, wanted: Mapping[PartitionName, WantedSlices]) -> None:
        self._chains = chains
        self._wanted = wanted
        self._names = {(name.topic_id.bytes, name.partition): name for name in wanted}
        self.found: FoundSlices = {name: defaultdict(list) for name in wanted}
        self.whole_from: dict[ChainName, int] = {}
        self.last_seen: dict[tuple[PartitionName, ChainName], int] = {}
        self.damaged: dict[ChainName, dict[int, CorruptObject]] = {}
        self.producers: dict[PartitionName, ProducersAt] = {}
        self.footers: dict[StoredObject, WalFooter] = {}
        self._footers_left_bytes = FOOTERS_KEPT_BYTES_MAX
        self._footer_slots = asyncio.Semaphore(FOOTERS_AT_ONCE_MAX)

    async def read(self, chain: ChainName, listed: ListedChain, end: int | None) -> None:
        """Read the chain up to its end, ``None``: as far as it is listed."""
        below = [one for one in listed.objects if end is None or one.sequence < end]
        covered = await self._read_indexes(chain, below, listed.checkpoints)
        read = set[int]()

        async def take(one: ListedObject) -> None:
            try:
                async with self._footer_slots:
                    footer = await _footer(self._chains, chain, one)
            except CorruptObject as error:
                self.damaged.setdefault(chain, {})[one.sequence] = error
                return
            if footer is None:
                return
            read.add(footer.header.sequence)
            if footer.is_seal:
                return
            seen = keep_slices(footer, self._names, self._wanted, self.found)
            for name in seen:
                self._see(name, chain, footer.header.sequence)
            # It is a part of what was read for it.
            size_bytes = min(one.size_bytes, SUFFIX_SIZE_BYTES)
            if seen and size_bytes <= self._footers_left_bytes:
                self._footers_left_bytes -= size_bytes
                self.footers[StoredObject(chain, footer.header.sequence)] = footer

        left = [one for one in below if not covered.has(one.sequence)]
        await for_each(left, take, at_once_max=min(FOOTERS_AT_ONCE_MAX, len(left)))
        if end is None:
            end = below[-1].sequence + 1 if below else 0
        at = end
        while at > 0 and (at - 1 in read or covered.has(at - 1)):
            at -= 1
        self.whole_from[chain] = at

    async def _read_indexes(
        self, chain: ChainName, below: Sequence[ListedObject], indexes: Sequence[ListedObject]
    ) -> Covered:
        """Take the slices of the objects that indexes have; the newest index comes first."""
        covered = Covered()
        sequences = [one.sequence for one in below]
        for number in reversed(range(len(indexes))):
            one = indexes[number]
            before = indexes[number - 1].sequence if number else 0
            count = bisect_left(sequences, one.sequence) - bisect_left(sequences, before)
            is_known = covered.has(one.sequence - 1)
            # No index has more than was committed: then it is somebody else's.
            if is_known or not count or one.sequence > sequences[-1] + 1:
                continue
            index = await self._chains.index(chain, one)
            if index is not None:
                await self._take(index, covered)
                self._take_producers(index)
                covered.add(index.start, index.end)
        return covered

    def _take_producers(self, index: ChainIndex) -> None:
        for topic_id, partition, end_offset, snapshot, leader_epoch in index.snapshots:
            name = PartitionName(topic_id, partition)
            wanted, known = self._wanted.get(name), self.producers.get(name)
            if wanted is None or end_offset <= wanted.start_offset:
                continue
            is_newer = known is None or known.end_offset < end_offset
            # A replicated partition that was to become diskless may have lost what this epoch had
            # of it, and have come back to the same chain. Then its item does not name the epoch.
            place = leader_epoch, index.chain
            if is_newer and any(entry[:2] == place for entry in wanted.chains):
                self.producers[name] = ProducersAt(end_offset, snapshot)

    async def _take(self, index: ChainIndex, covered: Covered) -> None:
        chain, last = index.chain, dict[tuple[bytes, int], int]()
        # By the rows' own bytes: looking names up costs more than all else here.
        into = {
            key: (self._wanted[name].start_offset, self.found[name][chain])
            for key, name in self._names.items()
        }
        is_partly_covered = covered.has_any(index.start, index.end)
        for first in range(0, len(index.rows), ROWS_IN_TURN):
            await asyncio.sleep(0)
            for fields in index.fields_of(into, first, ROWS_IN_TURN):
                sequence = index.sequence_of(fields)
                if is_partly_covered and covered.has(sequence):
                    continue
                one = indexed_slice(chain, sequence, fields)
                key = (fields[_TOPIC_ID], fields[_PARTITION])
                last[key] = sequence
                start_offset, found = into[key]
                if one.end_offset > start_offset:
                    found.append(one)
        for key, sequence in last.items():
            self._see(self._names[key], chain, sequence)

    def _see(self, name: PartitionName, chain: ChainName, sequence: int) -> None:
        place = (name, chain)
        self.last_seen[place] = max(sequence, self.last_seen.get(place, -1))


async def _footer(chains: ChainStore, chain: ChainName, listed: ListedObject) -> WalFooter | None:
    try:
        return await chains.footer(chain, listed)
    except ObjectNotFound:
        return None  # It was collected after the listing, so the tier has its slices.


def keep_slices(
    footer: WalFooter,
    names: Mapping[tuple[bytes, int], PartitionName],
    wanted: Mapping[PartitionName, WantedSlices],
    slices: FoundSlices,
) -> set[PartitionName]:
    """Add the wanted slices of a committed object; ``names`` has the keys of ``wanted``.

    Returns the partitions that it has any records of. A gateway's own slices prove nothing.
    """
    chain, sequence = footer.header.chain, footer.header.sequence
    seen = set[PartitionName]()
    for fields in footer.slices.fields(0, len(footer.slices)):
        name = names.get((fields[0], fields[1]))
        if name is None or (row := SliceRow(*fields)).is_foreign:
            continue
        seen.add(name)
        if row.end_offset > wanted[name].start_offset:
            slices[name][chain].append(stored_slice(chain, sequence, row))
    for reference in footer.references:
        name = names.get((reference.topic_id, reference.partition))
        if name is None:
            continue
        seen.add(name)
        if reference.end_offset > wanted[name].start_offset:
            slices[name][chain].append(referenced_slice(sequence, reference))
    return seen


def stored_slice(chain: ChainName, sequence: int, row: SliceRow) -> StoredSlice:
    """Return the slice that has its bytes in the object itself."""
    place = (row.position, row.size_bytes, row.crc32c)
    return StoredSlice(
        chain, sequence, row.leader_epoch, row.base_offset, row.end_offset, *place, sequence
    )


def referenced_slice(committed_sequence: int, row: ReferenceRow) -> StoredSlice:
    """Return the slice whose bytes a gateway's object has, by a reference to it."""
    return StoredSlice(
        ChainName(row.broker_id, UUID(bytes=row.chain_id)),
        row.sequence,
        row.leader_epoch,
        row.base_offset,
        row.end_offset,
        row.position,
        row.size_bytes,
        row.crc32c,
        committed_sequence,
        is_reference=True,
    )


def indexed_slice(
    chain: ChainName, committed_sequence: int, fields: tuple[Any, ...]
) -> StoredSlice:
    """Return the slice in an index of the chain; ``fields`` are those of its row."""
    _, chain_id, broker_id, _, leader_epoch, _, sequence, *places = fields
    base_offset, end_offset, _, position, size_bytes, crc32c, _ = places
    is_own = sequence == committed_sequence and broker_id == chain.broker_id
    is_own = is_own and chain_id == chain.chain_id.bytes
    return StoredSlice(
        chain if is_own else ChainName(broker_id, UUID(bytes=chain_id)),
        sequence,
        leader_epoch,
        base_offset,
        end_offset,
        position,
        size_bytes,
        crc32c,
        committed_sequence,
        is_reference=not is_own,
    )


class MissingOffsets(CorruptObject):
    """Chains lack offsets: they are lost, or the tier has had them since it was read."""


def log_of(
    name: PartitionName,
    wanted: WantedSlices,
    found: Mapping[ChainName, Sequence[StoredSlice]],
    *,
    cluster_id: str,
) -> tuple[list[StoredSlice], int]:
    """Return the partition's slices in order of offset, and where its log ends.

    Each epoch takes part up to where the next one begins: what a chain has above was never
    acknowledged. Raises ``MissingOffsets`` with the partition and the object before which offsets
    are missing, or the chain that does not have them.
    """
    slices: list[StoredSlice] = []
    at = wanted.start_offset
    for one, following in _by_epoch(wanted.chains, found):
        if following is not None and one.end_offset > following:
            continue
        if one.end_offset <= at:
            continue
        if one.base_offset > at:
            key = wal_key(cluster_id, one.chain, one.sequence)
            raise MissingOffsets(
                key, f"offsets [{at}, {one.base_offset}) of {name} are missing before it"
            )
        slices.append(one)
        at = one.end_offset
    last = wanted.chains[-1] if wanted.chains else None
    if last is not None and last.first_offset > at:
        raise MissingOffsets(
            f"of chain {last.chain}",
            f"epoch {last.leader_epoch} of {name} begins at {last.first_offset}, and the chains"
            f" before it have its records up to {at}",
        )
    return slices, at


def _by_epoch(
    chains: EpochChains, found: Mapping[ChainName, Sequence[StoredSlice]]
) -> Iterator[tuple[StoredSlice, int | None]]:
    """Yield the slices of each epoch in order, and where the next epoch begins."""
    starts: list[int | None] = [entry.first_offset for entry in chains[1:]]
    for entry, following in zip(chains, [*starts, None], strict=False):
        some = (s for s in found.get(entry.chain, ()) if s.leader_epoch == entry.leader_epoch)
        # References come behind an object's own slices.
        for one in sorted(some, key=lambda one: one.base_offset):
            yield one, following
