"""Waits for records to be read from the tier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tidelog_core.errors import (
    OffsetOutOfRange,
    StoreUnavailable,
    TidelogError,
    TierRewritten,
    TierUnavailable,
)
from tidelog_core.log.unified_log import RemoteRead
from tidelog_core.log.values import LogRead

from tidelog_node.tracing.tracer import Tracer, span

logger = logging.getLogger(__name__)

REMOTE_WAIT_SECONDS_MAX = 20.0  # below the clients' request timeout of 30 s


async def wait_for_all(
    reads: Sequence[RemoteRead], tracer: Tracer | None = None
) -> list[LogRead | TidelogError | OSError | None]:
    """Return the result of each read or its failure, in the same order.

    ``None`` is a read cancelled after ``REMOTE_WAIT_SECONDS_MAX``. Failures other than
    ``OffsetOutOfRange`` (the records are gone) are logged. Cancelling this cancels the reads.
    """
    with span(tracer, "cold read", {"tidelog.partitions": len(reads)}):
        return await _wait_for_all(reads)


async def _wait_for_all(
    reads: Sequence[RemoteRead],
) -> list[LogRead | TidelogError | OSError | None]:
    tasks = [asyncio.ensure_future(read.wait()) for read in reads]
    try:
        await asyncio.wait(tasks, timeout=REMOTE_WAIT_SECONDS_MAX)
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    return [_outcome(read, result) for read, result in zip(reads, done, strict=True)]


def _outcome(
    read: RemoteRead, result: LogRead | BaseException
) -> LogRead | TidelogError | OSError | None:
    if isinstance(result, asyncio.CancelledError):
        return None
    if isinstance(result, TidelogError | OSError):
        if not isinstance(result, OffsetOutOfRange):
            # An unavailable store recovers by itself; missing or damaged data needs a person.
            is_away = isinstance(result, TierUnavailable | StoreUnavailable | TierRewritten)
            logger.log(
                logging.WARNING if is_away else logging.ERROR,
                "read from the tier failed",
                extra={"partition": str(read.partition), "reason": str(result)},
            )
    elif isinstance(result, BaseException):
        raise result
    return result
