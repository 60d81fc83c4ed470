"""Finds out whether chains still have copies of erased records of a diskless topic.

An object of a chain has records of many partitions and is never rewritten. It goes once the tier
has all of them, at the latest some time after ``diskless.wal.max.age.ms``. Erased are records that
the tier has, so their objects were stored before: no later than the *frontier*, the greatest
sequence of each chain in a listing that is made after the tier was rewritten. Objects above it, and
later chains, do not have them. A chain that is sealed is looked at whole: what its owner had in
flight may come late, and has records that were never acknowledged.

While many such objects are there they are only listed. The last ones are read: one without the
topic's partitions does not count. A damaged object may have anything. Of sealed chains, objects
that nobody needs are deleted here.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from tidelog_core.diskless.bucket.chains import chains_of
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.chain.walk import looks_like_seal
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.collection.sealed_chain import collect_sealed, read_unneeded_ends
from tidelog_core.diskless.takeover.chain_seal import ChainNotSealed, find_seal
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import chains_prefix
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.store import ObjectStore

READ_MAX = 64  # footers, each of them once
Frontier = tuple[tuple[int, str, int], ...]
"""Broker id, chain id and greatest sequence of each chain that has data objects."""


class WalCopies:
    """The copies of some partitions' records in chains. For one erasure, used by one task."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id
        self._chains = ChainStore(objects, cluster_id)
        # The partitions in objects that were read; ``None``: damaged.
        self._read: dict[tuple[ChainName, int], frozenset[PartitionName] | None] = {}
        self._sealed: set[ChainName] = set()
        self.object_count = 0  # of the last look: with such records, or not read

    async def frontier(self) -> Frontier:
        """Return how far the chains go now. Raises the store's errors."""
        found: list[tuple[int, str, int]] = []
        for chain, objects in (await self._listed()).items():
            sequences = [one.sequence for one in objects if not looks_like_seal(one)]
            if sequences:
                found.append((chain.broker_id, str(chain.chain_id), max(sequences)))
        return tuple(found)

    async def remaining(
        self, frontier: Frontier, names: Collection[PartitionName]
    ) -> set[PartitionName]:
        """Return the partitions whose records from before the frontier may still be in chains.

        Raises the store's errors.
        """
        ends = {ChainName(broker, UUID(chain)): last for broker, chain, last in frontier}
        there: list[tuple[ChainName, ListedObject]] = []
        for chain, objects in (await self._listed()).items():
            data = [one for one in objects if not looks_like_seal(one)]
            if data and len(data) < len(objects) and await self._is_sealed(chain):
                there += [(chain, one) for one in data]
            else:
                end = ends.get(chain, -1)
                there += [(chain, one) for one in data if one.sequence <= end]
        places = {(chain, one.sequence) for chain, one in there}
        self._read = {place: names for place, names in self._read.items() if place in places}
        unread = places - self._read.keys()
        if len(unread) > READ_MAX:
            self.object_count = len(there)
            return set(names)
        left: set[PartitionName] = set()
        self.object_count = 0
        for chain, one in there:
            inside = await self._partitions_in(chain, one)
            found = set(names) if inside is None else inside.intersection(names)
            self.object_count += bool(found)
            left |= found
        return left

    async def collect(self) -> None:
        """Delete the unneeded objects of sealed chains. Raises the stores' errors."""

        async def read_unneeded(names: Collection[PartitionName]) -> UnneededEnds:
            return await read_unneeded_ends(self._store, names, keeps_restored=True)

        for chain in sorted(self._sealed):
            try:
                await collect_sealed(self._chains, self._cluster_id, chain, read_unneeded)
            except (ChainNotSealed, CorruptObject):
                continue  # The scrub names it.

    async def _listed(self) -> dict[ChainName, list[ListedObject]]:
        prefix = chains_prefix(self._cluster_id)
        return chains_of([one async for one in self._objects.list(prefix)])

    async def _is_sealed(self, chain: ChainName) -> bool:
        """Return whether the chain has ended. A late seal below its end does not end it."""
        if chain not in self._sealed:
            try:
                if await find_seal(self._chains, chain) is None:
                    return False
            except CorruptObject:
                pass  # The bytes above may be garbage.
            self._sealed.add(chain)
        return True

    async def _partitions_in(
        self, chain: ChainName, one: ListedObject
    ) -> frozenset[PartitionName] | None:
        """Return the partitions that have bytes in the object; ``None``: unknown."""
        place = (chain, one.sequence)
        if place not in self._read:
            try:
                footer = await self._chains.footer(chain, one)
            except ObjectNotFound:
                return frozenset()
            except CorruptObject:
                self._read[place] = None
            else:
                names = (PartitionName.of_row(row) for row in footer.slices)
                self._read[place] = frozenset(names)
        return self._read[place]
