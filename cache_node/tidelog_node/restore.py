"""Logs that are lost, or may have lost their end, go on under a new leader epoch.

A log whose files are gone begins where its tier ends: everything before is still there;
what was appended after the last tiered segment was on the lost disk alone. A log that
was not closed in order may lack what was not flushed. Either way offsets that consumers
have seen may come to stand for other records, and the new leader epoch is how they
learn of it (KIP-320). Runs before the node serves.

Only where this node alone is in sync: otherwise another one leads, and an election
brings the new epoch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tidelog_core.errors import VersionConflict
from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.paths import LEADER_EPOCH_FILE, START_OFFSET_FILE
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.records import Partition, SegmentMeta, put, segment_collection
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import RESERVED_TOPICS, TopicPartition
from tidelog_core.tier.planning import finished_segments, tiered_end_offset

from tidelog_node.log_directories import LogDirectories

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE_MAX = 16
CONFLICT_RETRIES_MAX = 10


class _Held(NamedTuple):
    partition: TopicPartition
    topic_id: UUID


async def restore_logs(
    store: MetadataStore,
    view: ClusterView,
    directories: LogDirectories,
    *,
    broker_id: int,
    is_new_node: bool,
) -> None:
    """Lay the start of every log that this node leads and has lost, and raise epochs.

    ``is_new_node`` says that no node has used the data directory before: whatever
    this node leads is lost then, also what never reached the tier.
    """
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

    async def restore(held: _Held, partition: Partition) -> None:
        async with slots:
            if not directories.has_log(held):
                is_lost = await _lay_start(store, directories, held, partition) or is_new_node
            else:
                is_lost = not directories.was_clean
            if is_lost:
                await _raise_epoch(store, partition)

    async with asyncio.TaskGroup() as group:
        for name in view.image.topics.keys() - RESERVED_TOPICS:
            for partition in view.image.partitions(name):
                if partition.leader == broker_id and partition.isr == (broker_id,):
                    held = _Held(TopicPartition(name, partition.partition), partition.topic_id)
                    group.create_task(restore(held, partition))
    await view.refresh()


async def _lay_start(
    store: MetadataStore, directories: LogDirectories, held: _Held, partition: Partition
) -> bool:
    """Make the empty log at the tier's end, if anything is tiered; return whether it is."""
    items = await store.list(segment_collection(partition.topic_id, partition.partition))
    segments = finished_segments(SegmentMeta.from_item(item) for item in items)
    end_offset = tiered_end_offset(segments, partition.log_start_offset)
    if end_offset == partition.log_start_offset:
        return False
    directory = directories.claim(held.partition, held.topic_id)
    _write_checkpoints(directory, partition.log_start_offset, end_offset, segments)
    logger.warning(
        "log lost, goes on where the tier ends",
        extra={"partition": str(held.partition), "offset": end_offset},
    )
    return True


def _write_checkpoints(
    directory: Path, log_start_offset: int, end_offset: int, segments: Iterable[SegmentMeta]
) -> None:
    """Write the checkpoints that an empty log at ``end_offset`` opens with."""
    starts: dict[int, int] = {}
    for segment in segments:
        for epoch, start_offset in segment.leader_epochs:
            starts.setdefault(epoch, start_offset)
    write_checkpoint(directory / LEADER_EPOCH_FILE, sorted(starts.items()))
    write_checkpoint(directory / START_OFFSET_FILE, [[log_start_offset, end_offset]])


async def _raise_epoch(store: MetadataStore, partition: Partition) -> None:
    """Begin a new leader epoch, unless the partition has changed hands meanwhile."""
    for attempt in range(CONFLICT_RETRIES_MAX):
        item = await store.get(partition.item_id)
        if item is None:
            return  # Its topic was deleted.
        found = Partition.from_item(item)
        if found.leader != partition.leader or found.leader_epoch != partition.leader_epoch:
            return
        try:
            raised = dataclasses.replace(found, leader_epoch=found.leader_epoch + 1)
            await store.commit([put(raised)])
        except VersionConflict:
            if attempt == CONFLICT_RETRIES_MAX - 1:
                raise
            continue
        return
