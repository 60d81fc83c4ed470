"""Notices within a moment that a process which leads diskless partitions has ended.

A node holds one idle connection to every broker that leads any. It ends when the process does, and
the next attempts are refused: nothing listens at the port. A few of them within some 100 ms say
that the process is gone. It is no proof: a filter between two nodes does the same, and a process
may start again at once. ``replication.leases.peer_ports`` says how often such a guess may be wrong.

Perhaps it is this node that is cut off. So other brokers are dialed at the first refusal
(``_find_witness``).

Until then Metadata names no leader (``Membership.vanished``): clients ask again soon, where they
would try the port that refuses.

Other failures say nothing: a host that is down or a network that loses everything leaves it to the
readings of the leases. Replicated partitions take no notice of any of this; they wait for the end
of the lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tidelog.wire.host_addresses import PortRefused
from tidelog_core.errors import BrokerNotAvailable
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker

from tidelog_node.membership.membership import Membership

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 3.0
REFUSED_PAUSE_SECONDS = 0.1  # while refusals show that the process has ended, until that is clear
QUICK_SECONDS = 1.0  # for so long at most: a node that is cut off is refused by all others
LONGER_PAUSE_SECONDS = 0.25  # where they show nothing more, and where connections end soon
PAUSE_SECONDS = 1.0  # after other failures
DEAD_PAUSE_SECONDS = 5.0  # once the lease is over
HURRIED_SECONDS = 5.0  # between two connections that are made again at once
SERIES_SECONDS = 5.0  # connections that end within this time of each other end for one reason
WITNESSES_AT_ONCE_MAX = 3
WITNESS_SECONDS_MAX = 1.0
SEARCH_PAUSE_SECONDS = 0.25  # between the beginnings of two searches


class Ports(Protocol):
    """The way to the other brokers' ports; ``Dialer``."""

    async def hold(self, broker: Broker, on_open: Callable[[], None], *, timeout_s: float) -> None:
        """Open a connection and return once it is lost.

        Raises ``PortRefused``, ``BrokerNotAvailable``, other ``OSError`` and ``TimeoutError``.
        """

    async def reach(self, broker: Broker, *, timeout_s: float) -> None:
        """Open a connection and close it; any listener counts. Raises as ``hold``."""


