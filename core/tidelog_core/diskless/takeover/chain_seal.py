"""Carries out a ``ChainSealer``'s decisions for programs without a node: restoration and scrub.

It uses the store's requests alone. Nothing is retried here: the store retries, and the caller
begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover import chain_sealer
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer, SealerDecision
from tidelog_core.diskless.wal.build import ObjectName, build_seal
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.epoch_chains import ChainName


class ChainNotSealed(StoreUnavailable):
    """The chain is still written, faster than it can be sealed."""

    hint = "stop every node of the cluster, then run the command again"

    def __init__(self, chain: ChainName, reason: str) -> None:
        super().__init__(f"chain {chain} is {reason}")


async def seal_chain(
    chains: ChainStore,
    chain: ChainName,
    *,
    cluster_id: str,
    heir: ChainName,
    clock_ms: Callable[[], int],
) -> int:
    """Seal the chain unless it is; return the seal's sequence. It is durable on return.

    Raises ``ChainNotSealed``, ``CorruptObject`` if a header that decides is damaged, and
    ``StoreUnavailable``.
    """
    end = await _run(ChainSealer(chain, now_ms=0.0), chains, cluster_id, heir, clock_ms)
    assert end is not None
    return end


async def find_seal(chains: ChainStore, chain: ChainName) -> int | None:
    """Return the sequence of the seal that ends the chain, ``None`` while it may grow.

    Writes nothing. Raises as ``seal_chain``.
    """
    sealer = ChainSealer(chain, now_ms=0.0, may_seal=False)
    return await _run(sealer, chains, "", chain, lambda: 0)


async def _run(
    sealer: ChainSealer,
    chains: ChainStore,
    cluster_id: str,
    heir: ChainName,
    clock_ms: Callable[[], int],
) -> int | None:
    decisions: Sequence[SealerDecision] = sealer.start()
    while decisions:
        decision, *rest = decisions
        if isinstance(decision, chain_sealer.Sealed):
            return decision.end
        if isinstance(decision, chain_sealer.StillOpen):
            return None
        if isinstance(decision, chain_sealer.GivenUp):
            raise ChainNotSealed(sealer.chain, decision.reason)
        if isinstance(decision, chain_sealer.ListChain):
            listed = await chains.list(sealer.chain, decision.start)
            answer = sealer.on_listed([one.sequence for one in listed])
        elif isinstance(decision, chain_sealer.ReadHeaders):
            answer = []
            for sequence in decision.sequences:
                answer += sealer.on_header(sequence, await chains.header(sealer.chain, sequence))
        else:
            sequence = decision.sequence
            name = ObjectName(
                cluster_id, sealer.chain, sequence, sequence, decision.previous_crc, clock_ms()
            )
            outcome = await chains.put(sealer.chain, sequence, build_seal(name, heir).data)
            if outcome is PutOutcome.THROTTLED:
                raise StoreUnavailable(f"the seal of chain {sealer.chain} could not be put")
            answer = sealer.on_seal_put(sequence, outcome, 0.0)
        decisions = [*rest, *answer]
    raise ChainNotSealed(sealer.chain, "still written")
