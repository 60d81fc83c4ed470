"""Reads the tails of partitions from chains: one listing of each live chain, and new footers.

A partition's item names its chains. Read it before ``refresh`` lists them: records that were
acknowledged before are in one of these chains, or tiered. Read the tier's end after ``refresh``, at
least if it answers that objects were collected: then the tier has their records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from tidelog_core.diskless.chain.follower import FOOTERS_AT_ONCE, ChainFollower
from tidelog_core.diskless.chain.index import Covered
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.tail.partition_tail import PartitionTail, TailView
from tidelog_core.diskless.tail.tail_slice import packed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains

T = TypeVar("T")

CALLS_AT_ONCE_MAX = 16
ROWS_IN_TURN = 2_000  # of an index, in one turn of the loop
ROUNDS_MAX = 16  # of listings in one refresh; what they leave open is seen by the next one


class Refreshed(NamedTuple):
    """The result of a refresh."""

    is_grown: bool  # objects were committed
    is_collected: bool  # the tier has more than before: read it again
    is_sealed: bool  # a chain has ended: its partitions' items have changed, or will


class _Chain:
    """A chain that is read."""

    def __init__(self) -> None:
        self.follower = ChainFollower()
        # Partitions that nobody wants, and the first sequence that has some of them.
        self.unwanted: dict[PartitionName, int] = {}


class TailReader:
    """The tails of some partitions of a cluster. Used by one task."""

    def __init__(self, chains: ChainStore) -> None:
        self._store = chains
        self._chains: dict[ChainName, _Chain] = {}
        self._tails: dict[PartitionName, PartitionTail] = {}
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

    async def refresh(
        self, partitions: Collection[PartitionName], chains: Collection[ChainName]
    ) -> Refreshed:
        """List every chain that may grow, and read the new records of these partitions.

        ``chains`` are those that their items name. Raises ``CorruptObject`` and
        ``StoreUnavailable``; then nothing is lost, and it can be called again.
        """
        is_collected = await self._want(partitions)
        for gone in self._chains.keys() - set(chains):
            del self._chains[gone]
        for chain in chains:
            self._chains.setdefault(chain, _Chain())
        live = [(n, one) for n, one in self._chains.items() if not one.follower.is_sealed]
        before = [(one.follower.end, one.follower.collected_end) for _, one in live]
        await _all(self._follow(name, one) for name, one in live)
        after = [(one.follower.end, one.follower.collected_end) for _, one in live]
        moved = list(zip(before, after, strict=True))
        return Refreshed(
            is_grown=any(old[0] < new[0] for old, new in moved),
            is_collected=is_collected or any(old[1] < new[1] for old, new in moved),
            is_sealed=any(one.follower.is_sealed for _, one in live),
        )

    def view(
        self,
        partition: PartitionName,
        tiered_end: int,
        chains: EpochChains | None,
        *,
        is_over_gaps: bool = False,
    ) -> TailView:
        """Return the tail of a partition of the last refresh, as ``PartitionTail.advance``."""
        return self._tails[partition].advance(tiered_end, chains, is_over_gaps=is_over_gaps)

    # -- partitions --

    async def _want(self, partitions: Collection[PartitionName]) -> bool:
        """Read new partitions' slices in earlier objects; return whether some objects are gone."""
        wanted = set(partitions)
        for name in self._tails.keys() - wanted:
            del self._tails[name]
            for chain in self._chains.values():  # It may be wanted again.
                chain.unwanted[name] = 0
        added = wanted - self._tails.keys()
        tails = {name: PartitionTail() for name in added}
        is_collected = False
        for chain_name, chain in self._chains.items():
            there = [chain.unwanted[one] for one in added & chain.unwanted.keys()]
            if there:
                end = chain.follower.end
                is_collected |= await self._read_again(chain_name, min(there), end, tails)
        self._tails |= tails
        for chain in self._chains.values():
            for one in added:
                chain.unwanted.pop(one, None)
        return is_collected

    async def _read_again(
        self, name: ChainName, first: int, end: int, tails: Mapping[PartitionName, PartitionTail]
    ) -> bool:
        found = await self._store.list_all(name, first)
        listed = [one for one in found.objects if one.sequence < end]
        is_gone = len(listed) < end - first
        listed = await self._without_others(name, listed, found.checkpoints, tails)
        for at in range(0, len(listed), FOOTERS_AT_ONCE):
            footers = await self._footers(name, listed[at : at + FOOTERS_AT_ONCE])
            for footer in footers.values():
                if footer is None:
                    is_gone = True
                elif not footer.is_seal:
                    for partition, one in packed_slices(footer):
                        if partition in tails:
                            tails[partition].add(one)
        return is_gone

    async def _without_others(
        self,
        name: ChainName,
        listed: Sequence[ListedObject],
        indexes: Sequence[ListedObject],
        tails: Mapping[PartitionName, PartitionTail],
    ) -> list[ListedObject]:
        """Return the objects that have some of the partitions, as far as indexes say."""
        covered, wanted = Covered(), set[int]()
        for one in reversed(indexes):
            if len(listed) - len(wanted) < FOOTERS_AT_ONCE or covered.has(one.sequence - 1):
                continue  # So few footers are read at once.
            async with self._calls:
                index = await self._store.index(name, one)
            if index is None:
                continue
            covered.add(index.start, index.end)
            for count, (sequence, row) in enumerate(index.slices(), 1):
                if count % ROWS_IN_TURN == 0:
                    await asyncio.sleep(0)
                if PartitionName(UUID(bytes=row.topic_id), row.partition) in tails:
                    wanted.add(sequence)
        return [one for one in listed if one.sequence in wanted or not covered.has(one.sequence)]

    # -- chains --

    async def _follow(self, name: ChainName, chain: _Chain) -> None:
        follower = chain.follower
        for _ in range(ROUNDS_MAX):
            start = follower.start()
            async with self._calls:
                listed = await self._store.list(name, start)
            follower.on_listed(listed)
            self._add(chain, follower.take())
            while wanted := follower.wanted():
                follower.on_footers(await self._footers(name, wanted))
                self._add(chain, follower.take())
            if not follower.is_unsettled:
                return

    def _add(self, chain: _Chain, footers: Iterable[WalFooter]) -> None:
        for footer in footers:
            for partition, one in packed_slices(footer):
                tail = self._tails.get(partition)
                if tail is None:
                    chain.unwanted.setdefault(partition, footer.header.sequence)
                else:
                    tail.add(one)

    async def _footers(
        self, name: ChainName, listed: Sequence[ListedObject]
    ) -> dict[int, WalFooter | None]:
        """Return the footers by sequence, ``None`` for an object that no longer exists."""

        async def read(one: ListedObject) -> WalFooter | None:
            async with self._calls:
                try:
                    return await self._store.footer(name, one)
                except ObjectNotFound:
                    return None
                except CorruptObject:
                    # It was listed and collected, and a late seal of another size has its key.
                    header = await self._store.header(name, one.sequence)
                    if header is None or header.size_bytes != one.size_bytes:
                        return None
                    raise

        found = await _all(map(read, listed))
        return {one.sequence: footer for one, footer in zip(listed, found, strict=True)}


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Return all answers. If some fail, all have ended before the first failure is raised."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    answers: list[T] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        answers.append(one)
    return answers
