"""Finds the objects of gateways that references in any chain name.

A gateway's slice has its offsets in another chain, so a collector of the gateway's chain must look
for references everywhere. Once no object has a reference any more, the tier has the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.diskless.bucket.chains import chains_of
from tidelog_core.diskless.chain.store import ChainStore, ListedObject
from tidelog_core.diskless.chain.walk import looks_like_seal
from tidelog_core.diskless.wal.keys import chains_prefix
from tidelog_core.errors import ObjectNotFound
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore

FOOTERS_AT_ONCE_MAX = 64
Referenced = Collection[tuple[ChainName, int]]  # chains and sequences of objects


async def read_referenced(
    objects: ObjectStore, cluster_id: str, on_read: Callable[[int], None] = lambda _: None
) -> Referenced:
    """Return the objects that a reference names. Reads the footer of every object of every chain.

    ``on_read`` gets the number of footers read, and may raise. Raises ``CorruptObject`` if one is
    damaged, because nobody knows what it refers to, and the store's errors.
    """
    chains = ChainStore(objects, cluster_id)
    listed = [one async for one in objects.list(chains_prefix(cluster_id))]
    found: set[tuple[ChainName, int]] = set()
    for chain, group in chains_of(listed).items():
        data = [one for one in group if not looks_like_seal(one)]
        for some in batched(data, FOOTERS_AT_ONCE_MAX):
            for names in await asyncio.gather(*(_named_in(chains, chain, one) for one in some)):
                found |= names
            on_read(len(some))
    return found


async def _named_in(
    chains: ChainStore, chain: ChainName, listed: ListedObject
) -> set[tuple[ChainName, int]]:
    try:
        footer = await chains.footer(chain, listed)
    except ObjectNotFound:  # It was collected since: the tier has what it referred to.
        return set()
    return {
        (ChainName(row.broker_id, UUID(bytes=row.chain_id)), row.sequence)
        for row in footer.references
    }
