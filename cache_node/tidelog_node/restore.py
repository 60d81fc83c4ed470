"""A node whose disk is lost begins its logs where the tier ends.

Everything up to the end of the tiered segments is still there; what was appended after
the last of them was on the lost disk alone. The log goes on at the tier's end under a
new leader epoch, so that a consumer which had read further learns of it (KIP-320).
Runs before the node serves, and only in a data directory that no node has used.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path

from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.paths import LEADER_EPOCH_FILE, START_OFFSET_FILE
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.records import Partition, SegmentMeta, put, segment_collection
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.tier.planning import finished_segments, tiered_end_offset

from tidelog_node.log_directories import LogDirectories

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE_MAX = 16


async def restore_logs(
    store: MetadataStore, view: ClusterView, directories: LogDirectories, *, broker_id: int
) -> None:
    """Lay the start of every log that this node leads and that has tiered segments."""
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

    async def restore(name: TopicPartition, partition: Partition) -> None:
        async with slots:
            await _restore_one(store, directories, name, partition)

    async with asyncio.TaskGroup() as group:
        for name in view.image.topics:
            for partition in view.image.partitions(name):
                if partition.leader == broker_id:
                    group.create_task(restore(TopicPartition(name, partition.partition), partition))
    await view.refresh()


async def _restore_one(
    store: MetadataStore, directories: LogDirectories, name: TopicPartition, partition: Partition
) -> None:
    items = await store.list(segment_collection(partition.topic_id, partition.partition))
    segments = finished_segments(SegmentMeta.from_item(item) for item in items)
    end_offset = tiered_end_offset(segments, partition.log_start_offset)
    if end_offset == partition.log_start_offset:
        return
    advanced = dataclasses.replace(partition, leader_epoch=partition.leader_epoch + 1)
    await store.commit([put(advanced)])
    directory = directories.claim(name, partition.topic_id)
    _lay_start(directory, partition.log_start_offset, end_offset, segments)
    logger.warning(
        "log lost, goes on where the tier ends",
        extra={"partition": str(name), "offset": end_offset},
    )


def _lay_start(
    directory: Path, log_start_offset: int, end_offset: int, segments: Iterable[SegmentMeta]
) -> None:
    """Write the checkpoints that an empty log at ``end_offset`` opens with."""
    starts: dict[int, int] = {}
    for segment in segments:
        for epoch, start_offset in segment.leader_epochs:
            starts.setdefault(epoch, start_offset)
    write_checkpoint(directory / LEADER_EPOCH_FILE, sorted(starts.items()))
    write_checkpoint(directory / START_OFFSET_FILE, [[log_start_offset, end_offset]])
