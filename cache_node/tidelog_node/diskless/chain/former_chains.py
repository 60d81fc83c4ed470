"""Seals the chains that earlier processes of a broker have left.

An heir seals the chain of a node that led partitions. That of a gateway that led none, or of a node
that has handed all of its partitions over, is the last one of no item, so nobody looks for it: it
would never be collected. The next process of the broker seals it when its own chain is there, and
tries again until that is done; another node if there is none (``abandoned_chains``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from tidelog_core.diskless.bucket.chains import chains_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.chain.walk import looks_like_seal
from tidelog_core.diskless.takeover.chain_seal import ChainNotSealed, seal_chain
from tidelog_core.diskless.wal.keys import broker_chains_prefix
from tidelog_core.errors import CorruptObject, TidelogError
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.store import ObjectStore

logger = logging.getLogger(__name__)


async def seal_former_chains(
    store: ObjectStore,
    cluster_id: str,
    broker_id: int,
    heir: ChainName,
    *,
    begun: Collection[ChainName],
    named: Collection[ChainName],
    clock_ms: Callable[[], int],
) -> bool:
    """Seal a broker's chains but those that this process has begun or that items name last.

    The latter are for heirs. ``begun`` may grow during the call. Returns whether none is left. One
    that is named is left: an heir may find another one dead, or the partition's topic may be
    deleted.
    """
    prefix = broker_chains_prefix(cluster_id, broker_id)
    chains, is_done = ChainStore(store, cluster_id), True
    try:
        listed = chains_of([one async for one in store.list(prefix)])
        for chain, objects in listed.items():
            # One of seals alone is collected.
            if chain in begun or all(map(looks_like_seal, objects)):
                continue
            if chain in named:
                is_done = is_done and any(map(looks_like_seal, objects))
                continue
            try:
                await seal_chain(chains, chain, cluster_id=cluster_id, heir=heir, clock_ms=clock_ms)
            except (CorruptObject, ChainNotSealed) as error:  # The others can still be sealed.
                is_done = False
                _warn(broker_id, error)
    except TidelogError as error:
        is_done = False
        _warn(broker_id, error)
    return is_done


def _warn(broker_id: int, error: TidelogError) -> None:
    # The caller tries again. Nothing depends on it but what the objects cost.
    logger.warning(
        "former chains are not sealed", extra={"broker_id": broker_id, "reason": str(error)}
    )
