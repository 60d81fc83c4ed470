"""The interface to records that are not on this node's disk.

The records of a partition below the local log start offset are in the tier. ``UnifiedLog``
reads them from a ``RecordSource``, which hides objects, caches and stores. A source serves
only its own records, from the first to the last one. If several share a log, each begins
at the end of the one before.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidelog_core.log.values import AbortedTransaction
from tidelog_core.model import FileSlice

TimestampOffset = tuple[int, int]
"""A record's timestamp and its offset."""


class ReadLimits(NamedTuple):
    """The bounds of one read."""

    max_bytes: int
    min_one_batch: bool = True  # the first batch is whole, even if it exceeds ``max_bytes``
    include_aborted: bool = False  # with the aborted transactions that overlap the batches


class SourceRead(NamedTuple):
    """Whole batches in a file."""

    slice: FileSlice | None  # None: the first batch is larger than ``max_bytes``
    start_offset: int  # base offset of the first batch
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    end_offset: int = 0  # behind the last batch; 0 without a slice


class RecordSource(Protocol):
    """Committed records of one partition, all in offsets ``[start, end)``. For one event loop.

    All of them are, and stay, below the high watermark and the last stable offset.
    """

    @property
    def read_bytes_max(self) -> int:
        """The bytes up to which a read with a larger limit may return batches."""

    def read_open(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        """Return the result of ``read`` if it is available without waiting, else ``None``."""

    async def read(self, offset: int, limits: ReadLimits) -> SourceRead | None:
        """Return batches, beginning with the batch that contains ``offset``.

        Returns ``None`` if compaction has left no batch from ``offset`` to the source's end.
        Raises ``OffsetOutOfRange`` if the source does not cover the offset, and the errors of the
        stores.
        """

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int
    ) -> TimestampOffset | None:
        """Return the first record at or after both a time and an offset, if there is one."""

    async def max_timestamp(self, *, start_offset: int) -> TimestampOffset | None:
        """Return the first record that has the greatest timestamp, if any has one."""
