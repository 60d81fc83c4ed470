"""Seals the chain of an earlier leader: carries out a ``ChainSealer``'s decisions.

The sealer retries requests that the store did not answer, for a limited number of rounds. So an
unreachable store delays a seal, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tidelog_core.batched import batched
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover import chain_sealer
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer, SealerDecision
from tidelog_core.diskless.wal.build import ObjectName, build_seal
from tidelog_core.errors import StoreUnavailable, TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName

from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

AWAY = (StoreUnavailable, TierUnavailable)
HEADERS_AT_ONCE_MAX = 64


class ChainStillOpen(StoreUnavailable):
    """A chain could not be sealed: its owner writes faster than its heir, or it has changed.

    None of its partitions was taken over. The next attempt begins again.
    """

    def __init__(self, chain: ChainName, reason: str) -> None:
        super().__init__(f"the chain {chain} cannot be ended: {reason}")


async def seal_chain(
    node: NodeContext, chains: ChainStore, sealer: ChainSealer, *, heir: ChainName
) -> int:
    """Seal the chain; return the seal's sequence. It is durable on return.

    Raises ``ChainStillOpen``, and ``CorruptObject`` if a header that decides is damaged.
    """
    decisions = sealer.start()
    while True:
        while decisions:
            decision = decisions[0]
            if isinstance(decision, chain_sealer.Sealed):
                return decision.end
            if isinstance(decision, chain_sealer.GivenUp):
                raise ChainStillOpen(sealer.chain, decision.reason)
            decisions = [*decisions[1:], *await _carry_out(node, chains, sealer, decision, heir)]
        delay_ms = sealer.delay_ms(node.membership.now_ms())
        assert delay_ms is not None, "a sealer without an end waits for something"
        await asyncio.sleep(delay_ms / 1000)
        decisions = sealer.tick(node.membership.now_ms())


async def _carry_out(
    node: NodeContext,
    chains: ChainStore,
    sealer: ChainSealer,
    decision: SealerDecision,
    heir: ChainName,
) -> Sequence[SealerDecision]:
    """Carry out one decision; return the sealer's next decisions."""
    try:
        if isinstance(decision, chain_sealer.ListChain):
            listed = await chains.list(sealer.chain, decision.start)
            return sealer.on_listed([one.sequence for one in listed])
        if isinstance(decision, chain_sealer.ReadHeaders):
            return await _read_headers(chains, sealer, decision.sequences)
    except AWAY as error:
        logger.warning(
            "chain cannot be read, will retry",
            extra={"chain": str(sealer.chain), "reason": str(error)},
        )
        return sealer.on_failed(node.membership.now_ms())
    assert isinstance(decision, chain_sealer.PutSeal)
    name = ObjectName(
        node.view.image.cluster_id,
        sealer.chain,
        decision.sequence,
        decision.sequence,
        decision.previous_crc,
        node.clock_ms(),
    )
    try:
        data = build_seal(name, heir).data
        outcome = await chains.put(sealer.chain, decision.sequence, data)
    except TierUnavailable:  # The worker may have sent it.
        outcome = PutOutcome.UNKNOWN
    return sealer.on_seal_put(decision.sequence, outcome, node.membership.now_ms())


async def _read_headers(
    chains: ChainStore, sealer: ChainSealer, sequences: Sequence[int]
) -> Sequence[SealerDecision]:
    """Read the headers; return the decisions. Raises the errors of ``ChainStore.header``."""
    decisions: list[SealerDecision] = []
    for some in batched(sequences, HEADERS_AT_ONCE_MAX):
        headers = await asyncio.gather(*(chains.header(sealer.chain, one) for one in some))
        for sequence, header in zip(some, headers, strict=True):
            decisions += sealer.on_header(sequence, header)
    return decisions
