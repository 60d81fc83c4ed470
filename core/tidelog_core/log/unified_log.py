"""The whole log of one partition: reads its local and remote records, finds offsets by time.

    log start offset ≤ … local log start offset ≤ … log end offset
    [------ remote source ------)
                           [--------- local log ---------)

The remote source holds every record below the local log start offset: a segment is evicted only
after it was copied. Where both have a record, the local log is read. An heir's log may lack what is
before its start (``LocalLog.unfilled``): that is read from the log that fills it, once that has it,
and is never skipped.

Reads of the remote source and searches of large batches take time. Until they end, segments may be
copied and evicted, and the log start offset may advance. If an offset is evicted before the
local log is read, the remote source is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tidelog_core.errors import OffsetNotAvailable, OffsetOutOfRange
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.record_source import ReadLimits, RecordSource, SourceRead, TimestampOffset
from tidelog_core.log.segments.time_search import BatchSearch
from tidelog_core.log.values import LogRead
from tidelog_core.model import TopicPartition

SearchLocal = Callable[
    [Callable[[BatchSearch], TimestampOffset | None]], Awaitable[TimestampOffset | None]
]
"""Runs a search of the local log on a thread that it chooses; it passes the ``BatchSearch``."""


class RemoteRead:
    """A read below the local log. ``found`` is the result if it was cached, else call ``wait``."""

    __slots__ = ("_limits", "_local", "_source", "_up_to", "found", "offset")

    def __init__(
        self, local: LocalLog, source: RecordSource, offset: int, limits: ReadLimits, up_to: int
    ) -> None:
        self.offset = offset
        self._local = local
        self._source = source
        self._limits = limits
        self._up_to = up_to
        found = source.read_open(offset, limits)
        self.found: LogRead | None = None if found is None else _log_read(local, found)

    @property
    def partition(self) -> TopicPartition:
        """The partition that is read."""
        return self._local.partition

    @property
    def max_bytes(self) -> int:
        """The most bytes that the records may have, except for the first batch."""
        return self._limits.max_bytes

    async def wait(self) -> LogRead:
        """Return the records. Raises like ``RecordSource.read`` and ``LocalLog.read``."""
        local, limits = self._local, self._limits
        self._check_start()
        found = await self._source.read(self.offset, limits)
        if found is not None:
            return _log_read(local, found)
        # Compaction has removed the source's last records. The next record is local, or was
        # deleted during the read. After a truncation, high watermark and last stable offset may
        # be lower than ``up_to``.
        self._check_start()
        require_filled(local)
        is_stable = limits.include_aborted
        end_offset = local.last_stable_offset if is_stable else local.high_watermark
        return local.read(
            local.local_log_start_offset,
            max_bytes=limits.max_bytes,
            up_to=min(self._up_to, end_offset),
            min_one_batch=limits.min_one_batch,
            include_aborted=limits.include_aborted,
        )

    def _check_start(self) -> None:
        local = self._local
        start, end = local.log_start_offset, local.log_end_offset
        if self.offset < start:
            raise OffsetOutOfRange(local.partition, self.offset, start=start, end=end)


class UnifiedLog:
    """The log of one partition, read over the local log and the remote source."""

    __slots__ = ("_remote", "local")

    def __init__(self, local: LocalLog, remote: Callable[[], RecordSource] | None) -> None:
        """``remote`` returns the source of this moment; ``None``: nothing was ever evicted."""
        self.local = local
        self._remote = remote

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        up_to: int,
        min_one_batch: bool = True,
        include_aborted: bool = False,
    ) -> LogRead | RemoteRead:
        """Return the bytes from the batch that holds ``offset`` on, all below ``up_to``.

        The limits are those of ``LocalLog.read``. Raises ``OffsetOutOfRange`` outside
        ``[log start, log end]``, ``OffsetNotAvailable``, ``StorageError``, and the errors of
        finding the remote source.
        """
        local, remote = self.local, self._remote
        is_local = offset >= local.local_log_start_offset or offset < local.log_start_offset
        if not is_local and local.lacks(offset):
            require_filled(local)
        fill_log = None if is_local else local.fill_log_with(offset)
        if fill_log is not None:
            local.check_online()
            found = fill_log.read(
                offset,
                max_bytes=max_bytes,
                up_to=min(up_to, fill_log.last_stable_offset),
                min_one_batch=min_one_batch,
                include_aborted=include_aborted,
            )
            return _as_of(local, found)
        if is_local or remote is None:
            return local.read(
                offset,
                max_bytes=max_bytes,
                up_to=up_to,
                min_one_batch=min_one_batch,
                include_aborted=include_aborted,
            )
        local.check_online()
        source = remote()
        # So that a caller with several reads does not take more off its own limit.
        max_bytes = min(max_bytes, source.read_bytes_max)
        limits = ReadLimits(max_bytes, min_one_batch, include_aborted)
        return RemoteRead(local, source, offset, limits, up_to)

    async def offset_for_timestamp(
        self, timestamp_ms: int, search: SearchLocal
    ) -> TimestampOffset | None:
        """Return the first record at or after a time, if there is one.

        That is the one with the lowest offset, even above the high watermark. Raises
        ``StorageError``, and the errors of ``search`` and of the remote source.
        """
        local = self.local
        while True:
            start_offset = local.local_log_start_offset
            source = self._evicted_records()
            if source is not None:
                # The remote source has the older part of the log.
                found = await source.offset_for_timestamp(
                    timestamp_ms, start_offset=local.log_start_offset
                )
                if found is not None and found[1] < local.log_start_offset:
                    continue  # It was deleted during the search.
                if found is not None and found[1] < local.local_log_start_offset:
                    return found
            require_filled(local)
            found = await search(partial(local.offset_for_timestamp, timestamp_ms))
            if local.local_log_start_offset == start_offset:
                return found
            # A segment that was evicted during the search may be missing in both: search again.

    async def max_timestamp(self, search: SearchLocal) -> TimestampOffset | None:
        """Return the first record that has the greatest timestamp, if any has one.

        Its offset may be above the high watermark. Raises like ``offset_for_timestamp``.
        """
        # The local log first: a segment evicted after that is found in the remote source.
        require_filled(self.local)
        newest = await search(self.local.max_timestamp)
        source = self._evicted_records()
        if source is None:
            return newest
        older = await source.max_timestamp(start_offset=self.local.log_start_offset)
        if older is None or (newest is not None and newest[0] > older[0]):
            return newest
        return older

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the greatest epoch at or below ``epoch`` and its end offset, else (-1, -1).

        The local log keeps the epochs of all records from the log start offset on.
        """
        return self.local.offset_for_leader_epoch(epoch)

    def leader_epoch_for(self, offset: int) -> int:
        """Return the epoch that wrote ``offset``, evicted or not, -1 if it is not known."""
        return self.local.leader_epoch_for(offset)

    def _evicted_records(self) -> RecordSource | None:
        """Return the remote source if it has records that are no longer in the local log."""
        local = self.local
        if self._remote is None or local.log_start_offset >= local.local_log_start_offset:
            return None
        return self._remote()


def require_filled(local: LocalLog) -> None:
    """Raise ``OffsetNotAvailable`` while the log lacks records that the remote source lacks too."""
    if local.unfilled is not None:
        raise OffsetNotAvailable(f"{local.partition} is still being filled from its chains")


def _as_of(local: LocalLog, read: LogRead) -> LogRead:
    """Return a read of the fill log with the offsets of the partition's log."""
    return LogRead(
        read.slice,
        read.start_offset,
        local.high_watermark,
        local.last_stable_offset,
        local.log_start_offset,
        local.log_end_offset,
        read.aborted_transactions,
        read.end_offset,
    )


def _log_read(local: LocalLog, found: SourceRead) -> LogRead:
    return LogRead(
        found.slice,
        found.start_offset,
        local.high_watermark,
        local.last_stable_offset,
        local.log_start_offset,
        local.log_end_offset,
        found.aborted_transactions,
        found.end_offset,
    )
