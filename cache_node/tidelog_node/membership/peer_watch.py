"""Reads everyone's leases, as often as is needed to see them lapse in time.

And at once when a broker has registered: it holds its lease by then, and is to be told to
clients and given replicas without delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.image import ClusterImage, ClusterView
from tidelog_core.metadata.records import BROKER_LEASE_COLLECTION, Broker
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.replication.leases import NOBODY, read_leases

from tidelog_node.membership.membership import Membership

logger = logging.getLogger(__name__)

READINGS_PER_RENEWAL = 6


class PeerWatch:
    """Feeds ``Membership`` with readings of the leases."""

    def __init__(
        self,
        *,
        membership: Membership,
        store: MetadataStore,
        view: ClusterView,
        poll_interval_ms: int,
    ) -> None:
        """``poll_interval_ms`` is how often this node asks the store for anything at most."""
        self._membership = membership
        self._store = store
        self._view = view
        self._brokers: Mapping[int, Broker] = {}  # as registered before the last reading
        self._unreadable: set[int] = set()  # brokers whose leases nobody can read
        self._stir = asyncio.Event()
        times = membership.times
        # A lapse is seen that much late at most; more often only costs reads.
        self._interval_ms = max(
            min(poll_interval_ms, times.lease_ms // 10), times.renew_ms // READINGS_PER_RENEWAL
        )
        self._is_available = True

    async def read(self) -> None:
        """Take one reading. Raises ``StoreUnavailable``."""
        brokers, started_ms = self._view.image.brokers, self._membership.now_ms()
        leases = read_leases(await self._store.list(BROKER_LEASE_COLLECTION))
        self._membership.observe(leases, started_ms=started_ms)
        self._brokers = brokers
        unreadable = {lease.broker_id for lease in leases if lease.incarnation == NOBODY}
        for broker_id in unreadable - self._unreadable:
            logger.error("lease cannot be read", extra={"broker_id": broker_id})
        self._unreadable = unreadable

    async def catch_up(self) -> None:
        """Return when every broker in the image has been looked for since it registered.

        Raises as ``read``.
        """
        if self._view.image.brokers != self._brokers:
            await self.read()

    async def run(self) -> None:
        """Read until cancelled; while the store is away nobody is found dead."""
        unsubscribe = self._view.subscribe(self._on_image)
        try:
            while True:
                self._stir.clear()
                await self._try_to_read()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_ms / 1000):
                        await self._stir.wait()
        finally:
            unsubscribe()

    async def _try_to_read(self) -> None:
        try:
            await self.read()
            self._is_available = True
        except TidelogError as error:
            if self._is_available:
                logger.warning("leases cannot be read", extra={"reason": str(error)})
            self._is_available = False

    def _on_image(self, image: ClusterImage, _: frozenset[str]) -> None:
        if image.brokers != self._brokers:
            self._stir.set()
