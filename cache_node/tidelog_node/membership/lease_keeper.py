"""Renews this node's lease, and fences the node if it cannot.

Fencing needs no task to run: ``Membership.can_serve`` reads the clock. So a process that was
stopped, or whose store hangs, is fenced before it notices.

A renewal that takes too long counts as an unknown outcome: the item is read, and the next renewal
continues from it. Of two renewals of one version only one can be written.

If the store's files were deleted or replaced, no other node reads what this one writes. The keeper
checks for that twice a second and fences the node immediately. If the same files come back, the
node renews, reads the cluster and serves again.

In a node the keeper runs on its own thread (``lease_thread``), so that a blocked event loop does
not cost the lease. It stops renewing when that loop has not turned for ``LeaseTimes.stall_ms``: a
node that hangs must lose its leaderships. ``NodeLoop`` is its access to the node's loop.
``replication.leases.own_lease`` says which thread may call which methods of ``OwnLease``, and why
no lock is needed.

Why a hanging node cannot act on an old state:

- For a loop that hangs forever the lease is renewed until ``stall_ms`` after its last turn. The
  other nodes see it dead one lease later: 15 s after it hung, while a killed process takes 9 s. It
  answers no request in that time, because the loop does that.
- A process that was stopped and continued finds the loop's time stamp too old and does not renew
  before the loop has turned. If its lease has lapsed, it is fenced by then.
- After a stall the loop acts under a lease that no other node could have ended, or ``may_act`` is
  false. The lease never bounded the age of the loop's cluster image: renewals and readings fail
  independently. Every change decided on an old image is conditional on its versions.
- Only the loop ends a fence, in the step that follows its own reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import (
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.location import never_lost
from tidelog_core.metadata.records import BrokerLease, broker_lease_key, put
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.replication.leases.observed_lease import NOBODY, read_leases
from tidelog_core.replication.leases.own_lease import RELEASED, OwnLease

from tidelog_node.counters import NodeCounters
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.node_loop import NodeLoop
from tidelog_node.membership.registration import BrokerIdTaken

logger = logging.getLogger(__name__)

CALLS_PER_LEASE_MIN = 3  # a call that takes longer than a third of the lease is cancelled
RELEASE_SECONDS_MAX = 2.0
CHECK_INTERVAL_MS = 500  # between two checks that the store is still there
POLLS_PER_LEASE = 10  # while waiting for an earlier process's lease


async def read_lease(store: MetadataStore, broker_id: int) -> BrokerLease | None:
    """Return the broker's lease item, ``None`` if it never had one.

    An unreadable item is returned as ``NOBODY``'s: a change of its version shows that it is in use.
    """
    item = await store.get(broker_lease_key(broker_id))
    if item is None:
        return None
    (lease,) = read_leases([item])
    if lease.incarnation == NOBODY:
        logger.error("lease cannot be read", extra={"broker_id": broker_id})
    return lease


async def wait_until_gone(
    store: MetadataStore, membership: Membership, earlier: BrokerLease | None
) -> BrokerLease | None:
    """Return an earlier process's lease once it has ended.

    Raises ``BrokerIdTaken`` if it is renewed.
    """
    if earlier is None or earlier.counter == RELEASED:
        return earlier
    times = membership.times
    since_ms = membership.now_ms()
    logger.info("waits for the lease of an earlier process", extra={"lease_ms": times.lease_ms})
    while True:
        started_ms = membership.now_ms()
        lease = await read_lease(store, earlier.broker_id)
        if lease is None or lease.counter == RELEASED:
            return lease
        if lease.version != earlier.version:
            raise BrokerIdTaken(f"broker {earlier.broker_id} of this cluster runs already")
        if started_ms - since_ms >= times.lease_ms:
            return lease
        await asyncio.sleep(times.lease_ms / POLLS_PER_LEASE / 1000)


class LeaseKeeper:
    """Keeps one process's lease while it runs. For the tasks of one event loop."""

    def __init__(
        self,
        *,
        membership: Membership,
        store: MetadataStore,
        node_loop: NodeLoop,
        incarnation: UUID,
        found: BrokerLease | None,
        is_store_lost: Callable[[], bool] = never_lost,
        wall_ms: Callable[[], int] = wall_clock_ms,
        counters: NodeCounters | None = None,
    ) -> None:
        """``found`` is the item that an earlier process left, ``None`` if there is none.

        ``is_store_lost`` returns whether the store was deleted or replaced: then the last writes
        may be lost, and no other node sees this lease. ``wall_ms`` is published in the lease, so
        that other nodes can detect a wrong clock.
        """
        self._membership = membership
        self._store = store
        self._node_loop = node_loop
        self._incarnation = incarnation
        self._times = membership.times
        self._own = OwnLease(membership.broker_id, incarnation, times=membership.times, found=found)
        self._found = found
        self._is_store_lost = is_store_lost
        self._wall_ms = wall_ms
        self._counters = counters or NodeCounters()
        self._has_renewed = False
        self._was_able = True
        self._is_in_trouble = False  # the last renewal has failed
        self._was_turning = True
        self._was_store_lost = False
        self._reading: asyncio.Future[None] | None = None  # of the cluster, to end a fence
        membership.hold(self._own)

    async def acquire(self) -> None:
        """Take the lease; on return this node may act. Raises ``BrokerIdTaken``."""
        try:
            while not self._membership.can_serve():
                await self.step()
                if not self._membership.can_serve():
                    await self._sleep()
        finally:
            self._end_reading()

    async def run(self) -> None:
        """Renew until cancelled. Raises ``BrokerIdTaken`` when another process has the id."""
        try:
            while True:
                await self._sleep()
                await self.step()
        finally:
            self._end_reading()

    async def release(self) -> None:
        """Publish that this node has left. It must not answer any request after that."""
        if not self._has_renewed or self._own.is_superseded:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                try:
                    await self._store.commit([put(self._own.release(), is_logged=False)])
                except VersionConflict:
                    # A renewal was cancelled after it had been written.
                    if await self._read():
                        await self._store.commit([put(self._own.release(), is_logged=False)])
        except (TidelogError, TimeoutError) as error:
            logger.warning("lease not released, it has to lapse", extra={"reason": str(error)})

    async def step(self) -> None:
        """Do the next steps that are due: read the item, renew it, read the cluster."""
        own, now_ms = self._own, self._membership.now_ms()
        if self._has_lost_store():
            own.withdraw()
            own.put_off(now_ms)
            return
        if not own.is_renewal_due(now_ms):
            if self._has_renewed and not own.may_act(now_ms):
                await self._end_fencing()
            return
        if not self._is_loop_turning(now_ms):
            own.put_off(now_ms)
            return
        if own.needs_read and not await self._read():
            return
        is_lapsed = self._has_renewed and not own.may_act(self._membership.now_ms())
        if is_lapsed and self._was_able:
            self._was_able = False
            logger.warning("lease lapsed, the node is fenced")
        if await self._renew():
            await self._end_fencing()

    def _has_lost_store(self) -> bool:
        is_lost = self._is_store_lost()
        if is_lost and not self._was_store_lost:
            self._was_able = False
            self._node_loop.report_store_lost("the metadata store was deleted or replaced")
            logger.error(
                "metadata store was deleted or replaced, the node serves no client: put its files"
                " back, or stop all nodes, restore it (docs/restore.md) and start them again"
            )
        elif self._was_store_lost and not is_lost:
            self._node_loop.clear_store_lost()
        self._was_store_lost = is_lost
        return is_lost

    def _is_loop_turning(self, now_ms: float) -> bool:
        turned_ms = self._node_loop.turned_ms
        is_turning = self._times.can_renew(turned_ms=turned_ms, now_ms=now_ms)
        if not is_turning and self._was_turning:
            logger.error(
                "event loop is blocked, the lease is not renewed until it runs again",
                extra={"duration_ms": round(now_ms - turned_ms)},
            )
        self._was_turning = is_turning
        return is_turning

    async def _renew(self) -> bool:
        """Renew once. Return whether the cluster must be read before acting."""
        started_ms = self._membership.now_ms()
        renewal = self._own.begin_renewal(started_ms, is_brisk=self._membership.leads_by_chain())
        record = replace(renewal, wall_ms=self._wall_ms())
        try:
            async with asyncio.timeout(self._call_seconds_max):
                await self._store.commit([put(record, is_logged=False)])
        except StoreUnavailable as error:
            self._own.on_refused(self._membership.now_ms())
            self._log_trouble("lease not renewed", str(error))
            return False
        except (OutcomeUnknown, VersionConflict, TimeoutError) as error:
            self._own.on_unknown(self._membership.now_ms())
            self._log_trouble("lease perhaps not renewed", str(error) or "took too long")
            return False
        self._is_in_trouble = False
        self._has_renewed = True
        renewed_ms = self._membership.now_ms() - started_ms
        self._counters.lease_renewals.observe(renewed_ms / 1000)
        return self._own.on_renewed(record, started_ms=started_ms, now_ms=self._membership.now_ms())

    def _log_trouble(self, problem: str, reason: str) -> None:
        """Log that renewals fail, once until one succeeds: they are tried twice a second."""
        self._counters.lease_failure_count += 1
        if not self._is_in_trouble:
            self._is_in_trouble = True
            logger.warning(problem, extra={"reason": reason})

    async def _read(self) -> bool:
        """Read the item; return whether it could be read. Raises ``BrokerIdTaken``."""
        try:
            async with asyncio.timeout(self._call_seconds_max):
                lease = await read_lease(self._store, self._membership.broker_id)
        except (StoreUnavailable, TimeoutError):
            self._own.on_unknown(self._membership.now_ms())
            return False
        if lease is not None and not self._has_renewed and self._is_foreign(lease):
            # Another process of this id has written the item since it was found.
            raise BrokerIdTaken(f"broker {lease.broker_id} of this cluster runs already")
        self._own.on_read(lease)
        if self._own.is_superseded:
            raise BrokerIdTaken(f"broker {self._membership.broker_id} was started again elsewhere")
        return True

    def _is_foreign(self, lease: BrokerLease) -> bool:
        if lease.incarnation == self._incarnation:
            return False
        return self._found is None or lease.version != self._found.version

    async def _end_fencing(self) -> None:
        """Have the cluster read; if the lease still holds after that, the node acts again.

        A long reading continues while the lease is renewed.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._node_loop.end_fencing())
        await asyncio.wait([self._reading], timeout=self._times.retry_ms / 1000)
        if not self._reading.done():
            return
        reading, self._reading = self._reading, None
        with suppress(StoreUnavailable):
            reading.result()
        if self._membership.can_serve() and not self._was_able:
            self._was_able = True
            logger.warning("lease renewed, the node serves again")

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    @property
    def _call_seconds_max(self) -> float:
        return self._times.lease_ms / CALLS_PER_LEASE_MIN / 1000

    async def _sleep(self) -> None:
        """Wait until the next renewal, or the next check that may fence the node."""
        own, now_ms = self._own, self._membership.now_ms()
        next_ms = own.next_renewal_ms
        delay_ms = 0.0 if next_ms is None else min(next_ms - now_ms, CHECK_INTERVAL_MS)
        if not own.may_act(now_ms):
            delay_ms = min(delay_ms, self._times.retry_ms)
        await asyncio.sleep(max(0.0, delay_ms) / 1000)
