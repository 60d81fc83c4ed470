"""Makes partitions read their segments again after a rewriter's swap."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from tidelog_core.errors import TidelogError
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.rewrite_claims import REWRITE_CLAIM_COLLECTION, claimed_partition
from tidelog_core.metadata.store import ItemKey

from tidelog_node.tier.attempts import RETRY_DELAY_S_MIN
from tidelog_node.tier.led_partition import TieredReplica
from tidelog_node.tier.partitions import PartitionKey, TieredPartitions
from tidelog_node.tier.remote_log import RemoteLog

logger = logging.getLogger(__name__)


class SwapWatch:
    """Watches the rewrite claims. For one event loop."""

    def __init__(
        self,
        *,
        view: ClusterView,
        partitions: TieredPartitions,
        on_swapped: Callable[[TieredReplica], None],
    ) -> None:
        """``on_swapped`` is called with led partitions that had segments replaced."""
        self._partitions = partitions
        self._on_swapped = on_swapped
        self._refreshing: dict[PartitionKey, asyncio.Task[None]] = {}
        self._unwatch = view.watch(REWRITE_CLAIM_COLLECTION, self._on_rewritten)

    async def close(self) -> None:
        """Stop watching, and cancel the readings in progress."""
        self._unwatch()
        tasks = tuple(self._refreshing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_rewritten(self, keys: Collection[ItemKey]) -> None:
        """Read the new segments, and end the deletion of the replaced ones."""
        for partition in filter(None, map(claimed_partition, keys)):
            led = self._partitions.get_led(partition)
            remote = self._partitions.get_remote(partition)
            if remote is not None:
                remote.invalidate()
                if partition not in self._refreshing:
                    self._refreshing[partition] = asyncio.create_task(
                        self._refresh(partition), name="read what was rewritten"
                    )
            if led is not None:
                led.note_swap()
                self._on_swapped(led.replica)

    async def _refresh(self, partition: PartitionKey) -> None:
        """Read the partition's segments until a reading covers every swap.

        One reading at a time, with pauses, however many swaps there are (``known_segments``).
        """
        try:
            while (remote := self._behind(partition)) is not None:
                try:
                    await remote.refresh()
                except TidelogError as error:
                    logger.warning(
                        "replaced segments stay in use or cached", extra={"reason": str(error)}
                    )
                    await asyncio.sleep(RETRY_DELAY_S_MIN)
        finally:
            del self._refreshing[partition]

    def _behind(self, partition: PartitionKey) -> RemoteLog | None:
        """Return the partition's tiered part if there are swaps that it has not read."""
        remote = self._partitions.get_remote(partition)
        return remote if remote is not None and remote.is_behind else None
