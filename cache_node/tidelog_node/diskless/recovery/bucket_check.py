"""Compares the end of a recovered log with the bucket, before the log is led.

If the metadata store was set back to an earlier time, its tier ends too early, and the chain's
objects for the rest are gone. Only the bucket shows that: it has segments, or a log start, that the
metadata store lacks (``unknown_segments``). A log that was led all the same would give the offsets
of acknowledged records to others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn
from uuid import UUID

from tidelog_core.diskless.takeover.unknown_segments import published_log_start, segment_from
from tidelog_core.errors import CorruptObject, MetadataSetBack, StoreUnavailable
from tidelog_core.metadata.epoch_chains import describe_epoch
from tidelog_core.metadata.leadership import advance_log_start, leadership_of
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState, segment_key_from
from tidelog_core.metadata.store import KeyRange
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import partition_prefix
from tidelog_core.tier.lifecycle import read_segments

from tidelog_node.node_context import NodeContext


class BucketCheck:
    """Searches the bucket for records that the metadata store does not know.

    That costs two listings if there are none.

    For the tasks of one event loop. All methods also raise the stores' errors.
    """

    def __init__(self, node: NodeContext, objects: ObjectStore) -> None:
        self._node = node
        self._objects = objects

    async def require_end(
        self, partition: TopicPartition, record: Partition, end_offset: int
    ) -> None:
        """Raise unless no segment begins at the offset where the partition's records end, or above.

        ``MetadataSetBack`` if the metadata store lacks such a segment. ``StoreUnavailable`` if it
        has it by now: the tier has gone on since it was read, and the next try will see that. Also
        ``StoreUnavailable`` as ``_restore_log_start``.
        """
        await self._restore_log_start(partition, record)
        if not await self._has_segment(partition, record, end_offset):
            return
        stored = await self._stored_segments(record, end_offset)
        known = {one.segment_id for one in stored if one.state is SegmentState.COPY_FINISHED}
        await self._require_known(partition, record, end_offset, known)
        raise StoreUnavailable(f"the tier of {partition} has gone on since it was read")

    async def explain(
        self, partition: TopicPartition, record: Partition, start_offset: int, error: Exception
    ) -> NoReturn:
        """Raise ``MetadataSetBack`` if that is why records are missing, otherwise ``error``.

        No log is made of what was found, so here a copy that is not finished is known too.
        """
        if isinstance(error, CorruptObject):  # Offsets are missing, or an object that has them.
            await self._restore_log_start(partition, record)
            if await self._has_segment(partition, record, start_offset):
                stored = await self._stored_segments(record, start_offset)
                known = {one.segment_id for one in stored}
                await self._require_known(partition, record, start_offset, known)
        raise error

    async def _restore_log_start(self, partition: TopicPartition, record: Partition) -> None:
        """Give the item the greater log start that the bucket has, and raise ``StoreUnavailable``.

        The next try begins the log there. Nothing is lost: the records below were deleted.
        """
        log_start = await published_log_start(self._objects, self._prefix(partition, record))
        if log_start <= record.log_start_offset:
            return
        await advance_log_start(self._node.store, leadership_of(record), log_start)
        await self._node.view.refresh()  # The next try begins the log where the image says.
        raise StoreUnavailable(
            f"{partition} begins at offset {log_start} by the bucket, and began at"
            f" {record.log_start_offset} by the metadata store: they were set back, or were"
            " read before the log start advanced"
        )

    async def _has_segment(self, partition: TopicPartition, record: Partition, offset: int) -> bool:
        """Return whether the bucket has a whole segment that begins at the offset or above."""
        prefix = self._prefix(partition, record)
        return await segment_from(self._objects, prefix, offset) is not None

    async def _require_known(
        self, partition: TopicPartition, record: Partition, offset: int, known: Collection[UUID]
    ) -> None:
        """Raise ``MetadataSetBack`` if a segment that is not known begins there or above."""
        prefix = self._prefix(partition, record)
        key = await segment_from(self._objects, prefix, offset, known_ids=known)
        if key is not None:
            found = f"the segment {key}, which begins where its records end, or above"
            raise MetadataSetBack(partition, known=describe_epoch(record.wal), found=found)

    async def _stored_segments(self, record: Partition, offset: int) -> list[SegmentMeta]:
        """Return the segments of the metadata store that begin at the offset or above."""
        keys = KeyRange(segment_key_from(offset))
        return await read_segments(self._node.store, record.topic_id, record.partition, keys=keys)

    def _prefix(self, partition: TopicPartition, record: Partition) -> str:
        cluster_id = self._node.view.image.cluster_id
        return partition_prefix(cluster_id, partition.topic, record.topic_id, record.partition)
