"""One node's life as a member of the cluster: join, act, drain, leave.

``prepare`` before the logs are touched; ``take_lease`` and ``enter`` once the node could
serve, the one before it registers, the other after; ``drain`` while it still serves;
``leave`` when it answers nobody any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.location import loss_of
from tidelog_core.metadata.records import (
    PARTITION_COLLECTION_PREFIX,
    TOPIC_COLLECTION,
    Partition,
)
from tidelog_core.metadata.store import ItemKey, MetadataStore

from tidelog_node.membership.election_loop import ElectionLoop
from tidelog_node.membership.joining import leave_again, take_over_id
from tidelog_node.membership.lease_keeper import LeaseKeeper
from tidelog_node.membership.led_partitions import LeaderStates, LedPartitions
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.node_loop import NodeLoop
from tidelog_node.membership.peer_watch import PeerWatch
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

StartTask = Callable[[Coroutine[Any, Any, None]], None]
RunRenewals = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]


class ClusterMember:
    """Puts the parts of membership together. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        membership: Membership,
        *,
        lease_store: MetadataStore,
        renewal_store: MetadataStore,
        run_renewals: RunRenewals,
    ) -> None:
        """``lease_store`` is for leases alone, which must not queue behind other calls.

        ``run_renewals`` runs what renews the own lease, on another thread unless the loop is
        one that nobody keeps waiting; there ``renewal_store`` is used, and nowhere else.
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
        )
        self._elections = ElectionLoop(node, membership=membership)
        self._keeper: LeaseKeeper | None = None
        self._node_loop: NodeLoop | None = None
        self._led: LedPartitions | None = None
        self._unsettled_dir: Path | None = None  # where a loss of records has to be settled
        self._may_lack_records = False
        # Partitions and topics that this process could not read yet, since it has begun.
        self._unread: set[ItemKey] = set()

    async def prepare(self, data_dir: Path, *, was_clean: bool) -> None:
        """Return when no other process of this broker id acts any more.

        The caller holds the lock of the data directory, and nothing has subscribed to the
        view that asks who leads. Raises ``BrokerIdTaken``.
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
        )
        self._may_lack_records = taken.may_lack_records
        self._unsettled_dir = data_dir if taken.may_lack_records else None

    async def take_lease(self, start_task: StartTask) -> None:
        """Take the lease. Whoever reads the registration that follows finds it taken.

        ``start_task`` gets what has to run until ``leave``. Raises ``BrokerIdTaken``.
        """
        assert self._keeper is not None, "prepare first"
        assert self._node_loop is not None, "prepare first"
        self._node_loop.start()
        await self._run_renewals(self._keeper.acquire())
        start_task(self._run_renewals(self._keeper.run()))

    async def enter(self, replicas: LeaderStates, start_task: StartTask) -> None:
        """Lead again what this node led before; on return it may serve.

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
        await self._watch.read()
        start_task(self._watch.run())
        await self._elections.round()

    def _on_image(self, image: ClusterImage, _: frozenset[str]) -> None:
        """Treat partitions that become readable after the start as if they had been read then.

        An earlier process may have led in that epoch, as in those that were read at the start.
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
        """Start what takes partitions over and hands them back."""
        assert self._led is not None, "enter first"
        start_task(self._elections.run())
        start_task(self._led.run())

    def hand_over(self, partition: Partition) -> bool:
        """Begin to hand a partition over; return whether anybody else is in sync."""
        return self._led is not None and self._led.hand_over(partition)

    def start_next_epoch(self, topic: str, partition: Partition) -> None:
        """Lead the partition in its next leader epoch, as after a start of this node.

        For one whose log was opened again: it may lack what followers have of this epoch.
        """
        self.membership.elector.start([partition])
        self._elections.look_again(topic)

    async def drain(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Hand over what others can lead. Elections and hand-backs have been stopped."""
        if self._led is None or not self._node.config().controlled_shutdown_enable:
            return
        if not is_wanted():
            return
        self.membership.report_leaving()
        left = await self._led.drain()
        if left:
            logger.info("leaderships kept, nobody else is in sync", extra={"count": left})

    async def leave(self) -> None:
        """Tell everyone that this node is gone. Nobody is answered any more."""
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
