"""Hands over everything that a stopping node leads, to the nodes that can lead it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Partition
from tidelog_core.model import RESERVED_TOPICS
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import hand_over, move_lead

from tidelog_node.membership.hand_overs import (
    HAND_OVER_AGAIN_MS,
    LeaderStates,
    ask_to_hand_over,
    hand_over_now,
    write_and_see,
)
from tidelog_node.membership.membership import Membership
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

DRAIN_SECONDS_MAX = 10.0
DRAIN_CHECK_SECONDS = 0.25
FOLLOW_BEFORE_LEAVING_MS = 7_000  # so long a diskless partition waits for its successor


class _Drainable(NamedTuple):
    """A partition that this node leads, and the broker that can lead it."""

    topic: str
    partition: Partition
    successor: int

    @property
    def key(self) -> tuple[UUID, int, int]:
        return self.partition.topic_id, self.partition.partition, self.successor


class Draining:
    """Hands over the partitions that this node leads, once. No task may take any over then."""

    def __init__(self, node: NodeContext, membership: Membership, replicas: LeaderStates) -> None:
        self._node = node
        self._membership = membership
        self._replicas = replicas
        # When a hand-over was begun last, of diskless partitions first.
        self._begun: dict[tuple[UUID, int, int], float] = {}

    async def run(self, *, seconds_max: float = DRAIN_SECONDS_MAX) -> int:
        """Hand over every partition that another node can lead; return how many are still led.

        Those have no other replica in sync, or could not be handed over in the time.
        """
        try:
            async with asyncio.timeout(seconds_max):
                while self._membership.can_serve():
                    left = list(self._find(self._node.view.image))
                    if not left:
                        break
                    changes = [change for one in left for change in self._begin(one)]
                    await write_and_see(self._node, changes)
                    await self._wait_for_change(DRAIN_CHECK_SECONDS)
        except TimeoutError:
            logger.warning("leaderships not all handed over in time")
        return sum(1 for _ in self._membership.led(self._node.view.image))

    def _find(self, image: ClusterImage) -> Iterator[_Drainable]:
        elector, peers = self._membership.elector, self._membership.peers
        live = self._membership.live_brokers(image)
        for name, partition in self._membership.led(image):
            if partition.is_diskless:
                successor = elector.diskless_successor(partition, peers, live)
            else:
                successor = elector.drain_successor(partition, peers)
            if successor is None and name in RESERVED_TOPICS:
                successor = elector.diskless_successor(partition, peers, live)
            if successor is not None:
                yield _Drainable(name, partition, successor)

    def _begin(self, one: _Drainable) -> list[PartitionChange]:
        """Begin to hand the partition over, or return the writes that do so."""
        if one.topic in RESERVED_TOPICS:
            return [_hand_over_reserved(one.partition, one.successor)]
        now_ms = self._membership.now_ms()
        if one.partition.is_diskless:
            # The successor follows first, as long as that takes not too long.
            follows_until_ms = self._begun.setdefault(one.key, now_ms) + FOLLOW_BEFORE_LEAVING_MS
            begin = ask_to_hand_over if now_ms < follows_until_ms else hand_over_now
            return begin(self._replicas, one.partition, one.successor)
        if now_ms < self._begun.get(one.key, -HAND_OVER_AGAIN_MS) + HAND_OVER_AGAIN_MS:
            return []
        if self._replicas.begin_hand_over(
            one.partition.topic_id, one.partition.partition, one.successor, is_leaving=True
        ):
            self._begun[one.key] = now_ms
            return []
        return [hand_over(one.partition, one.successor, is_leaving=True)]

    async def _wait_for_change(self, seconds_max: float) -> None:
        version = self._node.view.image.version
        self._node.view.nudge()
        with contextlib.suppress(TimeoutError):
            await self._node.view.wait_for(lambda image: image.version != version, seconds_max)


def _hand_over_reserved(partition: Partition, successor: int) -> PartitionChange:
    if successor in partition.isr:
        return hand_over(partition, successor, is_leaving=True)
    return move_lead(partition, successor, ChangeReason.HAND_OVER)
