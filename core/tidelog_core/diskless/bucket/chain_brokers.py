"""Finds the brokers that have chains in the bucket, also chains that no item names any more.

Brokers are taken out of the cluster, and a metadata store may be set back to a time before they
joined. Their chains are never collected without a seal, so a node must find and seal them.
"""

from __future__ import annotations

from tidelog_core.diskless.wal.keys import broker_chains_prefix, chain_of_key, chains_prefix
from tidelog_core.objects.store import ObjectStore

LISTINGS_MAX = 10_000  # more brokers than any cluster has


async def brokers_with_chains(store: ObjectStore, cluster_id: str) -> set[int]:
    """Return the brokers' ids. Costs one listing for each broker, however many objects it has.

    Raises the store's errors.
    """
    found: set[int] = set()
    after = ""
    for _ in range(LISTINGS_MAX):
        key = await _first_key(store, chains_prefix(cluster_id), after)
        if key is None:
            break
        chain = chain_of_key(key)
        if chain is None:  # Something that others have put there.
            after = key
            continue
        found.add(chain.broker_id)
        after = f"{broker_chains_prefix(cluster_id, chain.broker_id)}~"
    return found


async def _first_key(store: ObjectStore, prefix: str, after: str) -> str | None:
    async for found in store.list(prefix, start_after=after):
        return found.key
    return None
