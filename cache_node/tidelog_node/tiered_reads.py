"""What reads of records that this node has evicted are asked of."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from tidelog_core.log.values import LogRead
from tidelog_core.model import TopicPartition

TIER_WAIT_SECONDS_MAX = 20.0  # under the 30 s after which clients give a request up


class TierReader(Protocol):
    """Reads what only the object store still holds."""

    async def read(
        self,
        topic_id: UUID,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        include_aborted: bool = False,
        min_one_batch: bool = True,
    ) -> LogRead:
        """Return batches from the one that holds ``offset`` on."""

    def read_open(
        self,
        topic_id: UUID,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        include_aborted: bool = False,
        min_one_batch: bool = True,
    ) -> LogRead | None:
        """Return the same without waiting, or ``None`` where that cannot be."""
