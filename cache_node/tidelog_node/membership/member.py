"""One node's life as a member of the cluster: join, act, drain, leave.

``prepare`` before the logs are used. ``take_lease`` and ``enter`` once the node could serve:
``take_lease`` before it registers, ``enter`` after that. ``drain`` while it still serves. ``leave``
when it no longer answers requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.location import loss_of
from tidelog_core.metadata.records import (
    PARTITION_COLLECTION_PREFIX,
    TOPIC_COLLECTION,
    Partition,
)
from tidelog_core.metadata.store import ItemKey, MetadataStore

from tidelog_node.membership.broker_id_takeover import leave_again, take_over_id
from tidelog_node.membership.departed_brokers import DepartedBrokers
from tidelog_node.membership.draining import Draining
from tidelog_node.membership.election_loop import ElectionLoop
from tidelog_node.membership.hand_overs import LeaderStates
from tidelog_node.membership.lease_keeper import LeaseKeeper
from tidelog_node.membership.led_partitions import LedPartitions
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.node_loop import NodeLoop
from tidelog_node.membership.peer_watch import PeerWatch
from tidelog_node.membership.port_watch import Ports, PortWatch
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

StartTask = Callable[[Coroutine[Any, Any, None]], None]
RunRenewals = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]


class ClusterMember:
    """Connects the parts of membership. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        membership: Membership,
        *,
        lease_store: MetadataStore,
        renewal_store: MetadataStore,
        run_renewals: RunRenewals,
        ports: Ports,
    ) -> None:
        """``lease_store`` is for leases alone, which must not queue behind other calls.

        ``run_renewals`` runs the renewals of this node's lease, on another thread unless nothing
        blocks this loop. They alone use ``renewal_store``.
        """
        self._node = node
        self.membership = membership
        config = node.config()
        self._lease_store = lease_store
        self._renewal_store = renewal_store
        self._run_renewals = run_renewals
        self._preferred_seconds = config.leader_imbalance_check_interval_seconds
        self._watch = PeerWatch(
            membership=membership,
            store=lease_store,
            view=node.view,
            poll_interval_ms=config.metadata_poll_interval_ms,
            counters=node.counters,
        )
        self._ports = PortWatch(membership=membership, view=node.view, ports=ports)
        self._elections = ElectionLoop(node, membership=membership)
        self._departed = DepartedBrokers(
            node, membership=membership, after_ms=config.broker_unregister_after_ms
        )
        self._keeper: LeaseKeeper | None = None
        self._node_loop: NodeLoop | None = None
        self._led: LedPartitions | None = None
        self._draining: Draining | None = None
        self._unsettled_dir: Path | None = None  # where a loss of records is not settled
        self._may_lack_records = False
        # Partitions and topics that this process has not been able to read since its start.
        self._unread: set[ItemKey] = set()

    async def prepare(self, data_dir: Path, *, was_clean: bool) -> None:
        """Return when no earlier process of this broker id can act any more.

        The caller holds the lock of the data directory. No subscriber of the view may depend on
        leadership yet. Raises ``BrokerIdTaken``.
        """
        self._node.view.subscribe(self._on_image)
        taken = await take_over_id(
            self.membership,
            store=self._lease_store,
            view=self._node.view,
            dialer=self._node.dialer,
            data_dir=data_dir,
            was_clean=was_clean,
            incarnation=self._node.incarnation,
        )
        self._node_loop = NodeLoop(
            self.membership, read_cluster=self._node.view.refresh, health=self._node.health
        )
        self._keeper = LeaseKeeper(
            membership=self.membership,
            store=self._renewal_store,
            node_loop=self._node_loop,
            incarnation=self._node.incarnation,
            found=taken.lease,
            is_store_lost=loss_of(self._renewal_store),
            counters=self._node.counters,
        )
        self._may_lack_records = taken.may_lack_records
        self._unsettled_dir = data_dir if taken.may_lack_records else None

    async def take_lease(self, start_task: StartTask) -> None:
        """Take the lease, before the node registers: a registered node has held its lease.

        ``start_task`` receives the tasks that must run until ``leave``. Raises ``BrokerIdTaken``.
        """
        assert self._keeper is not None, "prepare first"
        assert self._node_loop is not None, "prepare first"
        self._node_loop.start()
        await self._run_renewals(self._keeper.acquire())
        start_task(self._run_renewals(self._keeper.run()))

    async def enter(self, replicas: LeaderStates, start_task: StartTask) -> None:
        """Take over again the partitions that this node led before; on return it may serve.

        The node is registered, and the view has shown its registration.
        """
        if self._unsettled_dir is not None:
            await leave_again(
                self.membership.broker_id,
                store=self._node.store,
                view=self._node.view,
                data_dir=self._unsettled_dir,
                incarnation=self._node.incarnation,
            )
            self._unsettled_dir = None
        self.membership.start(
            partition
            for partitions in self._node.view.image.partitions_by_topic.values()
            for partition in partitions
        )
        self._unread = _unread(self._node.view.image)
        self._led = LedPartitions(
            self._node,
            membership=self.membership,
            replicas=replicas,
            preferred_interval_seconds=self._preferred_seconds,
        )
        self._draining = Draining(self._node, self.membership, replicas)
        await self._watch.read()
        start_task(self._watch.run())
        start_task(self._ports.run())
        await self._elections.round()

    def _on_image(self, image: ClusterImage, _: frozenset[str]) -> None:
        """Handle partitions that become readable later as if they had been read at the start.

        An earlier process may have led them in that epoch, as those read at the start.
        """
        if not self._unread:
            return
        for key in self._unread - image.unreadable.keys():
            self._unread.discard(key)
            if key.collection == TOPIC_COLLECTION:
                partitions = image.partitions(key.key)
                self._unread |= {p.item_id for p in partitions} & image.unreadable.keys()
            else:
                known = (p for some in image.partitions_by_topic.values() for p in some)
                partitions = tuple(p for p in known if p.item_id == key)
            self.membership.start(partitions)
            if self._may_lack_records:
                self.membership.elector.note_lacking(partitions)

    def begin_leading(self, start_task: StartTask) -> None:
        """Start the loops that take partitions over and hand them back, and take brokers out."""
        assert self._led is not None, "enter first"
        start_task(self._departed.run())
        start_task(self._elections.run())
        start_task(self._led.run())

    def hand_over(self, partition: Partition) -> bool:
        """Begin to hand a partition over; return whether any other replica is in sync."""
        return self._led is not None and self._led.hand_over(partition)

    def start_next_epoch(self, topic: str, partition: Partition) -> None:
        """Lead the partition in its next leader epoch, as after a start of this node.

        For a partition whose log was reopened: followers may have records of this epoch that it
        lacks.
        """
        self.membership.elector.start([partition])
        self._elections.visit_soon(topic)

    async def drain(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Hand over the partitions that others can lead. ``begin_leading``'s loops have stopped."""
        if self._draining is None or not self._node.config().controlled_shutdown_enable:
            return
        if not is_wanted():
            return
        self.membership.report_leaving()
        left = await self._draining.run()
        if left:
            logger.info("leaderships kept, nobody else is in sync", extra={"count": left})

    async def leave(self) -> None:
        """Publish that this node has left. It no longer answers requests."""
        if self._keeper is not None:
            await self._run_renewals(self._keeper.release())
        if self._node_loop is not None:
            self._node_loop.stop()


def _unread(image: ClusterImage) -> set[ItemKey]:
    return {
        key
        for key in image.unreadable
        if key.collection == TOPIC_COLLECTION
        or key.collection.startswith(PARTITION_COLLECTION_PREFIX)
    }
