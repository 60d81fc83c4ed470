"""Listings of chains that were made ahead of a takeover, so that heirs list only what came since.

    objects below the known end       existed when they were listed, or had been collected
    from the known end on             listed again

The header of an object says up to where its chain was known to be committed when it was built. All
lower objects existed by then, and none is created in their place but a late seal, which ends
nothing. So a listing that has the object stays right below that end: it lacks what was collected
before, and has what is collected since. Whoever reads that finds nothing, as after any listing.

After an hour of a chain in a bucket a listing takes dozens of requests, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.diskless.chain.store import ChainStore, ListedChain, ListedObject
from tidelog_core.metadata.epoch_chains import ChainName

from tidelog_node.diskless.recovery.calls_at_once import for_each

CHAINS_AT_ONCE_MAX = 8


class _Listed(NamedTuple):
    """A listing, and the sequence below which it stays right."""

    listing: ListedChain
    known_end: int


class ListingsAhead:
    """The listings that are kept. For the tasks of one event loop."""

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
            since = await chains.list_all(name, before.known_end)
            return ListedChain(
                _below(before.listing.objects, before.known_end) + since.objects,
                _below(before.listing.checkpoints, before.known_end) + since.checkpoints,
            )

        listed = await for_each(names, list_one, at_once_max=CHAINS_AT_ONCE_MAX)
        return dict(zip(names, listed, strict=True))


def _below(listed: Sequence[ListedObject], end: int) -> list[ListedObject]:
    return [one for one in listed if one.sequence < end]
