"""Seals the chains of brokers that are gone and that no heir seals, so that they can be collected.

Heirs seal the chains that items name last. That of a node that was a gateway alone, or that has
handed everything over, is none of them. Its broker's next process seals it (``former_chains``): as
soon as it has a chain itself, or ``after_ms`` after its start. There may be no diskless topic any
more, and the objects are then for nobody. If there is no next process, the live broker with the
smallest id does it, once the broker has been gone for ``after_ms``. If that one cannot, nothing is
lost but time.

A broker may be gone of which no process knows: it was taken out of the cluster while none was
there to see it, or the metadata store was set back. So that node asks the bucket once a day which
brokers have chains.

A broker that is taken for gone and lives loses nothing: its next object meets the seal, and what
its gateway has not committed goes into its next chain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from tidelog_core.config import NodeConfig
from tidelog_core.errors import TidelogError
from tidelog_core.waiting import wait_and_clear

from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

AFTER_MS_MAX = 600_000
LOOKS = 4  # in that time
# Between failed tries: each waits longer, because a node without a chain starts a worker for it.
RETRY_MS_MIN, RETRY_MS_MAX = 1_000.0, 3_600_000.0
FIND_MS = 24 * 3_600_000  # between two looks at the bucket


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
        find: Callable[[], Awaitable[Collection[int]]],
        after_ms: int,
    ) -> None:
        """``seal`` seals the chains of the broker of that id; false: it has to be called again.

        ``find`` returns the brokers that have chains in the bucket.
        """
        self._node = node
        self._membership = membership
        self._seal = seal
        self._find = find
        self._after_ms = after_ms
        self._seen: set[int] = set()  # brokers; an administrator may have removed one since
        self._gone_since: dict[int, float] = {}  # when this process first saw it gone
        self._began_ms = membership.now_ms()
        self._find_due_ms = self._began_ms + after_ms
        self._sealed: set[int] = set()  # since then; this broker's former processes, too
        self._retries: dict[int, tuple[float, float]] = {}  # when, and the delay before

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
        now_ms, own = self._membership.now_ms(), self._membership.broker_id
        if self._is_first() and now_ms >= self._find_due_ms:
            await self._find_brokers(now_ms)
        registered = self._node.view.image.brokers.keys()
        self._seen |= registered
        gone = self._membership.dead | (self._seen - registered - {own})
        self._gone_since = {b: self._gone_since.get(b, now_ms) for b in gone}
        self._sealed &= gone | {own}
        self._retries = {b: retry for b, retry in self._retries.items() if b in gone or b == own}
        if self._is_first():
            for broker_id, since_ms in tuple(self._gone_since.items()):
                await self._seal_if_due(broker_id, since_ms)
        if self._membership.can_serve():  # Else another process may have the id, and its chain.
            await self._seal_if_due(own, self._began_ms)

    async def _find_brokers(self, now_ms: float) -> None:
        self._find_due_ms = now_ms + RETRY_MS_MAX
        try:
            self._seen |= set(await self._find())
        except TidelogError as error:
            reason = {"reason": str(error)}
            logger.warning("chains of the bucket cannot be listed, will retry", extra=reason)
        else:
            self._find_due_ms = now_ms + FIND_MS

    async def _seal_if_due(self, broker_id: int, since_ms: float) -> None:
        now_ms = self._membership.now_ms()
        due_ms, delay_ms = self._retries.get(broker_id, (since_ms + self._after_ms, RETRY_MS_MIN))
        if broker_id in self._sealed or now_ms < due_ms:
            return
        self._retries[broker_id] = now_ms + delay_ms, min(2 * delay_ms, RETRY_MS_MAX)
        if await self._seal(broker_id):
            self._sealed.add(broker_id)
            del self._retries[broker_id]

    def _is_first(self) -> bool:
        live = self._membership.live_brokers(self._node.view.image)
        return self._membership.can_serve() and min(live, default=-1) == self._membership.broker_id
