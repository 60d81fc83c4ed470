"""What ends by itself: offsets with age or with their topic, groups with their last offset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from tidelog_core.admin.share_offsets import forget, list_share_partitions
from tidelog_core.config import NodeConfig
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.groups import GroupOffsets
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.share_partitions import share_partition_of
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.coordinator.consumer_group import ConsumerGroup
from tidelog_node.coordinator.group_state import ClassicGroup
from tidelog_node.coordinator.loaded_group import LoadedGroup, Unloaded
from tidelog_node.coordinator.offset_rules import expired_partitions
from tidelog_node.coordinator.shard import Shard
from tidelog_node.coordinator.share_group import ShareGroup

logger = logging.getLogger(__name__)


class Sweeper:
    """Looks through the groups of this node's shards from time to time."""

    def __init__(
        self,
        shards: Iterable[Shard],
        *,
        store: MetadataStore,
        view: ClusterView,
        node_config: Callable[[], NodeConfig],
        wall_clock_ms: Callable[[], int],
        clock_offset_ms: Callable[[], int],
        may_expire: Callable[[], bool],
    ) -> None:
        """``shards`` are those of each moment; ``clock_offset_ms`` is wall minus event clock.

        ``may_expire`` says whether the wall clock can be trusted to tell what is too old.
        """
        self._shards = shards
        self._store = store
        self._view = view
        self._node_config = node_config
        self._wall_clock_ms = wall_clock_ms
        self._clock_offset_ms = clock_offset_ms
        self._may_expire = may_expire

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            interval_ms = self._node_config().offsets_retention_check_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            for shard in self._shards:
                await self._sweep(shard)

    async def _sweep(self, shard: Shard) -> None:
        try:
            groups = await shard.find_all()
        except TidelogError as error:
            logger.warning("offsets are not expired", extra={"problem": str(error)})
            return
        for loaded in groups:
            try:
                await loaded.exclusively(lambda loaded=loaded: self._end(loaded))  # type: ignore[misc]
            except Unloaded:
                continue
            except TidelogError as error:
                logger.warning(
                    "offsets are not expired",
                    extra={"group": loaded.group.group_id, "problem": str(error)},
                )

    async def _end(self, loaded: LoadedGroup) -> None:
        if isinstance(loaded.group, ShareGroup):
            # It never ends by itself: that would forget where it was.
            await self._drop_share_partitions(loaded)
        elif self._may_expire():
            await self._expire_offsets(loaded, loaded.group)

    async def _drop_share_partitions(self, loaded: LoadedGroup) -> None:
        """Drop the share partitions of topics that were deleted."""
        items = await list_share_partitions(self._store, loaded.group.group_id)
        # Read after them: it has every topic that anybody can have read by then.
        image = await self._view.refresh()
        if image.unreadable:
            return  # Nobody knows which topics there are.
        gone = [
            item
            for item in items
            if (at := share_partition_of(item.id)) is not None and at[0] not in image.topic_names
        ]
        await loaded.storage.write_in_parts([forget(item) for item in gone])

    async def _expire_offsets(
        self, loaded: LoadedGroup, group: ClassicGroup | ConsumerGroup
    ) -> None:
        retention_ms = self._node_config().offsets_retention_minutes * 60_000
        now_ms = self._wall_clock_ms()

        def expired(page: GroupOffsets) -> frozenset[int]:
            image = self._view.image
            if image.is_unreadable(page.topic):
                return frozenset()  # Nobody knows whether it is still the same topic.
            topic = image.topic(page.topic)
            return expired_partitions(
                group,
                page,
                topic_id=None if topic is None else topic.topic_id,
                now_ms=now_ms,
                clock_offset_ms=self._clock_offset_ms(),
                retention_ms=retention_ms,
            )

        removed_count, left_count = await loaded.storage.remove_offsets(expired)
        if removed_count:
            logger.info("offsets expired", extra={"group": group.group_id, "count": removed_count})
        is_over = left_count == 0 and group.is_vacant and loaded.storage.is_idle
        if is_over and not await loaded.storage.has_pending():
            await loaded.delete()
