"""Finds the end of a log at one moment, once all records below it are committed.

An erasure goes up to where the log ends when its leader learns of it. Whoever leads next has
to have all of that, so it counts only once the high watermark has reached it. Meanwhile more is
appended: the end that was seen first is what is waited for.
"""

from __future__ import annotations

from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Check, ItemKey, MetadataStore

from tidelog_node.tier.led_partition import TieredReplica


class CommittedEnds:
    """The ends that were seen, by what they were asked for. For one event loop."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        # Of the request's item its version, then the leader epoch and the end offset.
        self._seen: dict[ItemKey, tuple[int, int, int]] = {}

    async def end_for(
        self, request: ItemKey, version: int, replica: TieredReplica
    ) -> tuple[int, Check] | None:
        """Return where the log of a led partition ended when it was first asked for.

        That is asked for anew with each ``version`` of the request. The log is rolled there.
        With it comes the condition that this node still leads. ``None`` while it is not
        committed. Raises what the store raises, ``StorageError``.
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
        """Remember nothing of the request, which is taken up."""
        self._seen.pop(request, None)
