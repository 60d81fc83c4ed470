"""Manages this node's leaderships: keeps reserved partitions, hands others over.

A preferred leader gets its partitions back once it has been alive and in sync for the stable
interval. A node that stops hands everything it leads to replicas in sync. A node whose disk takes
no records hands its partitions to nodes whose disks do; it stays in the ISR until it lacks records.
A node that cannot write the object store gives its diskless partitions to nodes that can.

A partition with records is handed over by its leader state, which stops appending, waits for the
successor and writes the change. A reserved partition is handed over by a write from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple, Protocol
from uuid import UUID

from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Partition
from tidelog_core.model import RESERVED_TOPICS
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.diskless_balance import balancing_moves
from tidelog_core.replication.diskless_followers import Racks
from tidelog_core.replication.election import change_followers, hand_over, move_lead
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.replication.reassignment import (
    ask_to_lead,
    asked_leader,
    is_reassigning,
    start_reassignment,
    target_replicas,
    unasked,
)
from tidelog_core.waiting import wait_and_clear

from tidelog_node.membership.membership import Membership
from tidelog_node.membership.replica_racks import ReplicaRacks
from tidelog_node.membership.reserved_partitions import keep_reserved
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
CHECKS_PER_PREFERRED_INTERVAL = 4
DRAIN_SECONDS_MAX = 10.0
DRAIN_CHECK_SECONDS = 0.25
BALANCE_AFTER_MS = 5_000  # after a broker came or went, or leads were moved
FOLLOW_BEFORE_LEAVING_MS = 7_000  # so long a diskless partition waits for its successor
HAND_OVER_AGAIN_MS = 5_000  # before a hand-over without effect is repeated


class LeaderStates(Protocol):
    """The leader states of the partitions with records; ``ReplicaManager``."""

    def has_leader_state(self, topic_id: UUID, partition: int) -> bool:
        """Whether there is one of this partition."""

    def begin_hand_over(
        self, topic_id: UUID, partition: int, successor: int, *, is_leaving: bool
    ) -> bool:
        """Hand the partition over as soon as the successor, or its chain, has every record.

        Returns False if it has no leader state.
        """


class _Diskless(NamedTuple):
    """The diskless partitions of an image, divided among the brokers that can lead."""

    image: ClusterImage
    able: frozenset[int]
    partitions: list[Partition]
    asked: Set[tuple[UUID, int]]  # those whose leaders are asked to hand them over


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
        self._able: frozenset[int] = frozenset()  # the brokers that may lead diskless partitions
        self._balance_from_ms = 0.0  # they are the same for long enough by then
        self._replica_racks = ReplicaRacks()
        self._led_diskless: _Diskless | None = None
        self._lost_ms: dict[int, float] = {}  # when a broker was last seen to lead less than before
        # The image and the racks that were last looked at for that.
        self._balanced: tuple[ClusterImage, Racks] | None = None
        self._stir = asyncio.Event()

    async def run(self) -> None:
        """Write the changes that are due until cancelled."""
        self._membership.subscribe(self._stir.set)
        unsubscribe = self._node.view.subscribe(self._on_image)
        try:
            while True:
                if self._membership.can_serve():
                    await self._write(self.decide())
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
            changes += self._balance_diskless(image, now_ms)
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

    async def drain(self, *, seconds_max: float = DRAIN_SECONDS_MAX) -> int:
        """Hand over every partition that another node can lead; return how many are still led.

        Those have no other replica in sync, or could not be handed over in the time. No task may
        take partitions over during the call.
        """
        begun: dict[tuple[UUID, int, int], float] = {}
        try:
            async with asyncio.timeout(seconds_max):
                while self._membership.can_serve():
                    left = self._drainable(self._node.view.image)
                    if not left:
                        break
                    await self._write(self._begin_draining(left, begun))
                    await self._wait_for_change(DRAIN_CHECK_SECONDS)
        except TimeoutError:
            logger.warning("leaderships not all handed over in time")
        return sum(1 for _ in self._led(self._node.view.image))

    def _drainable(self, image: ClusterImage) -> list[tuple[str, Partition, int]]:
        elector, peers = self._membership.elector, self._membership.peers
        live = self._membership.live_brokers(image)
        found = []
        for name, partition in self._led(image):
            if partition.is_diskless:
                successor = elector.diskless_successor(partition, peers, live)
            else:
                successor = elector.drain_successor(partition, peers)
            if successor is None and name in RESERVED_TOPICS:
                successor = elector.diskless_successor(partition, peers, live)
            if successor is not None:
                found.append((name, partition, successor))
        return found

    def _begin_draining(
        self, left: list[tuple[str, Partition, int]], begun: dict[tuple[UUID, int, int], float]
    ) -> list[PartitionChange]:
        changes, now_ms = [], self._membership.now_ms()
        for name, partition, successor in left:
            if name in RESERVED_TOPICS:
                is_in_sync = successor in partition.isr
                changes.append(
                    hand_over(partition, successor, is_leaving=True)
                    if is_in_sync
                    else move_lead(partition, successor, ChangeReason.HAND_OVER)
                )
                continue
            if partition.is_diskless:
                changes += self._leave(partition, successor, begun)
                continue
            key = (partition.topic_id, partition.partition, successor)
            if now_ms < begun.get(key, -HAND_OVER_AGAIN_MS) + HAND_OVER_AGAIN_MS:
                continue
            if self._replicas.begin_hand_over(
                partition.topic_id, partition.partition, successor, is_leaving=True
            ):
                begun[key] = now_ms
            else:
                changes.append(hand_over(partition, successor, is_leaving=True))
        return changes

    def _leave(
        self, partition: Partition, successor: int, begun: dict[tuple[UUID, int, int], float]
    ) -> list[PartitionChange]:
        """Return the write that moves a diskless partition, now or after a hand-over.

        It follows first, as long as that takes not too long.
        """
        now_ms = self._membership.now_ms()
        begun_ms = begun.setdefault((partition.topic_id, partition.partition, successor), now_ms)
        if now_ms < begun_ms + FOLLOW_BEFORE_LEAVING_MS:
            return self._ask(partition, successor)
        return self._move(partition, successor)

    def _ask(self, partition: Partition, successor: int) -> list[PartitionChange]:
        """Return the write by which the leader state hands a diskless partition over.

        A partition without leader state is not led yet, so nothing has to be waited for.
        """
        if not self._replicas.has_leader_state(partition.topic_id, partition.partition):
            return [move_lead(partition, successor, ChangeReason.HAND_OVER)]
        change = ask_to_lead(partition, successor)
        return [] if change is None else [change]

    def _move(self, partition: Partition, successor: int) -> list[PartitionChange]:
        """Have the leader state hand a diskless partition over at once, as ``_ask``."""
        if self._replicas.begin_hand_over(
            partition.topic_id, partition.partition, successor, is_leaving=True
        ):
            return []
        return [move_lead(partition, successor, ChangeReason.HAND_OVER)]

    async def _wait_for_change(self, seconds_max: float) -> None:
        version = self._node.view.image.version
        self._node.view.nudge()
        with contextlib.suppress(TimeoutError):
            await self._node.view.wait_for(lambda image: image.version != version, seconds_max)

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
        for name, partition in self._led(image):
            if partition.is_diskless:
                heir = elector.diskless_successor(partition, peers, live)
                if heir is not None:
                    changes += self._move(partition, heir)
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
        for _, partition in self._led(image):
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

    def _balance_diskless(self, image: ClusterImage, now_ms: float) -> list[PartitionChange]:
        """Return this node's part of the moves that spread diskless partitions.

        Once the same brokers have been able to lead for a while.
        """
        peers, broker_id = self._membership.peers, self._membership.broker_id
        able = frozenset(
            b
            for b in self._membership.live_brokers(image)
            if b == broker_id or (peers.may_lead_diskless(b) and not peers.is_suspected(b))
        )
        is_able = self._membership.is_disk_fit and self._membership.can_store
        if not is_able or able != self._able:
            self._able, self._balance_from_ms = able, now_ms + self._rest_ms(able)
            self._balanced = None  # Of the same image the moves are others now.
        partitions, asked = self._diskless(image, able, now_ms)
        racks = self._replica_racks.note(image.brokers, able, now_ms)
        is_known = self._balanced is not None and (
            self._balanced[0] is image and self._balanced[1] == racks
        )
        if now_ms < self._balance_from_ms or is_known:
            return []
        self._balanced = image, racks
        changes: list[PartitionChange] = []
        for move in balancing_moves(partitions, able, racks):
            partition = move.partition
            key = (partition.topic_id, partition.partition)
            is_own = partition.leader == broker_id and self._membership.leads(partition)
            if not is_own or key in asked:
                continue
            if move.leader == broker_id:
                changes.append(change_followers(partition, move.replicas))
            elif now_ms < self._lost_ms.get(move.leader, -BALANCE_AFTER_MS) + BALANCE_AFTER_MS:
                self._balanced = None  # It may be leaving. Look again.
            elif self._replicas.has_leader_state(*key):
                # Where there are too few brokers, a replica stays on one that was taken out.
                known = image.brokers.keys() | partition.replicas
                change = start_reassignment(partition, move.replicas, broker_ids=known)
                changes += [] if change is None else [change]
            else:
                changes.append(
                    move_lead(
                        partition, move.leader, ChangeReason.HAND_OVER, replicas=move.replicas
                    )
                )
        if changes:
            self._balance_from_ms = now_ms + self._rest_ms(able)
            logger.info("diskless partitions spread", extra={"count": len(changes)})
        return changes

    def _rest_ms(self, able: Iterable[int]) -> float:
        """Return how long nothing may change before leads are spread.

        Longer while brokers are late: moves cost an overloaded cluster more than they bring.
        """
        extra = (self._membership.peers.extra_ms(broker_id) for broker_id in able)
        return BALANCE_AFTER_MS + max(extra, default=0.0)

    def _diskless(
        self, image: ClusterImage, able: frozenset[int], now_ms: float
    ) -> tuple[list[Partition], Set[tuple[UUID, int]]]:
        """Return the intended leaders of diskless partitions, and the moves under way.

        Also notes which brokers lead less than before: they may be about to leave, before anybody
        knows.
        """
        known = self._led_diskless
        if known is not None and known.image is image and known.able == able:
            return known.partitions, known.asked
        partitions: list[Partition] = []
        asked: set[tuple[UUID, int]] = set()
        for name in image.topics:
            for partition in image.partitions(name):
                if not partition.is_diskless:
                    continue
                leader = asked_leader(partition)
                if leader != partition.leader and leader in able:
                    asked.add((partition.topic_id, partition.partition))
                    partition = dataclasses.replace(  # noqa: PLW2901
                        partition, leader=leader, replicas=target_replicas(partition)
                    )
                elif is_reassigning(partition):
                    partition = unasked(partition)  # noqa: PLW2901
                partitions.append(partition)
        counts = Counter(partition.leader for partition in partitions)
        if known is not None:
            before = Counter(partition.leader for partition in known.partitions)
            for broker_id, count in before.items():
                if counts[broker_id] < count:
                    self._lost_ms[broker_id] = now_ms
        self._led_diskless = _Diskless(image, able, partitions, asked)
        return partitions, asked

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

    def _led(self, image: ClusterImage) -> Iterator[tuple[str, Partition]]:
        """Yield the partitions that this node leads."""
        broker_id = self._membership.broker_id
        for topic_id, partitions in image.partitions_by_topic.items():
            name = image.topic_names.get(topic_id)
            for partition in partitions:
                if (
                    name is not None
                    and partition.leader == broker_id
                    and self._membership.leads(partition)
                ):
                    yield name, partition

    async def _write(self, changes: list[PartitionChange]) -> None:
        if not changes:
            return
        await write_changes(self._node.store, changes)
        try:
            await self._node.view.refresh()
        except StoreUnavailable:
            return  # The next round uses the image known by then.

    def _on_image(self, _: ClusterImage, changed_topics: frozenset[str]) -> None:
        if changed_topics & RESERVED_TOPICS:
            self._stir.set()
