"""What reads of records that this node has evicted are asked of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from tidelog_core.errors import (
    OffsetOutOfRange,
    StoreUnavailable,
    TidelogError,
    TierRewritten,
    TierUnavailable,
)
from tidelog_core.log.values import LogRead
from tidelog_core.model import TopicPartition

logger = logging.getLogger(__name__)

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


class TieredRead(NamedTuple):
    """What is to be read of a partition, as ``TierReader.read`` takes it."""

    topic_id: UUID
    partition: TopicPartition
    offset: int
    max_bytes: int
    include_aborted: bool
    min_one_batch: bool


async def read_all(
    tier: TierReader, reads: Sequence[TieredRead]
) -> list[LogRead | TidelogError | OSError | None]:
    """Read all at once; return of each what was found, or what failed, in the same order.

    ``None`` is a read that was given up after ``TIER_WAIT_SECONDS_MAX``. Failures are logged,
    but for records that are gone (``OffsetOutOfRange``). When this is cancelled so are the reads.
    """
    tasks = [
        asyncio.ensure_future(
            tier.read(
                read.topic_id,
                read.partition,
                read.offset,
                max_bytes=read.max_bytes,
                include_aborted=read.include_aborted,
                min_one_batch=read.min_one_batch,
            )
        )
        for read in reads
    ]
    try:
        await asyncio.wait(tasks, timeout=TIER_WAIT_SECONDS_MAX)
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    return [_outcome(read, result) for read, result in zip(reads, done, strict=True)]


def _outcome(
    read: TieredRead, result: LogRead | BaseException
) -> LogRead | TidelogError | OSError | None:
    if isinstance(result, asyncio.CancelledError):
        return None
    if isinstance(result, TidelogError | OSError):
        if not isinstance(result, OffsetOutOfRange):
            # A store that is away comes back; what is missing or damaged needs somebody.
            is_away = isinstance(result, TierUnavailable | StoreUnavailable | TierRewritten)
            logger.log(
                logging.WARNING if is_away else logging.ERROR,
                "read from the tier failed",
                extra={"partition": str(read.partition), "reason": str(result)},
            )
    elif isinstance(result, BaseException):
        raise result
    return result
