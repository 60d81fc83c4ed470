"""Finds the end of a log at one moment, once all records below it are committed.

An erasure covers the log up to its end at the time when the leader reads the request. The next
leader must have all of these records, so the end counts once the high watermark has reached it.
Records appended while it waits are not covered: the first end that was seen stays.
"""

from __future__ import annotations

from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Check, ItemKey, MetadataStore

from tidelog_node.tier.led_partition import TieredReplica


class CommittedEnds:
    """The log ends that were seen, by request. For one event loop."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        # Of the request's item its version, then the leader epoch and the end offset.
        self._seen: dict[ItemKey, tuple[int, int, int]] = {}

    async def end_for(
        self, request: ItemKey, version: int, replica: TieredReplica
    ) -> tuple[int, Check] | None:
        """Return the end of a led partition's log at the first call for this ``version``.

        Another ``version`` or leader epoch gets another end. The log is rolled there. Also
        returns the condition that this node still leads. ``None`` until the end is committed.
        Raises ``StorageError`` and the errors of the store.
        """
        log, epoch = replica.log, replica.leader_epoch
        seen = self._seen.get(request)
        if seen is None or seen[:2] != (version, epoch):
            log.roll()
            replica.note_changed()
            seen = self._seen[request] = version, epoch, log.active_segment_base_offset
        end_offset = seen[2]
        if log.high_watermark < end_offset:
            return None
        number = replica.partition.partition
        item = await self._store.get(records.partition_key(replica.topic_id, number))
        if item is None:
            return None
        partition = Partition.from_item(item)
        if (partition.leader, partition.leader_epoch) != (self._broker_id, epoch):
            return None
        return end_offset, records.check(partition)

    def forget(self, request: ItemKey) -> None:
        """Drop the end of a request that has its offset."""
        self._seen.pop(request, None)
