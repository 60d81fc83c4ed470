"""Reads everyone's leases, as often as is needed to see them lapse in time.

In a large cluster few brokers need to (``lease_watch``), and the others read less often. When a
broker has registered, everyone reads its lease at once: it holds it by then, and is to be told
to clients and given replicas without delay.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.image import ClusterImage, ClusterView
from tidelog_core.metadata.records import BROKER_LEASE_COLLECTION, Broker, broker_lease_key
from tidelog_core.metadata.store import Item, MetadataStore
from tidelog_core.replication.lease_watch import is_watcher, unhurried_interval_ms
from tidelog_core.replication.leases import NOBODY, read_leases

from tidelog_node.membership.membership import Membership

logger = logging.getLogger(__name__)

READINGS_PER_RENEWAL = 6
SPREAD = 0.2  # of the interval: brokers that are no watchers shall not all read at once


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
        # Of a watcher: it sees a lapse that much late at most; more often only costs reads.
        self._interval_ms = max(
            min(poll_interval_ms, times.lease_ms // 10), times.renew_ms // READINGS_PER_RENEWAL
        )
        self._is_available = True
        self._spread = 1.0  # of the next interval, as drawn

    async def read(self) -> None:
        """Take one reading of all leases. Raises ``StoreUnavailable``."""
        brokers, started_ms = self._view.image.brokers, self._membership.now_ms()
        items = await self._store.list(BROKER_LEASE_COLLECTION)
        self._observe(items, started_ms=started_ms, is_whole=True)
        self._brokers = brokers

    async def catch_up(self) -> None:
        """Return when every broker in the image has been looked for since it registered.

        Raises as ``read``.
        """
        brokers, started_ms = self._view.image.brokers, self._membership.now_ms()
        new = [b for b, broker in brokers.items() if self._brokers.get(b) != broker]
        if new:
            items = await self._store.get_many([broker_lease_key(b) for b in new])
            self._observe(items.values(), started_ms=started_ms, is_whole=False)
        self._brokers = brokers

    async def run(self) -> None:
        """Read until cancelled; while the store is away nobody is found dead."""
        unsubscribe = self._view.subscribe(self._on_image)
        self._membership.subscribe(self._stir.set)  # It may have become a watcher.
        loop = asyncio.get_running_loop()
        read_at = -math.inf
        try:
            while True:
                self._stir.clear()
                if loop.time() >= read_at + self._interval_s():
                    read_at = loop.time()
                    await self._attempt(self.read)
                    self._spread = random.uniform(1 - SPREAD, 1 + SPREAD)
                else:
                    await self._attempt(self.catch_up)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(read_at + self._interval_s()):
                        await self._stir.wait()
        finally:
            unsubscribe()

    def _interval_s(self) -> float:
        """Return the seconds between two readings as long as nothing changes."""
        brokers, broker_id = self._view.image.brokers, self._membership.broker_id
        unhurried_ms = unhurried_interval_ms(len(brokers)) * self._spread
        if unhurried_ms <= self._interval_ms or not self._is_available:
            return self._interval_ms / 1000
        is_hurried = is_watcher(broker_id, brokers, self._membership.is_live)
        return (self._interval_ms if is_hurried else unhurried_ms) / 1000

    def _observe(self, items: Iterable[Item], *, started_ms: float, is_whole: bool) -> None:
        leases = read_leases(items)
        self._membership.observe(leases, started_ms=started_ms, is_whole=is_whole)
        unreadable = {lease.broker_id for lease in leases if lease.incarnation == NOBODY}
        for broker_id in unreadable - self._unreadable:
            logger.error("lease cannot be read", extra={"broker_id": broker_id})
        self._unreadable = unreadable if is_whole else self._unreadable | unreadable

    async def _attempt(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
            self._is_available = True
        except TidelogError as error:
            if self._is_available:
                logger.warning("leases cannot be read", extra={"reason": str(error)})
            self._is_available = False

    def _on_image(self, image: ClusterImage, _: frozenset[str]) -> None:
        if image.brokers != self._brokers:
            self._stir.set()
