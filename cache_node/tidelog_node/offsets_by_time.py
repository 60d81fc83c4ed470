"""The first record at or after a time, wherever it lies.

It may lie in the tier: that is asked first, since it holds the older part of the log.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol
from uuid import UUID

from tidelog_core.model import TopicPartition

from tidelog_node.inspection.inspector import NODE, BatchInspector
from tidelog_node.replica import Replica


class TierTimestamps(Protocol):
    """Finds records by time among the tiered segments."""

    async def offset_for_timestamp(
        self, topic_id: UUID, partition: TopicPartition, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record that is not older."""

    async def max_timestamp(
        self, topic_id: UUID, partition: TopicPartition
    ) -> tuple[int, int] | None:
        """Return the greatest (timestamp, offset), of the first record that has it."""


async def find_by_time(
    replica: Replica,
    tier: TierTimestamps | None,
    timestamp_ms: int,
    *,
    inspector: BatchInspector,
    host: str = NODE,
) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record that is not older, if there is one.

    Not bounded by the high watermark. ``host``: of the client that asks. Raises
    ``StorageError``, ``NotInspected`` and what the tier raises.
    """
    log = replica.log
    if tier is not None and log.log_start_offset < log.local_log_start_offset:
        found = await tier.offset_for_timestamp(replica.topic_id, replica.partition, timestamp_ms)
        if found is not None and found[1] < log.local_log_start_offset:
            return found
    return await inspector.search(partial(log.offset_for_timestamp, timestamp_ms), host=host)