class PortWatch:
    """Updates ``Membership`` from connections to brokers. ``run`` is one task of the node."""

    def __init__(self, *, membership: Membership, view: ClusterView, ports: Ports) -> None:
        self._membership = membership
        self._view = view
        self._ports = ports
        self._leaders: dict[str, frozenset[int]] = {}  # of each diskless topic
        self._watching: dict[int, tuple[Broker, asyncio.Task[None]]] = {}
        self._search: asyncio.Task[None] | None = None  # of a witness
        self._searched_s = -math.inf  # when it was begun
        self._asked = membership.broker_id  # the next search begins with a greater id

    async def run(self) -> None:
        """Watch until cancelled."""
        unsubscribe = self._view.subscribe(self._on_image)
        try:
            self._on_image(self._view.image, frozenset(self._view.image.topics))
            await asyncio.Event().wait()
        finally:
            unsubscribe()
            tasks = [task for _, task in self._watching.values()]
            if self._search is not None:
                tasks.append(self._search)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _on_image(self, image: ClusterImage, changed_topics: frozenset[str]) -> None:
        for name in changed_topics:
            led = frozenset(one.leader for one in image.partitions(name) if one.is_diskless)
            if led:
                self._leaders[name] = led
            else:
                self._leaders.pop(name, None)
        leaders = frozenset[int]().union(*self._leaders.values())
        wanted = {
            broker_id: image.brokers[broker_id]
            for broker_id in leaders - {self._membership.broker_id}
            if broker_id in image.brokers
        }
        # One that refuses has lost its leads because of that: it may not be an heir either.
        refusing = filter(self._membership.peers.refuses, self._watching)
        wanted |= {b: image.brokers[b] for b in refusing if b in image.brokers}
        for broker_id, (broker, task) in tuple(self._watching.items()):
            if wanted.get(broker_id) != broker:
                task.cancel()
                del self._watching[broker_id]
        for broker_id in sorted(wanted.keys() - self._watching.keys()):
            broker = wanted[broker_id]
            task = asyncio.create_task(self._watch(broker), name=f"port of broker {broker_id}")
            self._watching[broker_id] = (broker, task)

    async def _watch(self, broker: Broker) -> None:
        """Hold a connection to the broker, and note how it ends."""
        loop, broker_id = asyncio.get_running_loop(), broker.broker_id
        membership, peers = self._membership, self._membership.peers

        def on_open() -> None:
            membership.note_reached(broker_id)

        hurried_s = -math.inf  # when a connection was last made again at once
        lost_s, since_ms = -math.inf, 0.0  # when the last one ended, the first one of its series
        refused_s = -math.inf  # since when the port refuses

        while True:
            pause_seconds = PAUSE_SECONDS
            try:
                await self._ports.hold(broker, on_open, timeout_s=CONNECT_SECONDS_MAX)
                if loop.time() - lost_s > SERIES_SECONDS:
                    since_ms = membership.now_ms()
                lost_s = loop.time()
                # Else a proxy that ends each connection would hide a process that lives for good.
                membership.note_lost(broker_id, since_ms)
                if loop.time() - hurried_s > HURRIED_SECONDS:
                    hurried_s = loop.time()
                    continue  # Find out at once why it has ended.
                pause_seconds = LONGER_PAUSE_SECONDS
            except PortRefused as error:
                if not peers.refuses(broker_id):
                    refused_s = loop.time()
                    logger.info(
                        "port of a broker refuses connections",
                        extra={"broker_id": broker_id, "reason": str(error)},
                    )
                membership.note_refused(broker_id)
                self._find_witness(broker_id)
                is_quick = peers.shows_end(broker_id) and not peers.is_suspected(broker_id)
                is_quick = is_quick and loop.time() - refused_s < QUICK_SECONDS
                pause_seconds = REFUSED_PAUSE_SECONDS if is_quick else LONGER_PAUSE_SECONDS
            except (BrokerNotAvailable, OSError, TimeoutError) as error:
                membership.note_unanswered(broker_id)  # It says nothing about the process.
                if isinstance(error, ConnectionError):  # Perhaps it is just ending.
                    pause_seconds = LONGER_PAUSE_SECONDS
            if peers.is_dead(broker_id):
                pause_seconds = DEAD_PAUSE_SECONDS
            await asyncio.sleep(pause_seconds)

    def _find_witness(self, broker_id: int) -> None:
        """Begin to dial other brokers, unless one has been reached since the port refuses.

        One search is enough for all brokers, and each dials others than the one before.
        """
        now_s = asyncio.get_running_loop().time()
        if self._search is not None and not self._search.done():
            return
        if now_s - self._searched_s < SEARCH_PAUSE_SECONDS:
            return
        brokers = self._view.image.brokers
        found = sorted(b for b in self._membership.peers.witnesses(broker_id) if b in brokers)
        if not found:
            return
        next_ones = [b for b in found if b > self._asked] + [b for b in found if b <= self._asked]
        chosen = next_ones[:WITNESSES_AT_ONCE_MAX]
        self._asked, self._searched_s = chosen[-1], now_s
        self._search = asyncio.create_task(
            self._reach_all([brokers[b] for b in chosen]), name="search of a witness"
        )

    async def _reach_all(self, brokers: Sequence[Broker]) -> None:
        await asyncio.gather(*map(self._reach, brokers))

    async def _reach(self, broker: Broker) -> None:
        # One that is not reached says nothing here: if it leads diskless partitions it is watched.
        with suppress(BrokerNotAvailable, OSError, TimeoutError):
            await self._ports.reach(broker, timeout_s=WITNESS_SECONDS_MAX)
            self._membership.note_open_way(broker.broker_id)
