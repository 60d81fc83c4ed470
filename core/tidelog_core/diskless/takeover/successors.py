"""Finds records of later leader epochs than a partition's item knows: then its table was set back.

A partition gets into a chain once its item names that chain and epoch. So an item that is read
after an object has at least the epochs of the object. If the item lacks one, the metadata store was
set back to an earlier time, by DynamoDB's point-in-time recovery for example.

Every heir leaves a note in the chain that it takes partitions from (``ChainStore.note_heir``)
before their items name its own. So from the chain that an old item names, the notes lead to all
chains that have had its partitions since, step by step. A seal names its heir too.

A chain lives as long as its node, and may be noted in many others. Its indexes have the epochs of
its objects, also of collected ones; footers are read for the objects that no index has.

Only slices count: an epoch without records has nothing that could be lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.diskless.chain.index import Covered
from tidelog_core.diskless.chain.store import ChainStore, ListedChain, ListedObject
from tidelog_core.diskless.chain.walk import SEAL_SIZE_BYTES
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.keys import Heir
from tidelog_core.diskless.wal.rows import ReferenceRow, SliceRow
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName

FOOTERS_AT_ONCE_MAX = 64
CHAINS_AT_ONCE_MAX = 32
ROWS_IN_TURN = 2_000  # of an index, in one turn of the loop
CHAINS_KNOWN_MAX = 256  # that need not be read again


class LaterEpoch(NamedTuple):
    """The last leader epoch of a partition that has records in a chain."""

    leader_epoch: int
    chain: ChainName


class Successors(NamedTuple):
    """The slices in the chains that got partitions of a chain, directly or through others."""

    epochs: Mapping[PartitionName, LaterEpoch]
    # Whether every object of them could be read. Else others may have had later epochs.
    is_whole: bool


class _ReadChain:
    """The leader epochs in an heir's chain, as far as it was read."""

    def __init__(self, first_sequence: int) -> None:
        self.first_sequence = first_sequence
        self.next_sequence = first_sequence  # the first one that was not read
        # The greatest leader epoch of each partition, by topic id and number.
        self.epochs: dict[tuple[bytes, int], int] = {}
        self.is_whole = True  # no object's epochs are missing
        self.reading = asyncio.Lock()


