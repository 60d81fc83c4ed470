"""Seals the chains that earlier processes of a broker have left.

An heir seals the chain of a node that led partitions. That of a gateway that led none, or of a node
that has handed all of its partitions over, is the last one of no item, so nobody looks for it: it
would never be collected. The next process of the broker seals it when its own chain is there,
another node if there is none (``abandoned_chains``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from tidelog_core.diskless.bucket.chains import chains_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.chain.walk import looks_like_seal
from tidelog_core.diskless.takeover.sealing import seal_chain
from tidelog_core.diskless.wal.keys import broker_chains_prefix
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore

logger = logging.getLogger(__name__)


async def seal_former_chains(
    store: ObjectStore,
    cluster_id: str,
    broker_id: int,
    own: ChainName,
    *,
    named: Collection[ChainName],
    clock_ms: Callable[[], int],
) -> bool:
    """Seal the chains of the broker but this node's own and those that items name last.

    Those are for heirs. Returns whether none is left that could not be sealed.
    """
    prefix = broker_chains_prefix(cluster_id, broker_id)
    chains = ChainStore(store, cluster_id)
    try:
        listed = chains_of([one async for one in store.list(prefix)])
        for chain, objects in listed.items():
            # One of seals alone is collected.
            if chain != own and chain not in named and not all(map(looks_like_seal, objects)):
                await seal_chain(chains, chain, cluster_id=cluster_id, heir=own, clock_ms=clock_ms)
    except TidelogError as error:
        # Another process tries again. Nothing depends on it but what the objects cost.
        logger.warning(
            "former chains are not sealed", extra={"broker_id": broker_id, "reason": str(error)}
        )
        return False
    return True
