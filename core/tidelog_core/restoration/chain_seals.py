"""Seals every chain of a cluster before it is read, so that its contents are final.

A node of the old cluster that is still alive meets the seal with its next PUT, and acknowledges
nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from tidelog_core.diskless.bucket.chains import chains_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.chain.walk import looks_like_seal
from tidelog_core.diskless.takeover.chain_seal import seal_chain
from tidelog_core.diskless.wal.keys import chains_prefix
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.bucket import ClusterObjects
from tidelog_core.tier.keys import is_wal_key


async def seal_chains(
    objects: ObjectStore, cluster: ClusterObjects, *, broker_id: int, clock_ms: Callable[[], int]
) -> None:
    """Seal the chains of the listing, then list them again into ``cluster``.

    A chain with a damaged header at its end is left as it is: the survey names it. Raises
    ``ChainNotSealed`` and the store's errors.
    """
    if not cluster.chain_objects:
        return
    chains = ChainStore(objects, cluster.cluster_id)
    heir = ChainName(broker_id, uuid4())  # No node has it: nothing will be written to it.
    for chain, listed in chains_of(cluster.chain_objects).items():
        if listed and not all(map(looks_like_seal, listed)):
            try:
                await seal_chain(
                    chains, chain, cluster_id=cluster.cluster_id, heir=heir, clock_ms=clock_ms
                )
            except CorruptObject:
                continue
    prefix = chains_prefix(cluster.cluster_id)
    found = [one async for one in objects.list(prefix) if is_wal_key(one.key)]
    cluster.chain_objects = found
