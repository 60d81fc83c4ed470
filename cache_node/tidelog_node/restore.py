"""A log whose files are gone begins where its tier ends.

Everything before is still there; what was appended after the last tiered segment was on
the lost disk alone. Offsets that consumers have seen may come to stand for other records:
they learn of it by the leader epoch that every start of a node begins (KIP-320).

Runs before the node serves, and only where this node alone is in sync: otherwise another
one leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.paths import LEADER_EPOCH_FILE, START_OFFSET_FILE
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.records import Partition, SegmentMeta, segment_collection
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import RESERVED_TOPICS, TopicPartition
from tidelog_core.tier.planning import finished_segments, tiered_end_offset

from tidelog_node.log_directories import LogDirectories

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE_MAX = 16


class _Held(NamedTuple):
    partition: TopicPartition
    topic_id: UUID


async def restore_logs(
    store: MetadataStore,
    view: ClusterView,
    directories: LogDirectories,
    *,
    broker_id: int,
) -> None:
    """Lay the start of every log that this node leads and has lost."""
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

    async def restore(held: _Held, partition: Partition) -> None:
        async with slots:
            if not directories.has_log(held):
                await _lay_start(store, directories, held, partition)

    async with asyncio.TaskGroup() as group:
        for name in view.image.topics.keys() - RESERVED_TOPICS:
            for partition in view.image.partitions(name):
                if partition.leader == broker_id and partition.isr == (broker_id,):
                    held = _Held(TopicPartition(name, partition.partition), partition.topic_id)
                    group.create_task(restore(held, partition))


async def _lay_start(
    store: MetadataStore, directories: LogDirectories, held: _Held, partition: Partition
) -> None:
    """Make the empty log at the tier's end, if anything is tiered."""
    items = await store.list(segment_collection(partition.topic_id, partition.partition))
    segments = finished_segments(SegmentMeta.from_item(item) for item in items)
    end_offset = tiered_end_offset(segments, partition.log_start_offset)
    if end_offset == partition.log_start_offset:
        return
    directory = directories.claim(held.partition, held.topic_id)
    _write_checkpoints(directory, partition.log_start_offset, end_offset, segments)
    logger.warning(
        "log lost, goes on where the tier ends",
        extra={"partition": str(held.partition), "offset": end_offset},
    )


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
