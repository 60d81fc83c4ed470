"""Listings of chains that were made before a takeover, so that heirs list only the rest.

    objects that follow each other without a gap      taken from the earlier listing
    those before and behind                           listed again

The earlier listing is of a chain that is still written, and comes in pages. An object may be
created after its page was listed, and the next page may have one whose header says that it exists.
So an object that the listing lacks need not be collected. An heir that believed so might end a
partition before acknowledged records. An object in the listing did exist, and below the committed
end in a header it is committed: nothing is created there except a late seal, which ends nothing.
Objects that were collected since are missing for their readers, as after any listing.

Listing a chain of one hour takes dozens of requests, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.diskless.chain.store import ChainStore, ListedChain, ListedObject
from tidelog_core.metadata.epoch_chains import ChainName

from tidelog_node.diskless.recovery.concurrent_calls import for_each

CHAINS_AT_ONCE_MAX = 8


class _Listed(NamedTuple):
    """A listing, and the sequence below which all is committed."""

    listing: ListedChain
    known_end: int


class ListingCache:
    """The cached listings. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._listed: dict[ChainName, _Listed] = {}
        self._chains: dict[int, set[ChainName]] = {}  # by the broker that they are kept for

    def keep(
        self, broker_id: int, chain: ChainName, listing: ListedChain, *, known_end: int
    ) -> None:
        """Keep a listing until ``drop`` is called for the broker.

        ``known_end`` is the committed end in the header of an object that it has.
        """
        before = self._listed.get(chain)
        if before is None or before.known_end < known_end:
            self._listed[chain] = _Listed(listing, known_end)
            self._chains.setdefault(broker_id, set()).add(chain)

    def drop(self, broker_id: int) -> None:
        """Forget the listings that were kept for the broker."""
        for chain in self._chains.pop(broker_id, ()):
            self._listed.pop(chain, None)

    def known_end(self, chain: ChainName) -> int:
        """Return a sequence below which every object is known to have existed."""
        listed = self._listed.get(chain)
        return 0 if listed is None else listed.known_end

    async def list(
        self, chains: ChainStore, names: Sequence[ChainName]
    ) -> dict[ChainName, ListedChain]:
        """Return listings as if they were made after the call. Raises the store's errors."""

        async def list_one(name: ChainName) -> ListedChain:
            before = self._listed.get(name)
            if before is None:
                return await chains.list_all(name)
            end = before.known_end
            start = _whole_from(before.listing.objects, end)
            first, rest = await for_each(
                ((0, start), (end, None)),
                lambda part: chains.list_all(name, part[0], below=part[1]),
                at_once_max=2,
            )
            return ListedChain(
                first.objects + _between(before.listing.objects, start, end) + rest.objects,
                first.checkpoints
                + _between(before.listing.checkpoints, start, end)
                + rest.checkpoints,
            )

        listed = await for_each(names, list_one, at_once_max=CHAINS_AT_ONCE_MAX)
        return dict(zip(names, listed, strict=True))


def _between(listed: Sequence[ListedObject], start: int, end: int) -> list[ListedObject]:
    return [one for one in listed if start <= one.sequence < end]


def _whole_from(objects: Sequence[ListedObject], end: int) -> int:
    """Return the least sequence from which on no object below ``end`` is missing."""
    there = {one.sequence for one in objects}
    at = end
    while at - 1 in there:
        at -= 1
    return at
