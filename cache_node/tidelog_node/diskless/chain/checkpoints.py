"""Has the WAL worker write checkpoints of the node's chain, every so often.

The worker knows the slices of the objects that it has built, so nothing is done here for any
partition or object. A checkpoint is an aid: a failure is logged, and the next one has more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog_core.errors import TidelogError

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)


class ChainCheckpoints:
    """Writes those of the current chain. For the event loop; ``run`` is one task."""

    def __init__(self, node: NodeContext, chain: Callable[[], OwnedChain | None]) -> None:
        self._node = node
        self._chain = chain
        self._written: tuple[OwnedChain, int] | None = None  # up to where

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._node.config().diskless_checkpoint_interval_ms / 1000)
            try:
                await self.write()
            except TidelogError as error:
                logger.warning(
                    "checkpoint of the chain not written, will retry", extra={"reason": str(error)}
                )
            except Exception:
                logger.exception("checkpoint of the chain broke, will retry")

    async def write(self) -> None:
        """Write a checkpoint if something was committed since the last one.

        Raises the store's errors, and ``TierUnavailable``.
        """
        chain = self._chain()
        if chain is None or chain.is_deposed or self._written == (chain, chain.committed_end):
            return
        end = chain.committed_end
        if end:
            await chain.write_checkpoint(self._node.clock_ms())
        self._written = chain, end
