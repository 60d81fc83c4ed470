"""Finds out that this node cannot write the object store, while others may.

Such a node acknowledges no record of its diskless partitions. So it publishes
``StepDownReason.STORE`` with its lease, and gives its diskless leads to brokers without that reason
(``LedPartitions``). In an outage of the store every node publishes it, and nothing moves.

The probe decides, not the chain: it creates an object and deletes it. A node probes while its chain
has pending records for long without a commit, or partitions wait to enter it, while another broker
publishes the reason, and while it does so itself. So brokers that have nothing to write know in
time whether they can.

The reason is taken back once probes have succeeded for a while, twice as long after each relapse. A
store may be too slow for any broker that leads, and fast enough for the others' probes. Then leads
go round, and every move seals chains in that store; so they move less and less often.

Every probe is a paid request. So a node that can write probes often only for a while after other
brokers have published the reason, or have taken it back, and seldom as long as it lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

from tidelog_core.diskless.chain.start_probe import probe_key
from tidelog_core.errors import TidelogError

from tidelog_node.membership.membership import Membership
from tidelog_node.tier.client import TierClient

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
STUCK_SECONDS = 5.0  # pending without a commit, before the first probe
PROBE_SECONDS_MAX = 6.0
FIRST_PROBE_SECONDS_MAX = 30.0  # until one has succeeded: the worker may be starting
PROBE_PAUSE_SECONDS = 2.0  # between two probes
NEWS_SECONDS = 30.0  # of other brokers' reasons; they wait for ``STORE_GRACE_MS``, which is less
SELDOM_SECONDS = 60.0  # between two probes after that
STEADY_SECONDS = 12.0  # of probes that succeed, until this node leads again; doubled at a relapse
STEADY_SECONDS_MAX = 600.0
RELAPSE_SECONDS = 1_200.0  # a failure is one so long after the last recovery


class PendingChain(Protocol):
    """A chain that may have pending records; ``OwnedChain``."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records that are not committed."""

    @property
    def committed_end(self) -> int:
        """The first sequence that is not known to be committed."""


class StoreWatch:
    """Reports to ``Membership`` whether the store can be written. ``run`` is one task."""

    def __init__(
        self,
        membership: Membership,
        *,
        chain: Callable[[], PendingChain | None],
        has_unentered: Callable[[], bool],
        probe: Callable[[], Awaitable[None]],
    ) -> None:
        """``has_unentered`` says whether partitions wait to enter the chain.

        ``probe`` writes to the store. It raises ``TidelogError`` if that fails.
        """
        self._membership = membership
        self._chain = chain
        self._has_unentered = has_unentered
        self._probe = probe
        # The chain, and its committed end.
        self._progress: tuple[PendingChain | None, int] = (None, 0)
        self._progress_s = 0.0  # when it was seen to change, or nothing was pending
        self._seconds_max = FIRST_PROBE_SECONDS_MAX
        self._failed_s = 0.0  # when a probe failed last
        self._steady_s = STEADY_SECONDS
        self._recovered_s = -RELAPSE_SECONDS  # when the reason was taken back last
        self._probed_s = 0.0  # when one began last
        self._cut_off = frozenset[int]()  # the other brokers that publish the reason
        self._cut_off_s = 0.0  # since when they are these

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        self._progress_s = loop.time()
        while True:
            is_stuck = self._is_stuck(loop.time())
            is_asked = self._is_asked(loop.time())
            if is_stuck or is_asked or not self._membership.can_store:
                await self._look()
                await asyncio.sleep(PROBE_PAUSE_SECONDS)
            else:
                await asyncio.sleep(LOOK_SECONDS)

    def _is_stuck(self, now_s: float) -> bool:
        """Whether this node has pending records, or a lead, for long without a commit."""
        chain = self._chain()
        progress = (chain, 0 if chain is None else chain.committed_end)
        is_owing = self._has_unentered() or (chain is not None and chain.buffered_bytes > 0)
        if progress != self._progress or not is_owing:
            self._progress, self._progress_s = progress, now_s
        return now_s - self._progress_s >= STUCK_SECONDS

    def _is_asked(self, now_s: float) -> bool:
        """Whether another broker that cannot write has to know whether this one can."""
        cut_off = self._membership.peers.cut_from_store() - {self._membership.broker_id}
        if cut_off != self._cut_off:
            self._cut_off, self._cut_off_s = cut_off, now_s
        if not cut_off:
            return False
        is_news = now_s - self._cut_off_s < NEWS_SECONDS
        return is_news or now_s - self._probed_s >= SELDOM_SECONDS

    async def _look(self) -> None:
        """Probe the store, and report the result."""
        loop, membership = asyncio.get_running_loop(), self._membership
        self._probed_s = loop.time()
        reason = ""
        try:
            async with asyncio.timeout(self._seconds_max):
                await self._probe()
            self._seconds_max = PROBE_SECONDS_MAX
        except TimeoutError:
            reason = f"no answer within {self._seconds_max:.0f} s"
        except TidelogError as error:
            reason = str(error)
        if reason:
            self._failed_s = loop.time()
            if membership.can_store:
                is_relapse = loop.time() - self._recovered_s < RELAPSE_SECONDS
                self._steady_s = (
                    min(2 * self._steady_s, STEADY_SECONDS_MAX) if is_relapse else STEADY_SECONDS
                )
                logger.error(
                    "object store cannot be written, other nodes are to lead diskless partitions",
                    extra={"reason": reason, "hint": "look for what cuts this node from the store"},
                )
            membership.report_store(can_store=False)
        elif not membership.can_store and loop.time() - self._failed_s >= self._steady_s:
            self._recovered_s = loop.time()
            logger.warning("object store can be written again")
            membership.report_store(can_store=True)


async def probe_store(client: TierClient, cluster_id: str) -> None:
    """Create an object and delete it. Raises the store's errors and ``TierUnavailable``."""
    key = probe_key(cluster_id, uuid4())
    await client.put(key, b"probe")
    with suppress(TidelogError):  # It can be written. The scrub deletes a leftover.
        await client.delete([key])
