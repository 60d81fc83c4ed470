"""Reads everyone's leases, as often as is needed to see them lapse in time."""

from __future__ import annotations

import asyncio
import logging

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import BROKER_LEASE_COLLECTION, BrokerLease
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.membership.membership import Membership

logger = logging.getLogger(__name__)

READINGS_PER_RENEWAL = 6


class PeerWatch:
    """Feeds ``Membership`` with readings of the leases."""

    def __init__(
        self, *, membership: Membership, store: MetadataStore, poll_interval_ms: int
    ) -> None:
        """``poll_interval_ms`` is how often this node asks the store for anything at most."""
        self._membership = membership
        self._store = store
        times = membership.times
        # A lapse is seen that much late at most; more often only costs reads.
        self._interval_ms = max(
            min(poll_interval_ms, times.lease_ms // 10), times.renew_ms // READINGS_PER_RENEWAL
        )
        self._is_available = True

    async def read(self) -> None:
        """Take one reading. Raises ``StoreUnavailable``, ``CorruptItem``."""
        started_ms = self._membership.now_ms()
        items = await self._store.list(BROKER_LEASE_COLLECTION)
        self._membership.observe(
            [BrokerLease.from_item(item) for item in items], started_ms=started_ms
        )

    async def run(self) -> None:
        """Read until cancelled; while the store is away nobody is found dead."""
        while True:
            try:
                await self.read()
                self._is_available = True
            except TidelogError as error:
                if self._is_available:
                    logger.warning("leases cannot be read", extra={"reason": str(error)})
                self._is_available = False
            await asyncio.sleep(self._interval_ms / 1000)
