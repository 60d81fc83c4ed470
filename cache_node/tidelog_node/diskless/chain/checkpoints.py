"""Has the WAL worker write checkpoints of the node's chain, every so often.

In a folder a chain gets thousands of objects in that time, and heirs read the footers of those that
no checkpoint has while producers wait. So one is also written after so many objects.

The worker knows the slices of the objects that it has built, so nothing is done here for any of
them. Producers are known here: ``CommittedProducers`` takes them from the logs, and the checkpoint
gets them one look later, when the chain has committed what they had written. So an heir that has
none of a long tail reads the footers of its end alone, however long it is (``deferred_fills``).

A checkpoint is an aid: a failure is logged, and the next one has more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog_core.errors import TidelogError

from tidelog_node.diskless.chain.committed_producers import CommittedProducers
from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

OBJECTS_MAX = 512  # without a checkpoint, but for those of the next look
LOOK_SECONDS = 1.0


class ChainCheckpoints:
    """Writes those of the current chain. For the event loop; ``run`` is one task."""

    def __init__(
        self,
        node: NodeContext,
        chain: Callable[[], OwnedChain | None],
        *,
        objects_max: int = OBJECTS_MAX,
    ) -> None:
        self._node = node
        self._chain = chain
        self._objects_max = objects_max
        self._producers = CommittedProducers()
        self._written: tuple[OwnedChain, int] | None = None  # up to where

    async def run(self) -> None:
        """Write until cancelled."""
        loop = asyncio.get_running_loop()
        tried_s, has_failed = loop.time(), False
        while True:
            interval_s = self._node.config().diskless_checkpoint_interval_ms / 1000
            await asyncio.sleep(min(interval_s, LOOK_SECONDS))
            is_long = not has_failed and self.new_count >= self._objects_max
            if is_long or loop.time() - tried_s >= interval_s:
                tried_s, has_failed = loop.time(), not await self._try_write(interval_s)

    async def _try_write(self, interval_s: float) -> bool:
        try:
            await self.note_producers()
            await asyncio.sleep(min(interval_s, LOOK_SECONDS))  # They are committed by then.
            await self.write()
        except TidelogError as error:
            logger.warning(
                "checkpoint of the chain not written, will retry", extra={"reason": str(error)}
            )
        except Exception:
            logger.exception("checkpoint of the chain broke, will retry")
        else:
            return True
        return False

    @property
    def new_count(self) -> int:
        """The number of committed objects that no checkpoint has."""
        chain = self._chain()
        if chain is None or chain.is_deposed:
            return 0
        of_chain, end = self._written or (None, 0)
        return chain.committed_end - (end if of_chain is chain else 0)

    async def note_producers(self) -> None:
        """Take the logs' producers as they are; a later checkpoint has them."""
        chain = self._chain()
        if chain is not None and not chain.is_deposed:
            await self._producers.take(chain.partitions)

    async def write(self) -> None:
        """Write a checkpoint if something was committed since the last one.

        Raises the store's errors, and ``TierUnavailable``.
        """
        chain = self._chain()
        if chain is None or chain.is_deposed or self._written == (chain, chain.committed_end):
            return
        end = chain.committed_end
        if end:
            snapshots = self._producers.committed(chain.partitions)
            await chain.write_checkpoint(self._node.clock_ms(), snapshots)
        self._written = chain, end
