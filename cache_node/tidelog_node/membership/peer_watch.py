"""Reads the leases of all brokers, often enough to see them expire in time.

In a large cluster few brokers need to (``lease_watch``), and the others read less often. A
registration causes no reading: it shows in the view's images, and the broker wrote it while it held
its lease. So the readings of a cluster together always stay within the rate of ``ReadingPace``.

A broker whose port refuses connections is an exception: it may have died, and its lease tells. Each
such broker costs a reading at once and one after ``LeaseTimes.ended_ms``, or ``refusal_ms`` where
refusals say nothing by themselves; while it renews all the same, one in each ``refusal_ms``.

A reading tells when it was to begin. If it comes much later, this node did not run, or the store
could not be read: little of that time counts against the others (``observed_time``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import BROKER_LEASE_COLLECTION, Broker
from tidelog_core.metadata.store import Item, MetadataStore
from tidelog_core.replication.leases.lease_watch import ReadingPace
from tidelog_core.replication.leases.observed_lease import NOBODY, read_leases
from tidelog_core.waiting import wait_and_clear

from tidelog_node.counters import NodeCounters
from tidelog_node.membership.membership import Membership

logger = logging.getLogger(__name__)

READINGS_PER_RENEWAL = 6
LOOK_PAUSE_MS = 100.0  # between readings because of brokers whose ports refuse connections
LOOK_LATER_MS = 1.0  # a reading that begins just before a renewal is missed shows nothing


class PeerWatch:
    """Updates ``Membership`` from readings of the leases and from registrations."""

    def __init__(
        self,
        *,
        membership: Membership,
        store: MetadataStore,
        view: ClusterView,
        poll_interval_ms: int,
        counters: NodeCounters | None = None,
    ) -> None:
        """``poll_interval_ms`` is the interval at which this node polls the metadata store."""
        self._membership = membership
        self._store = store
        self._view = view
        self._counters = counters or NodeCounters()
        self._interval_ms: float | None = None  # planned between the last reading and the next one
        self._brokers: Mapping[int, Broker] | None = None  # registered, as last noted
        self._unreadable: set[int] = set()  # brokers with unreadable leases
        times = membership.times
        # A watcher sees a lapse at most this late; a shorter interval only costs more reads.
        watching_ms = max(
            min(poll_interval_ms, times.lease_ms // 10), times.renew_ms // READINGS_PER_RENEWAL
        )
        self._pace = ReadingPace(
            membership.broker_id,
            watching_ms=watching_ms,
            renew_ms=times.renew_ms,
            chance=random.Random(),
        )
        self._is_available = True
        self._refused = asyncio.Event()

    async def read(self) -> None:
        """Read all leases once. Raises ``StoreUnavailable``."""
        brokers, started_ms = self._view.image.brokers, self._membership.now_ms()
        items = await self._store.list(BROKER_LEASE_COLLECTION)
        self._observe(items, started_ms=started_ms)
        if self._brokers is None:
            self._brokers = brokers
        self._pace.on_reading(brokers, self._membership.is_live, started_ms=started_ms)

    async def run(self) -> None:
        """Read until cancelled. While the store is unavailable no broker is found dead.

        ``read`` must have been called once.
        """
        unsubscribe = self._view.subscribe(self._on_image)
        unsubscribe_refused = self._membership.refused.subscribe(self._refused.set)
        self._note_registrations(self._view.image)
        loop = asyncio.get_running_loop()
        read_at = loop.time()
        try:
            while True:
                interval_ms = self._pace.next_interval_ms(self._view.image.brokers)
                await self._wait(read_at, interval_ms)
                self._interval_ms = interval_ms
                read_at = loop.time()
                await self._attempt()
        finally:
            unsubscribe()
            unsubscribe_refused()

    async def _wait(self, read_at: float, interval_ms: float) -> None:
        """Wait until the next reading; the last one was begun at ``read_at`` on the loop's clock.

        A broker whose port refuses connections brings it forward.
        """
        loop = asyncio.get_running_loop()
        while True:
            delay_ms = (read_at - loop.time()) * 1000 + interval_ms
            look_ms = self._membership.peers.next_look_ms()
            if look_ms is not None:
                look_ms += LOOK_LATER_MS - self._membership.now_ms()
                pause_ms = (read_at - loop.time()) * 1000 + LOOK_PAUSE_MS
                delay_ms = min(delay_ms, max(look_ms, pause_ms))
            if delay_ms <= 0:
                return
            await wait_and_clear(self._refused, max(delay_ms, LOOK_LATER_MS) / 1000)

    def _observe(self, items: Iterable[Item], *, started_ms: float) -> None:
        leases = read_leases(items)
        for wrong in self._membership.observe(
            leases, started_ms=started_ms, reading_ms=self._interval_ms
        ):
            self._counters.wrong_suspicion_count += 1
            logger.warning(
                "broker was suspected wrongly",
                extra={
                    "broker_id": wrong.broker_id,
                    "silent_ms": round(wrong.silent_ms),
                    "extra_ms": round(wrong.extra_ms),
                },
            )
        unreadable = {lease.broker_id for lease in leases if lease.incarnation == NOBODY}
        for broker_id in unreadable - self._unreadable:
            logger.error("lease cannot be read", extra={"broker_id": broker_id})
        self._unreadable = unreadable

    async def _attempt(self) -> None:
        try:
            await self.read()
        except TidelogError as error:
            if self._is_available:
                logger.warning("leases cannot be read", extra={"reason": str(error)})
            self._is_available = False
            self._membership.note_unread()
        else:
            self._is_available = True

    def _on_image(self, image: ClusterImage, _: frozenset[str]) -> None:
        self._note_registrations(image)

    def _note_registrations(self, image: ClusterImage) -> None:
        before, self._brokers = self._brokers or {}, image.brokers
        if image.brokers is not before:
            new = [b for b, broker in image.brokers.items() if before.get(b) != broker]
            if new:
                self._membership.note_registered(new)
