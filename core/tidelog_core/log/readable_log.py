"""One partition's log on this node's disk, as those see it who read it: offsets, records, segments.

    log start ≤ local log start ≤ … recovery point … high watermark … log end

Records below the log start offset are deleted; below the local log start offset they
are in the tier only; below the recovery point they are flushed. Consumers read up to
the high watermark or the last stable offset: the caller passes it as ``up_to``.

``LocalLog`` changes it. Here are its parts, and nothing that writes to the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tidelog_core.config import TopicConfig
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.cleaned_segments import SegmentToClean
from tidelog_core.log.cleaning import Cleaning
from tidelog_core.log.durability import Durability
from tidelog_core.log.log_appender import LogAppender
from tidelog_core.log.log_fill import FillLog, LogFill
from tidelog_core.log.log_start import LogStart
from tidelog_core.log.paths import CLEANER_OFFSET_FILE
from tidelog_core.log.producers.log_producers import LogProducers
from tidelog_core.log.recovery.opening import OpenedLog
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.segments.time_search import (
    BatchSearch,
    find_max_timestamp,
    find_offset_by_time,
)
from tidelog_core.log.unfilled_range import Unfilled
from tidelog_core.log.values import AbortedTransaction, LogRead, SealedSegment
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import find_record


class ReadableLog:
    """The state of one log, and its reads. Made as a ``LocalLog``."""

    __slots__ = (
        "__weakref__",
        "_appender",
        "_cleaning",
        "_clock_ms",
        "_durability",
        "_epochs",
        "_expiration_ms",
        "_filling",
        "_high_watermark",
        "_is_closed",
        "_is_given_up",
        "_segments",
        "_start",
        "on_moved",
        "producers",
    )

    def __init__(
        self,
        opened: OpenedLog,
        *,
        clock_ms: Callable[[], int],
        expiration_ms: int,
        unfilled: Unfilled | None = None,
    ) -> None:
        self._clock_ms = clock_ms
        self._expiration_ms = expiration_ms
        self._segments: LogSegments = opened.segments
        self.producers = LogProducers(
            opened.segments, opened.producers, clock_ms=clock_ms, expiration_ms=expiration_ms
        )
        self._epochs = opened.epochs
        self._start = LogStart(opened.segments, opened.epochs, offset=opened.log_start_offset)
        self._high_watermark = max(opened.log_start_offset, opened.segments.start_offset)
        self.producers.state.advance_high_watermark(self._high_watermark)
        self._durability = Durability(
            opened.segments,
            opened.epochs,
            recovery_point=opened.recovery_point,
            is_new=opened.is_new,
            clock_ms=clock_ms,
        )
        self._filling = LogFill(opened.segments, self._start, self._durability, missing=unfilled)
        self._cleaning = Cleaning(
            opened.segments,
            self._durability,
            up_to=opened.cleaned_up_to,
            on_replaced=self._start.forget_sealed,
        )
        self._appender = LogAppender(
            opened.segments, opened.epochs, self.producers, self._start, clock_ms=clock_ms
        )
        self._is_closed = False
        self._is_given_up = False  # offline, and not for an error of the disk
        # Called after the log's start has moved, or its end or high watermark otherwise than
        # forward, and once it is taken offline. Must not use the log.
        self.on_moved: Callable[[], None] | None = None

    # -- offsets and sizes --

    @property
    def partition(self) -> TopicPartition:
        """The log's partition."""
        return self._segments.partition

    @property
    def directory(self) -> Path:
        """The directory of its files."""
        return self._segments.directory

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self._segments.config

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read, here or from the tier."""
        return self._start.offset

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that may be read here."""
        return max(self._start.offset, self._segments.start_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments.all[-1].end_offset

    @property
    def high_watermark(self) -> int:
        """The end of the replicated records, exclusive."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that are replicated and in no open transaction, exclusive."""
        unstable = self.producers.state.first_unstable_offset
        if unstable is None:
            return self._high_watermark
        return min(self._high_watermark, max(unstable, self._start.offset))

    @property
    def recovery_point(self) -> int:
        """The end of the flushed records, exclusive."""
        return self._durability.recovery_point

    @property
    def durable_end(self) -> int:
        """The end of the records that no crash takes back from the partition, exclusive.

        They are flushed. Of a diskless topic they are committed: the object store has them.
        """
        if self._segments.config.diskless_enable:
            return self._high_watermark
        return self._durability.recovery_point

    @property
    def tiered_up_to(self) -> int:
        """The end of the records that are known to be in the tier, exclusive."""
        return self._start.tiered_up_to

    @property
    def copied_end(self) -> int:
        """Below this the tier has, or has had, every record; -1 if nothing is known of that.

        Records that were deleted before they could be tiered do not count.
        """
        return self._start.copied_end

    @property
    def leader_epoch(self) -> int:
        """The latest leader epoch that the log has seen, -1 if none."""
        return self._epochs.latest

    @property
    def size_bytes(self) -> int:
        """The bytes of all local segments, without indexes."""
        return self._segments.size_bytes

    @property
    def active_segment_size_bytes(self) -> int:
        """The bytes of the segment that is appended to."""
        return self._segments.active.size_bytes

    @property
    def active_segment_base_offset(self) -> int:
        """The base offset of the segment that is appended to."""
        return self._segments.active.base_offset

    @property
    def cut_count(self) -> int:
        """The number of times that offsets of this log got, or may have got, other records.

        Counts truncations, and segments that were fetched from the leader again.
        """
        return self._segments.cut_count

    # -- state --

    def check_online(self) -> None:
        """Raise ``StorageError`` if the disk has failed, ``UnknownTopicOrPartition`` if deleted."""
        self._segments.check_online()

    @property
    def is_offline(self) -> bool:
        """Whether the disk has failed. Reopening the log recovers the readable records."""
        return self._segments.is_offline

    @property
    def may_be_reopened(self) -> bool:
        """Whether the log is offline for an error of the disk, which may pass."""
        return self._segments.is_offline and not self._is_given_up

    @property
    def is_held(self) -> bool:
        """Whether any segments are held."""
        return self._start.held is not None

    @property
    def needs_flush(self) -> bool:
        """Whether a flush is due: a sealed segment, ``flush.messages`` or ``flush.ms``.

        The log of a diskless topic is flushed up to the end of the tier, so that a restart need not
        read what was tiered. Nothing waits for it.
        """
        if self._segments.config.diskless_enable:
            return self._durability.recovery_point < self.tiered_up_to
        return self._durability.needs_flush

    @property
    def unfilled(self) -> Unfilled | None:
        """The offsets before the local log start that the tier may lack, see ``unfilled_range``."""
        return self._filling.unfilled

    @property
    def is_filling(self) -> bool:
        """Whether it gets records before its start, unless it is truncated first.

        Not if another process has begun to fill it: such a log is restarted.
        """
        return self._filling.is_going_on

    @property
    def is_filled(self) -> bool:
        """Whether the log is filled, and only ``forget_unfilled`` must be tried again."""
        return self._filling.is_filled

    # -- reading --

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        up_to: int,
        min_one_batch: bool = True,
        include_aborted: bool = False,
    ) -> LogRead:
        """Return the bytes from the batch that holds ``offset`` on, all below ``up_to``.

        The bytes are of one segment; the last batch may be cut, the first is whole:
        with ``min_one_batch`` even if it is over ``max_bytes``, else it must fit. Raises
        ``OffsetOutOfRange`` outside ``[local log start, log end]``, ``StorageError``.
        """
        segments = self._segments
        if segments.is_offline:
            segments.check_online()
        start, end = self.local_log_start_offset, segments.all[-1].end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(self.partition, offset, start=start, end=end)
        found = None
        if offset < up_to:
            found = segments.read(
                offset, max_bytes=max_bytes, up_to=up_to, min_one_batch=min_one_batch
            )
        if found is None:
            return LogRead(
                None,
                offset,
                self._high_watermark,
                self.last_stable_offset,
                self._start.offset,
                segments.end_offset,
            )
        file_slice, start_offset, end_offset = found
        aborted: tuple[AbortedTransaction, ...] = ()
        if include_aborted:
            segment = segments.all[segments.floor_index(start_offset)]
            slice_end = (segment, file_slice.position + file_slice.size_bytes)
            aborted = segments.collect_aborted(offset, slice_end, up_to)
        return LogRead(
            file_slice,
            start_offset,
            self._high_watermark,
            self.last_stable_offset,
            self._start.offset,
            segments.end_offset,
            aborted,
            end_offset,
        )

    def file_ranges(self, base_offset: int, end_offset: int) -> list[tuple[Path, int, int]]:
        """Return the bytes ``[start, end)`` of segment files that hold these offsets, in order.

        Both offsets are ends of batches, or the log's start. The files stay as they are while the
        offsets are at or above the high watermark or held, and the log is not truncated: only
        settled segments are compacted, moved to the tier or deleted. Another process may read them:
        what was appended is written. Deleted records count as long as a segment has them. Raises
        ``OffsetOutOfRange`` outside of the segments, ``StorageError``.
        """
        segments = self._segments
        segments.check_online()
        start, end = segments.start_offset, segments.end_offset
        for offset in (base_offset, end_offset):
            if not start <= offset <= end:
                raise OffsetOutOfRange(self.partition, offset, start=start, end=end)
        with segments.storage_errors("read"):
            return segments.file_ranges(base_offset, end_offset)

    def lacks(self, offset: int) -> bool:
        """Whether the offset is one of ``unfilled`` that can be read later only."""
        filling = self._filling
        return filling.missing is not None and filling.lacks(offset)

    def fill_log_with(self, offset: int) -> FillLog | None:
        """Return the log that fills this one, if it has the record of an offset that is missing.

        It may be read up to its last stable offset.
        """
        filling = self._filling
        return None if filling.missing is None else filling.fill_log_with(offset)

    def offset_for_timestamp(
        self, timestamp_ms: int, search: BatchSearch = find_record
    ) -> tuple[int, int] | None:
        """Return timestamp and offset of the first local record at or after a time, else None.

        Not bounded by the high watermark, and blind to the tier: the caller is neither.
        """
        self._segments.check_online()
        start_offset = self.local_log_start_offset
        with self._segments.storage_errors("search by time"):
            return find_offset_by_time(
                self._segments,
                timestamp_ms,
                start_offset=start_offset,
                end_offset=self._whole_end,
                search=search,
            )

    def max_timestamp(self, search: BatchSearch = find_record) -> tuple[int, int] | None:
        """Return the greatest local timestamp and its first record's offset, else None."""
        self._segments.check_online()
        start_offset = self.local_log_start_offset
        with self._segments.storage_errors("search by time"):
            return find_max_timestamp(
                self._segments,
                start_offset=start_offset,
                end_offset=self._whole_end,
                search=search,
            )

    @property
    def _whole_end(self) -> int:
        """The end of the batches whose records may be read: see ``LocalLog.complete``."""
        is_diskless = self._segments.config.diskless_enable
        return self._high_watermark if is_diskless else self._segments.end_offset

    # -- leader epochs --

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the greatest epoch at or below ``epoch`` and its end offset, else (-1, -1)."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def leader_epoch_for(self, offset: int) -> int:
        """Return the epoch that wrote ``offset``, -1 if it is not known."""
        return self._epochs.epoch_for(offset)

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """All leader epochs and their start offsets."""
        return self._epochs.entries

    # -- segments --

    @property
    def roll_due_ms(self) -> int | None:
        """The time of the next ``maybe_roll``, by this log's clock; ``None`` while it is empty."""
        segments = self._segments
        active = segments.active
        if segments.is_offline or active.size_bytes == 0:
            return None
        return active.created_ms + segments.segment_ms(active) + 1

    def sealed_segments(self) -> list[SealedSegment]:
        """Return all segments but the active one, oldest first.

        Cheap: only ``make_whole`` checks their index files. Raises ``StorageError``.
        """
        return list(self.sealed_above(self._segments.start_offset))

    def sealed_above(self, offset: int) -> Iterator[SealedSegment]:
        """Yield the sealed segments that end above the offset, oldest first.

        For callers that need few of many. The log must not change during the iteration.
        """
        self._segments.check_online()
        return self._start.sealed_above(offset)

    def count_sealed_above(self, offset: int) -> tuple[int, int]:
        """Return number and bytes of the segments of ``sealed_above``, without reading any."""
        return self._start.count_sealed_above(offset)

    # -- compaction --

    @property
    def cleaned_up_to(self) -> int:
        """The end of the compacted records: no key has two committed records below it.

        The local log start offset if nothing is compacted.
        """
        return max(self._cleaning.up_to, self.local_log_start_offset)

    def segments_to_clean(self) -> tuple[SegmentToClean, ...]:
        """Return the segments that compaction may read and replace.

        They are sealed, flushed, replicated and free of open transactions. Raises
        ``StorageError``.
        """
        self._segments.check_online()
        if self._filling.unfilled is not None:
            return ()  # It would count as compacted what is still to be filled in.
        settled = min(self._high_watermark, self.last_stable_offset, self.recovery_point)
        settled = self._settled(settled)
        return self._cleaning.segments(settled, dirty_from=self.cleaned_up_to)

    def segments_to_erase(self, up_to: int) -> tuple[SegmentToClean, ...] | None:
        """Return the segments with offsets below ``up_to``, for ``begin_replacing``.

        ``None`` until all of these offsets are here, sealed, flushed and replicated. Transactions
        may be open there: the replacement must keep every batch's header. Raises ``StorageError``.
        """
        self._segments.check_online()
        if self.is_filling:
            return None
        settled = self._settled(min(self._high_watermark, self.recovery_point))
        found = self._cleaning.segments(settled, dirty_from=settled)
        covered = found[-1].end_offset if found else self._segments.start_offset
        if covered < up_to:
            return None
        return tuple(segment for segment in found if segment.base_offset < up_to)

    def _settled(self, offset: int) -> int:
        """Return the end of the records below the offset that may be rewritten."""
        held = self._start.held
        return offset if held is None else min(offset, held[0])

    @property
    def may_have_gaps(self) -> bool:
        """Whether offsets may be missing: the log was ever compacted, or repaired."""
        return (self.directory / CLEANER_OFFSET_FILE).exists()
