"""The tails of diskless partitions, read from chains without a node.

A read asks once, a stream again and again: then each live chain is listed once, and only what is
new is read. Partitions' items are read before the chains are listed, and segments after: see
``tidelog_core.diskless.tail.reader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.metadata.epoch_chains import EpochChains
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.stores.cluster_objects import require_objects
from tidelog_spark.stores.partition_log import LogTail, PartitionLog

if TYPE_CHECKING:
    from tidelog_core.diskless.tail.reader import Refreshed, TailReader

# Spark starts a process for each plan; the chains' modules are imported if a topic has chains.

Items = Mapping[PartitionName, EpochChains]


class ChainTails:
    """The tails of the selected partitions. Used from one task."""

    def __init__(self, objects: ObjectStore, *, is_read_committed: bool) -> None:
        self._objects = objects
        self._is_read_committed = is_read_committed
        self._cluster_id = ""
        self._reader: TailReader | None = None
        self._items: Items = {}

    async def read(self, cluster_id: str, items: Items) -> None:
        """List the chains of these partitions, whose items were read before.

        Raises ``CorruptObject``, ``StoreUnavailable``, and ``InvalidConfig`` for a store with no
        object of the cluster.
        """
        self._items = {name: chains for name, chains in items.items() if chains}
        if self._reader is None:
            if not self._items:
                return
            from tidelog_core.diskless.chain.store import ChainStore
            from tidelog_core.diskless.tail.reader import TailReader

            self._cluster_id = cluster_id
            self._reader = TailReader(ChainStore(self._objects, cluster_id))
            found = await self._refresh()
            if not (found.is_grown or found.is_collected):
                # The node that opened the first of the chains put the cluster's manifest before.
                await require_objects(self._objects, cluster_id)
            return
        await self._refresh()

    async def read_again(self) -> Refreshed | None:
        """List the same chains again; ``None`` if there are none. Raises as ``read``."""
        return await self._refresh() if self._items else None

    def with_tail(self, log: PartitionLog, *, is_over_gaps: bool) -> PartitionLog:
        """Return the log with its tail, if it is diskless."""
        name = None if log.topic_id is None else _name(log.topic_id, log)
        chains = None if name is None else self._items.get(name)
        if self._reader is None or name is None or chains is None:
            return log
        view = self._reader.view(name, log.tiered_end_offset, chains, is_over_gaps=is_over_gaps)
        end_offset = view.stable_offset if self._is_read_committed else view.end_offset
        return replace(log, tail=LogTail(self._cluster_id, view, end_offset))

    def is_behind(self, log: PartitionLog) -> bool:
        """Return whether segments that were not listed may have offsets that the log lacks."""
        name = None if log.topic_id is None else _name(log.topic_id, log)
        chains = () if name is None else self._items.get(name, ())
        # An item's first epoch begins in the tier, unless the topic has become diskless later.
        is_cut = any(log.tiered_end_offset < one.first_offset for one in chains[:1])
        return is_gap_known(log) or (is_cut and log.listed_from > 0)

    async def _refresh(self) -> Refreshed:
        assert self._reader is not None
        chains = {one.chain for chains in self._items.values() for one in chains}
        return await self._reader.refresh(self._items.keys(), chains)


def is_gap_known(log: PartitionLog) -> bool:
    """Return whether offsets between the tier and the tail, or in the tail, are nowhere."""
    return log.tail is not None and log.tail.view.missing is not None


def _name(topic_id: UUID, log: PartitionLog) -> PartitionName:
    return PartitionName(topic_id, log.partition.partition)
