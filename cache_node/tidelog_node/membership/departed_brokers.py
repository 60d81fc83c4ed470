"""Takes brokers out of the cluster that have been gone for ``broker.unregister.after.ms``.

The live broker with the smallest id does it; if that one cannot, nothing is lost but time. The time
counts from when this process first saw the broker gone. The write is lost if the broker has renewed
its lease or has registered since, so a broker that sleeps is taken out only while it sleeps, and
registers again afterwards (``registration``).
"""

from __future__ import annotations

import asyncio
import logging

from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from tidelog_core.metadata.records import Broker
from tidelog_core.metadata.store import Write
from tidelog_core.replication.placement.departed_brokers import removable_brokers
from tidelog_core.waiting import wait_and_clear

from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

LOOKS = 4  # in the time after which a broker is taken out
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 1.0, 60.0
REMOVALS_PER_LOOK_MAX = 20


class DepartedBrokers:
    """Watches for one process. ``look`` is for one task."""

    def __init__(self, node: NodeContext, *, membership: Membership, after_ms: int) -> None:
        """``after_ms`` is negative if no broker is ever taken out."""
        self._node = node
        self._membership = membership
        self._after_ms = after_ms
        self._gone_since: dict[int, float] = {}  # when this process first saw it gone
        self._stir = asyncio.Event()

    async def run(self) -> None:
        """Look until cancelled."""
        if self._after_ms < 0:
            return
        unsubscribe = self._membership.subscribe(self._stir.set)
        seconds = self._after_ms / 1000 / LOOKS
        seconds = max(LOOK_SECONDS_MIN, min(seconds, LOOK_SECONDS_MAX))
        try:
            while True:
                await self.look()
                await wait_and_clear(self._stir, seconds)
        finally:
            unsubscribe()

    async def look(self) -> int:
        """Take out the brokers that are due; return how many were."""
        gone = self._long_gone()
        if not gone or not self._is_first():
            return 0
        removed = 0
        for broker_id in removable_brokers(self._node.view.image, gone)[:REMOVALS_PER_LOOK_MAX]:
            removed += await self._remove(self._node.view.image.brokers[broker_id])
        return removed

    def _long_gone(self) -> list[int]:
        now_ms, image = self._membership.now_ms(), self._node.view.image
        dead = {b for b in self._membership.dead if b in image.brokers}
        self._gone_since = {b: self._gone_since.get(b, now_ms) for b in dead}
        return [
            b for b, since_ms in self._gone_since.items() if now_ms - since_ms >= self._after_ms
        ]

    def _is_first(self) -> bool:
        live = self._membership.live_brokers(self._node.view.image)
        return self._membership.can_serve() and min(live, default=-1) == self._membership.broker_id

    async def _remove(self, broker: Broker) -> bool:
        check = self._membership.peers.check(broker.broker_id)
        try:
            await self._node.store.commit(
                [Write(broker.item_id, None, broker.version)], checks=[check]
            )
            await self._node.view.refresh()
        except (OutcomeUnknown, StoreUnavailable, VersionConflict):
            return False  # It is back, or the next look tries again.
        logger.info("broker taken out of the cluster", extra={"broker_id": broker.broker_id})
        return True
