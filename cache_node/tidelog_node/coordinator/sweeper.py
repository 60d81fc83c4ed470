"""Removes expired offsets, empty groups, and the offsets of deleted topics.

A classic or consumer group is removed when it has neither members nor offsets, committed or waiting
for a transaction's end. A share group is never removed here; it only loses its share partitions of
deleted topics.

A check of a group takes several readings of the store. Its result says until when nothing can
expire (``_Settled``), as long as the group is in the same phase, its members subscribe to the same
topics, and no topic is deleted; until then the group is not checked again. An offset that is
committed in between expires later than that, unless it has a retention of its own: groups with such
offsets are always checked.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tidelog_core.admin.groups.share_offsets import forget, list_share_partitions
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.coordination.groups import GroupOffsets
from tidelog_core.metadata.coordination.share_partitions import share_partition_of
from tidelog_core.metadata.image.cluster_image import ClusterImage

from tidelog_node.coordinator.group_shard import GroupShard
from tidelog_node.coordinator.loaded_group import LoadedGroup, Unloaded
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.offset_expiration import earliest_end_ms, expired_partitions
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Settled:
    """The time before which nothing of a group expires if the other fields are unchanged."""

    until_ms: float  # wall clock
    retention_ms: int
    group: Group  # the same object: its counters restart when it is read again
    phase: object
    phase_since_ms: float
    subscriptions_version: object  # None for a classic group: it rebalances to change them
    deletion_count: int  # of topics


class Sweeper:
    """Checks the groups of this node's shards at intervals."""

    def __init__(
        self, node: NodeContext, shards: Iterable[GroupShard], *, clock_offset_ms: Callable[[], int]
    ) -> None:
        """``shards`` yields the current ones; ``clock_offset_ms`` is wall minus event clock."""
        self._node = node
        self._shards = shards
        self._clock_offset_ms = clock_offset_ms
        self._settled: dict[LoadedGroup, _Settled] = {}
        self._image = node.view.image
        self._deletion_count = 0  # images that lacked a topic of the image before

    async def run(self) -> None:
        """Sweep until cancelled."""
        unsubscribe = self._node.view.subscribe(self._on_image)
        try:
            while True:
                interval_ms = self._node.config().offsets_retention_check_interval_ms
                await asyncio.sleep(interval_ms / 1000)
                known, self._settled = self._settled, {}
                for shard in self._shards:
                    await self._sweep(shard, known)
        finally:
            unsubscribe()

    def _on_image(self, image: ClusterImage, changed_topics: frozenset[str]) -> None:
        before, self._image = self._image, image
        for name in changed_topics:
            topic = before.topic(name)
            if topic is not None and topic.topic_id not in image.topic_names:
                self._deletion_count += 1

    async def _sweep(self, shard: GroupShard, known: Mapping[LoadedGroup, _Settled]) -> None:
        try:
            groups = await shard.find_all()
        except TidelogError as error:
            logger.warning("expired offsets not removed, will retry", extra={"reason": str(error)})
            return
        for loaded in groups:
            settled = known.get(loaded)
            if settled is not None and self._is_settled(loaded, settled):
                self._settled[loaded] = settled
                continue
            try:
                await loaded.match_patterns()
                await loaded.exclusively(lambda loaded=loaded: self._end(loaded))  # type: ignore[misc]
            except Unloaded:
                continue
            except TidelogError as error:
                logger.warning(
                    "expired offsets not removed, will retry",
                    extra={"group_id": loaded.group.group_id, "reason": str(error)},
                )

    def _is_settled(self, loaded: LoadedGroup, settled: _Settled) -> bool:
        may_end = loaded.has_own_expiries or self._node.clock_ms() >= settled.until_ms
        now = self._as_settled(loaded, settled.until_ms, self._deletion_count)
        return not may_end and settled == now

    def _as_settled(self, loaded: LoadedGroup, until_ms: float, deletion_count: int) -> _Settled:
        group = loaded.group
        return _Settled(
            until_ms,
            self._retention_ms(),
            group,
            group.phase,
            group.phase_since_ms,
            group.roster.subscriptions_version if isinstance(group, ConsumerGroup) else None,
            deletion_count,
        )

    def _settle(self, loaded: LoadedGroup, end_ms: float, deletion_count: int) -> None:
        """Note that nothing that this check has seen expires before ``end_ms``.

        ``deletion_count`` is from before the check.
        """
        # An offset may have been committed right after the check.
        until_ms = min(end_ms, self._node.clock_ms() + self._retention_ms())
        self._settled[loaded] = self._as_settled(loaded, until_ms, deletion_count)

    def _retention_ms(self) -> int:
        return self._node.config().offsets_retention_minutes * 60_000

    async def _end(self, loaded: LoadedGroup) -> None:
        if isinstance(loaded.group, ShareGroup):
            # It is never removed here: its start offsets would be lost.
            await self._drop_share_partitions(loaded)
        elif self._node.may_expire():
            await self._expire_offsets(loaded, loaded.group)

    async def _drop_share_partitions(self, loaded: LoadedGroup) -> None:
        """Drop the share partitions of topics that were deleted."""
        deletion_count = self._deletion_count
        items = await list_share_partitions(self._node.store, loaded.group.group_id)
        # Read after the items, so it has every topic that they can be of.
        image = await self._node.view.refresh()
        if image.unreadable:
            return  # Some topics are unknown.
        gone = [
            item
            for item in items
            if (at := share_partition_of(item.id)) is not None and at[0] not in image.topic_names
        ]
        await loaded.storage.write_in_parts([forget(item) for item in gone])
        self._settle(loaded, math.inf, deletion_count)

    async def _expire_offsets(
        self, loaded: LoadedGroup, group: ClassicGroup | ConsumerGroup
    ) -> None:
        retention_ms, now_ms = self._retention_ms(), self._node.clock_ms()
        ends_ms, deletion_count = [math.inf], self._deletion_count

        def expired(page: GroupOffsets) -> frozenset[int]:
            image, clock_offset_ms = self._node.view.image, self._clock_offset_ms()
            if image.is_unreadable(page.topic):
                ends_ms.append(-math.inf)
                return frozenset()  # It may be another topic of this name.
            topic = image.topic(page.topic)
            ended = expired_partitions(
                group,
                page,
                topic_id=None if topic is None else topic.topic_id,
                now_ms=now_ms,
                clock_offset_ms=clock_offset_ms,
                retention_ms=retention_ms,
            )
            ends_ms.append(
                earliest_end_ms(
                    group, page, clock_offset_ms=clock_offset_ms, retention_ms=retention_ms
                )
            )
            return ended

        removed_count, left_count = await loaded.storage.remove_offsets(expired)
        if removed_count:
            logger.info(
                "offsets expired", extra={"group_id": group.group_id, "count": removed_count}
            )
        is_over = left_count == 0 and group.is_vacant and loaded.storage.is_idle
        if is_over and not await loaded.storage.has_pending():
            await loaded.delete()
        elif not removed_count and (left_count or not group.is_vacant):
            self._settle(loaded, min(ends_ms), deletion_count)
