"""The sink's SDK clients, and its group and transactional ids."""

from __future__ import annotations

import re

from tidelog import Admin, Producer
from tidelog.errors import ErrorCode, TidelogError

from tidelog_spark.clients import client_factory
from tidelog_spark.sink.options import SinkOptions

PREFIX = "tidelog-spark"
# Longest wait for a transaction's end before the reader completes it itself.
UNSTABLE_TIMEOUT_MS = 2_000


class SinkNames:
    """The group and transactional ids of a stream or a batch write."""

    def __init__(self, sink_id: str) -> None:
        """``sink_id`` is the query's id, or the batch write's."""
        self.group_id = f"{PREFIX}-{sink_id}"  # keeps the decision
        self.deciding_id = f"{self.group_id}-commit"  # the driver's transactional id

    def whole_task_id(self, task: int) -> str:
        """Return the transactional id, and group, of all attempts of a batch write's task."""
        return f"{self.group_id}-{task}"

    def owns_whole_task(self, transactional_id: str) -> bool:
        """Whether the transactional id is that of a task of this batch write."""
        return re.fullmatch(rf"{re.escape(self.group_id)}-\d+", transactional_id) is not None


def open_producer(options: SinkOptions, *, transactional_id: str | None = None) -> Producer:
    """Return a producer, not started."""
    return client_factory(options).make(
        Producer,
        transactional_id=transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        request_size_bytes_max=options.batches.record_size_bytes_max,
        buffer_memory_bytes=options.buffer_memory_bytes,
        max_block_ms=options.max_block_ms,
        delivery_timeout_ms=max(options.delivery_timeout_ms, options.request_timeout_ms + 5),
    )


def open_admin(options: SinkOptions, *, timeout_ms: int | None = None) -> Admin:
    """Return an admin, not started."""
    return client_factory(options).make(
        Admin, timeout_ms=options.max_block_ms if timeout_ms is None else timeout_ms
    )


async def fence(options: SinkOptions, transactional_id: str) -> None:
    """Abort the transactional id's open transaction, or wait for its commit."""
    async with open_producer(options, transactional_id=transactional_id):
        pass


def is_unstable(error: TidelogError) -> bool:
    """Whether an offset was not readable because of an open transaction on it."""
    return error.code is ErrorCode.unstable_offset_commit
