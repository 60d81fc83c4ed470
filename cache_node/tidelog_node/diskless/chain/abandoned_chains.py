"""Seals the chains of brokers that are gone and that no heir seals, so that they can be collected.

Heirs seal the chains that items name last. That of a node that was a gateway alone, or that has
handed everything over, is none of them. Its broker's next process seals it (``former_chains``). If
there is none, the live broker with the smallest id does, once the broker has been gone for
``after_ms``. If that one cannot, nothing is lost but time.

A broker that is taken for gone and lives loses nothing: its next object meets the seal, and what
its gateway has not committed goes into its next chain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog_core.config import NodeConfig
from tidelog_core.waiting import wait_and_clear

from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

AFTER_MS_MAX = 600_000
LOOKS = 4  # in that time


def abandoned_after_ms(config: NodeConfig) -> int:
    """Return how long a broker must be gone: half of the time after which nobody knows its id."""
    unregister_ms = config.broker_unregister_after_ms
    return AFTER_MS_MAX if unregister_ms < 0 else min(AFTER_MS_MAX, unregister_ms // 2)


class AbandonedChains:
    """Watches for one process. ``look`` is for one task."""

    def __init__(
        self,
        node: NodeContext,
        *,
        membership: Membership,
        seal: Callable[[int], Awaitable[bool]],
        after_ms: int,
    ) -> None:
        """``seal`` seals the chains of the broker of that id; false: it has to be called again."""
        self._node = node
        self._membership = membership
        self._seal = seal
        self._after_ms = after_ms
        self._gone_since: dict[int, float] = {}  # when this process first saw it gone
        self._sealed: set[int] = set()  # since then

    async def run(self) -> None:
        """Look until cancelled."""
        never = asyncio.Event()
        seconds = max(self._after_ms / 1000 / LOOKS, 1.0)
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("search for abandoned chains broke, will retry")
            await wait_and_clear(never, seconds)

    async def look(self) -> None:
        """Seal the chains of the brokers that are due."""
        now_ms, dead = self._membership.now_ms(), self._membership.dead
        self._gone_since = {b: self._gone_since.get(b, now_ms) for b in dead}
        self._sealed &= dead
        if not self._is_first():
            return
        for broker_id, since_ms in tuple(self._gone_since.items()):
            is_due = now_ms - since_ms >= self._after_ms
            if is_due and broker_id not in self._sealed and await self._seal(broker_id):
                self._sealed.add(broker_id)

    def _is_first(self) -> bool:
        live = self._membership.live_brokers(self._node.view.image)
        return self._membership.can_serve() and min(live, default=-1) == self._membership.broker_id
