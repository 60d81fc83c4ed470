"""Removes expired delegation tokens from the store. They log nobody in before that either."""

from __future__ import annotations

import asyncio
import logging

from tidelog_core.admin.security.delegation_tokens import DelegationTokenAdmin
from tidelog_core.errors import TidelogError

from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)


class TokenExpiry:
    """Removes them now and then, on the live broker with the lowest id.

    If several take themselves for it, each token is removed by one of them.
    """

    def __init__(
        self, node: NodeContext, admin: DelegationTokenAdmin, *, interval_seconds: float
    ) -> None:
        self._node = node
        self._admin = admin
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        """Remove expired tokens in every interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_seconds)
            await self.remove_expired()

    async def remove_expired(self) -> None:
        """Remove the tokens that have expired, unless another broker does. Errors are logged."""
        live = self._node.membership.live_brokers(self._node.view.image)
        if min(live, default=self._node.broker_id) != self._node.broker_id:
            return
        try:
            count = await self._admin.remove_expired()
        except TidelogError as error:
            logger.warning("expired tokens not removed, will retry", extra={"reason": str(error)})
            return
        if count:
            logger.info("expired delegation tokens removed", extra={"count": count})
