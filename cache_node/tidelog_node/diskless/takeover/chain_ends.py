"""Seals the chains of earlier leaders, after a note in them of who may take their partitions."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer
from tidelog_core.diskless.wal.keys import Heir
from tidelog_core.metadata.epoch_chains import ChainName

from tidelog_node.diskless.recovery.chain_seal import seal_chain
from tidelog_node.diskless.takeover.leader_chain import LeaderChain
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

NOTE_SECONDS = 3_600.0  # for so long a note in a chain is not written again
NOTES_MAX = 256  # that are remembered


class ChainEnds:
    """Seals chains for takeovers. Raises the stores' errors, and those of ``seal_chain``.

    For the tasks of one event loop.
    """

    def __init__(self, node: NodeContext, chains: ChainStore) -> None:
        self._node = node
        self._chains = chains
        # The chains that this node's own has a note in, and the loop's time of it.
        self._noted: OrderedDict[tuple[ChainName, ChainName], float] = OrderedDict()

    async def seal(self, sealer: ChainSealer, own: LeaderChain) -> int:
        """Note this node as an heir in the chain, and seal it; return the seal's sequence."""
        noting = asyncio.create_task(self.note_heir(sealer.chain, own))
        try:
            sealed_at = await seal_chain(self._node, self._chains, sealer, heir=own.name)
            await noting
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
        logger.info("chain sealed", extra={"chain": str(sealer.chain), "sequence": sealed_at})
        return sealed_at

    async def note_heir(self, before: ChainName, own: LeaderChain) -> None:
        """Note this node as an heir in the chain, unless it was noted lately.

        Takeovers of damaged partitions are tried again every second, and notes stay for long.
        """
        now_s = asyncio.get_running_loop().time()
        noted_s = self._noted.get((before, own.name))
        if noted_s is not None and now_s - noted_s < NOTE_SECONDS:
            return
        await self._chains.note_heir(before, Heir(own.name, own.next_sequence))
        self._noted[before, own.name] = now_s
        while len(self._noted) > NOTES_MAX:
            self._noted.popitem(last=False)