class SuccessorSearch:
    """Searches from chain to chain. For the tasks of one event loop.

    It remembers the epochs of the chains that it has read, so a retry reads newer objects only.
    """

    def __init__(self, chains: ChainStore) -> None:
        self._chains = chains
        self._known: OrderedDict[ChainName, _ReadChain] = OrderedDict()

    async def find(self, chain: ChainName, sealed_at: int, *, own: ChainName) -> Successors:
        """Return the slices of a sealed chain's successors, except the caller's ``own`` chain.

        Items are to be read after that. Raises the store's errors.
        """
        return await self._search(await self._first_heirs(chain, sealed_at), {chain: 0, own: 0})

    async def read_ahead(self, chain: ChainName, *, own: ChainName | None) -> None:
        """Read the chain's successors so far; ``find`` reads only later objects.

        For a chain that is not sealed yet. Raises the store's errors.
        """
        firsts = {chain: 0} if own is None else {chain: 0, own: 0}
        await self._search([*await self._chains.heirs(chain)], firsts)

    async def _search(self, waiting: list[Heir], firsts: dict[ChainName, int]) -> Successors:
        """Read the epochs in these chains, and in all that their notes lead to.

        ``firsts`` has the chains that were read already or are left out, each with the sequence
        from which on; those that are read now are added to it.
        """
        epochs: dict[PartitionName, LaterEpoch] = {}
        is_whole = True
        while waiting:
            # All nodes may be heirs of one that has died: their chains are read at the same time.
            some = [one for one in waiting[:CHAINS_AT_ONCE_MAX] if _is_new(one, firsts)]
            waiting = waiting[CHAINS_AT_ONCE_MAX:]
            visits = await asyncio.gather(*map(self._visit, some))
            for heir, (known, heirs) in zip(some, visits, strict=True):
                is_whole &= known.is_whole
                waiting += heirs
                for (topic_id, partition), epoch in known.epochs.items():
                    name = PartitionName(UUID(bytes=topic_id), partition)
                    if name not in epochs or epochs[name].leader_epoch < epoch:
                        epochs[name] = LaterEpoch(epoch, heir.chain)
        return Successors(epochs, is_whole)

    async def _visit(self, heir: Heir) -> tuple[_ReadChain, Sequence[Heir]]:
        return await asyncio.gather(self._read(heir), self._chains.heirs(heir.chain))

    async def _first_heirs(self, chain: ChainName, sealed_at: int) -> list[Heir]:
        """Return the chain's heirs, and the one that its seal names."""
        heirs = [*await self._chains.heirs(chain)]
        try:
            footer = await self._chains.footer(chain, ListedObject(sealed_at, SEAL_SIZE_BYTES))
        except (ObjectNotFound, CorruptObject):
            return heirs
        for row in footer.seals:
            named = ChainName(row.heir_broker_id, UUID(bytes=row.heir_chain_id))
            if all(one.chain != named for one in heirs):
                heirs.append(Heir(named, 0))
        return heirs

    async def _read(self, heir: Heir) -> _ReadChain:
        known = self._known.get(heir.chain)
        if known is None or known.first_sequence > heir.first_sequence:
            known = self._known[heir.chain] = _ReadChain(heir.first_sequence)
        self._known.move_to_end(heir.chain)
        while len(self._known) > CHAINS_KNOWN_MAX:
            self._known.popitem(last=False)
        async with known.reading:
            await self._read_on(heir.chain, known)
        return known

    async def _read_on(self, chain: ChainName, known: _ReadChain) -> None:
        listed = await self._chains.list_all(chain, known.next_sequence)
        covered, committed_end = await self._read_indexes(known, chain, listed)
        left = [one for one in listed.objects if not covered.has(one.sequence)]
        for some in batched(left, FOOTERS_AT_ONCE_MAX):
            footers = await asyncio.gather(*(self._footer(chain, one) for one in some))
            for footer in footers:
                if footer is None:
                    known.is_whole = False
                else:
                    committed_end = max(committed_end, footer.header.committed_end)
                    _add_footer(known, footer)
        sequences = {one.sequence for one in listed.objects}
        uncovered = (n for n in range(known.next_sequence, committed_end) if not covered.has(n))
        # A committed object that is not listed was collected, and no index tells its epochs.
        known.is_whole &= all(n in sequences for n in uncovered)
        known.next_sequence = max(known.next_sequence, committed_end)
        while known.next_sequence in sequences:
            known.next_sequence += 1

    async def _read_indexes(
        self, known: _ReadChain, chain: ChainName, listed: ListedChain
    ) -> tuple[Covered, int]:
        """Add the epochs in the chain's indexes; return the covered objects, and their end."""
        covered, end = Covered(), 0
        last = listed.objects[-1].sequence if listed.objects else -1
        for one in reversed(listed.checkpoints):  # the newest first
            # No index has more than was committed: then it is somebody else's.
            if covered.has(one.sequence - 1) or one.sequence > last + 1:
                continue
            index = await self._chains.index(chain, one)
            if index is None:
                continue
            for first in range(0, len(index.rows), ROWS_IN_TURN):
                await asyncio.sleep(0)
                rows = index.leader_epochs(first, ROWS_IN_TURN, from_sequence=known.next_sequence)
                for name, epoch in rows:
                    _add_epoch(known, name, epoch)
            covered.add(max(index.start, known.next_sequence), index.end)
            end = max(end, index.end)
        return covered, end

    async def _footer(self, chain: ChainName, listed: ListedObject) -> WalFooter | None:
        try:
            return await self._chains.footer(chain, listed)
        except (ObjectNotFound, CorruptObject):
            return None


def _is_new(heir: Heir, firsts: dict[ChainName, int]) -> bool:
    """Return whether the heir's chain was not looked at from there on, and note it."""
    first = firsts.get(heir.chain)
    if first is not None and first <= heir.first_sequence:
        return False
    firsts[heir.chain] = heir.first_sequence
    return True


def _add_footer(known: _ReadChain, footer: WalFooter) -> None:
    rows: itertools.chain[SliceRow | ReferenceRow] = itertools.chain(
        footer.slices, footer.references
    )
    for row in rows:
        _add_epoch(known, (row.topic_id, row.partition), row.leader_epoch)


def _add_epoch(known: _ReadChain, name: tuple[bytes, int], leader_epoch: int) -> None:
    if leader_epoch > known.epochs.get(name, -1):  # A gateway's own slices have none.
        known.epochs[name] = leader_epoch
