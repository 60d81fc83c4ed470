"""Reads the tails of partitions from chains: one listing of each live chain, and new footers.

A partition's item names its chains. Read it before ``refresh`` lists them: records that were
acknowledged before are in one of these chains, or tiered. Read the tier's end after ``refresh``, at
least if it answers that objects were collected: then the tier has their records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidelog_core.batched import batched
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


class _FollowedChain:
    """A chain that is read as it grows."""

    def __init__(self) -> None:
        self.follower = ChainFollower()
        # The partitions whose slices were skipped, each with the first sequence that has some.
        self.skipped: dict[PartitionName, int] = {}


class TailReader:
    """The tails of some partitions of a cluster. Used by one task."""

    def __init__(self, chains: ChainStore) -> None:
        self._store = chains
        self._chains: dict[ChainName, _FollowedChain] = {}
        self._tails: dict[PartitionName, PartitionTail] = {}
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

    async def refresh(
        self, partitions: Collection[PartitionName], chains: Collection[ChainName]
    ) -> Refreshed:
        """List every chain that may grow, and read the new records of these partitions.

        ``chains`` are those that their items name. Raises ``CorruptObject`` and
        ``StoreUnavailable``; then nothing is lost, and it can be called again.
        """
        is_collected = await self._set_partitions(partitions)
        for gone in self._chains.keys() - set(chains):
            del self._chains[gone]
        for chain in chains:
            self._chains.setdefault(chain, _FollowedChain())
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

    async def _set_partitions(self, partitions: Collection[PartitionName]) -> bool:
        """Follow these partitions from now on. Return whether objects were collected meanwhile.

        The slices of new ones in objects that the followers have passed are read now.
        """
        wanted = set(partitions)
        for name in self._tails.keys() - wanted:
            del self._tails[name]
            for chain in self._chains.values():  # It may be wanted again, from the start.
                chain.skipped[name] = 0
        added = wanted - self._tails.keys()
        tails = {name: PartitionTail() for name in added}
        is_collected = False
        for chain_name, chain in self._chains.items():
            firsts = [chain.skipped[one] for one in added & chain.skipped.keys()]
            if firsts:
                end = chain.follower.end
                is_collected |= await self._read_skipped(chain_name, min(firsts), end, tails)
        self._tails |= tails
        for chain in self._chains.values():
            for one in added:
                chain.skipped.pop(one, None)
        return is_collected

    async def _read_skipped(
        self, name: ChainName, first: int, end: int, tails: Mapping[PartitionName, PartitionTail]
    ) -> bool:
        """Add the slices in objects ``[first, end)``; return whether any object is gone."""
        found = await self._store.list_all(name, first)
        listed = [one for one in found.objects if one.sequence < end]
        is_gone = len(listed) < end - first
        listed = await self._objects_with(tails, name, listed, found.checkpoints)
        for some in batched(listed, FOOTERS_AT_ONCE):
            footers = await self._footers(name, some)
            is_gone |= None in footers.values()
            for footer in footers.values():
                if footer is not None and not footer.is_seal:
                    _add_slices(footer, tails)
        return is_gone

    async def _objects_with(
        self,
        partitions: Container[PartitionName],
        name: ChainName,
        listed: Sequence[ListedObject],
        indexes: Sequence[ListedObject],
    ) -> list[ListedObject]:
        """Return the objects that may have slices of the partitions, by the chain's indexes.

        An object that no index covers is one of them. Too few objects to be worth an index are
        returned as they are.
        """
        covered, wanted = Covered(), set[int]()
        for one in reversed(indexes):  # the newest first
            if len(listed) - len(wanted) < FOOTERS_AT_ONCE or covered.has(one.sequence - 1):
                continue
            async with self._calls:
                index = await self._store.index(name, one)
            if index is None:
                continue
            covered.add(index.start, index.end)
            for count, (sequence, row) in enumerate(index.slices(), 1):
                if count % ROWS_IN_TURN == 0:
                    await asyncio.sleep(0)
                if PartitionName.of_row(row) in partitions:
                    wanted.add(sequence)
        return [one for one in listed if one.sequence in wanted or not covered.has(one.sequence)]

    # -- chains --

    async def _follow(self, name: ChainName, chain: _FollowedChain) -> None:
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

    def _add(self, chain: _FollowedChain, footers: Iterable[WalFooter]) -> None:
        for footer in footers:
            for partition, packed in packed_slices(footer):
                tail = self._tails.get(partition)
                if tail is None:
                    chain.skipped.setdefault(partition, footer.header.sequence)
                else:
                    tail.add(packed)

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


def _add_slices(footer: WalFooter, tails: Mapping[PartitionName, PartitionTail]) -> None:
    """Add the object's slices to the tails of their partitions; others are left out."""
    for partition, packed in packed_slices(footer):
        if partition in tails:
            tails[partition].add(packed)


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Return all answers. If some fail, all have ended before the first failure is raised."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    answers: list[T] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        answers.append(one)
    return answers
