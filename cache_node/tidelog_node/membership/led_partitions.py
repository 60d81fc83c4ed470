"""Manages this node's leaderships: keeps reserved partitions, hands others over.

A preferred leader gets its partitions back once it has been alive and in sync for the stable
interval. A node whose disk takes no records hands its partitions to nodes whose disks do; it stays
in the ISR until it lacks records. A node that cannot write the object store gives its diskless
partitions to nodes that can. ``draining`` and ``diskless_spreading`` have the other reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Partition
from tidelog_core.model import RESERVED_TOPICS
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import hand_over, move_lead
from tidelog_core.replication.placement.reassignment import asked_leader
from tidelog_core.waiting import wait_and_clear

from tidelog_node.membership.diskless_spreading import DisklessSpreading
from tidelog_node.membership.hand_overs import (
    HAND_OVER_AGAIN_MS,
    LeaderStates,
    hand_over_now,
    write_and_see,
)
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.reserved_partitions import keep_reserved
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
CHECKS_PER_PREFERRED_INTERVAL = 4


class LedPartitions:
    """Manages the partitions that this node leads. Each method is for one task at a time."""

    def __init__(
        self,
        node: NodeContext,
        *,
        membership: Membership,
        replicas: LeaderStates,
        preferred_interval_seconds: float,
    ) -> None:
        self._node = node
        self._membership = membership
        self._replicas = replicas
        self._preferred_check_ms = (
            min(5.0, preferred_interval_seconds / CHECKS_PER_PREFERRED_INTERVAL) * 1000
        )
        self._preferred_from_ms = 0.0
        self._handed_over: dict[tuple[UUID, int, int], float] = {}  # last start; key with epoch
        # By topic: its partitions in the image visited last, and those of them that this node leads
        # for another broker.
        self._led_for_others: dict[UUID, tuple[tuple[Partition, ...], list[Partition]]] = {}
        self._visited: ClusterImage | None = None
        self._spreading = DisklessSpreading(membership, replicas)
        self._stir = asyncio.Event()

    async def run(self) -> None:
        """Write the changes that are due until cancelled."""
        self._membership.subscribe(self._stir.set)
        unsubscribe = self._node.view.subscribe(self._on_image)
        try:
            while True:
                if self._membership.can_serve():
                    await write_and_see(self._node, self.decide())
                await wait_and_clear(self._stir, CHECK_SECONDS)
        finally:
            unsubscribe()

    def decide(self) -> list[PartitionChange]:
        """Return the changes to write; begin the hand-overs that leader states write themselves."""
        image, now_ms = self._node.view.image, self._membership.now_ms()
        changes = self._membership.elector.departures(
            partition for some in image.partitions_by_topic.values() for partition in some
        )
        leaving = {change.after.item_id for change in changes}
        changes += [c for c in self._decide_reserved(image) if c.after.item_id not in leaving]
        changes += self._hand_over_for_disk(image, now_ms)
        if self._membership.is_disk_fit and self._membership.gives_up_diskless():
            changes += self._hand_over_for_store(image)
        changes += self._reassign_diskless(image)
        if now_ms >= self._preferred_from_ms:
            self._preferred_from_ms = now_ms + self._preferred_check_ms
            if self._node.config().auto_leader_rebalance_enable:
                taken = {change.after.item_id for change in changes}
                changes += [
                    change
                    for change in self._decide_preferred(image, now_ms)
                    if change.after.item_id not in taken
                ]
        if not changes and self._node.config().auto_leader_rebalance_enable:
            changes += self._spreading.decide(image, now_ms)
        return changes

    def hand_over(self, partition: Partition) -> bool:
        """Begin to hand over a partition that others can lead better for a while.

        Returns False if no other replica is in sync.
        """
        membership = self._membership
        successor = membership.elector.drain_successor(partition, membership.peers)
        if successor is None or not membership.leads(partition):
            return successor is not None
        self._replicas.begin_hand_over(
            partition.topic_id, partition.partition, successor, is_leaving=False
        )
        return True

    def _decide_reserved(self, image: ClusterImage) -> list[PartitionChange]:
        changes = []
        live = self._membership.live_brokers(image).keys()
        for name in sorted(RESERVED_TOPICS & image.topics.keys()):
            load = Counter(b for p in image.partitions(name) for b in p.replicas)
            for partition in image.partitions(name):
                if not self._membership.leads(partition):
                    continue
                change = keep_reserved(
                    partition,
                    self._membership.peers,
                    registered=image.brokers.keys(),
                    live=frozenset(live),
                    load=load,
                )
                if change is not None:
                    load.update(set(change.after.replicas) - set(partition.replicas))
                    changes.append(change)
        return changes

    def _hand_over_for_disk(self, image: ClusterImage, now_ms: float) -> list[PartitionChange]:
        """Begin to hand partitions over to nodes with fit disks, if this node's disk is unfit.

        Returns the writes that hand diskless ones over.
        """
        changes: list[PartitionChange] = []
        if self._membership.is_disk_fit:
            self._handed_over.clear()
            return changes
        elector, peers = self._membership.elector, self._membership.peers
        live = self._membership.live_brokers(image)
        for name, partition in self._membership.led(image):
            if partition.is_diskless:
                heir = elector.diskless_successor(partition, peers, live)
                if heir is not None:
                    changes += hand_over_now(self._replicas, partition, heir)
                continue
            key = (partition.topic_id, partition.partition, partition.leader_epoch)
            is_begun = now_ms < self._handed_over.get(key, -HAND_OVER_AGAIN_MS) + HAND_OVER_AGAIN_MS
            if name in RESERVED_TOPICS or is_begun:
                continue  # Reserved partitions need no disk.
            successor = elector.fit_successor(partition, peers)
            if successor is not None:
                self._handed_over[key] = now_ms
                # It stays in the ISR, since it has every record. The successor removes it once it
                # lacks some, and that write proves that the successor is alive.
                self._replicas.begin_hand_over(
                    partition.topic_id, partition.partition, successor, is_leaving=False
                )
        return changes

    def _hand_over_for_store(self, image: ClusterImage) -> list[PartitionChange]:
        """Return the writes that give diskless partitions to brokers that can store, if any can."""
        elector, peers = self._membership.elector, self._membership.peers
        live = self._membership.live_brokers(image)
        changes = []
        for _, partition in self._membership.led(image):
            if partition.is_diskless:
                heir = elector.diskless_successor(partition, peers, live)
                if heir is not None:
                    changes.append(move_lead(partition, heir, ChangeReason.HAND_OVER))
        if changes:
            logger.warning(
                "diskless partitions given to nodes that can write the object store",
                extra={"count": len(changes)},
            )
        return changes

    def _reassign_diskless(self, image: ClusterImage) -> list[PartitionChange]:
        """Return the moves that an administrator asks for, of partitions that are not led yet.

        The leader states see to the others.
        """
        changes: list[PartitionChange] = []
        peers, live = self._membership.peers, self._membership.live_brokers(image)
        for _, partition in self._find_led_for_others(image):
            key = (partition.topic_id, partition.partition)
            if partition.is_diskless and not self._replicas.has_leader_state(*key):
                successor = asked_leader(partition)
                if successor in live and peers.may_lead_diskless(successor):
                    changes.append(move_lead(partition, successor, ChangeReason.HAND_OVER))
        return changes

    def _decide_preferred(self, image: ClusterImage, now_ms: float) -> list[PartitionChange]:
        changes = []
        for name, partition in self._find_led_for_others(image):
            successor = self._membership.elector.preferred_successor(
                partition, self._membership.peers, now_ms=now_ms
            )
            if successor is None:
                continue
            if name in RESERVED_TOPICS:
                changes.append(hand_over(partition, successor))
            else:
                self._replicas.begin_hand_over(
                    partition.topic_id, partition.partition, successor, is_leaving=False
                )
        return changes

    def _find_led_for_others(self, image: ClusterImage) -> Iterator[tuple[str, Partition]]:
        """Yield the partitions that this node leads and another broker is preferred for.

        Visits only topics that have changed since the last call.
        """
        broker_id, known = self._membership.broker_id, self._led_for_others
        if image is not self._visited:
            found = {}
            for topic_id, partitions in image.partitions_by_topic.items():
                before = known.get(topic_id)
                if before is None or before[0] is not partitions:
                    for_others = [
                        partition
                        for partition in partitions
                        if partition.leader == broker_id and partition.replicas[0] != broker_id
                    ]
                    before = (partitions, for_others)
                found[topic_id] = before
            self._led_for_others, self._visited = found, image
        for topic_id, (_, for_others) in self._led_for_others.items():
            name = image.topic_names.get(topic_id) if for_others else None
            for partition in for_others:
                if name is not None and self._membership.leads(partition):
                    yield name, partition

    def _on_image(self, _: ClusterImage, changed_topics: frozenset[str]) -> None:
        if changed_topics & RESERVED_TOPICS:
            self._stir.set()
