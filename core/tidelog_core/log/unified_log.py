"""One partition's log on this node: what is appended, what may be read, what is kept.

    log start ≤ local log start ≤ … recovery point … high watermark … log end

Records below the log start offset are deleted; below the local log start offset they
are in the tier only; below the recovery point they are flushed. Consumers read up to
the high watermark or the last stable offset: the caller says which, as ``up_to``.

One thread uses a log. The exception is ``PendingFlush.run``, which may block and
runs on any. Nothing is open and nothing is read until it is needed, and there are no
timers: a node calls ``maybe_roll``, ``expire_producers`` and the flush when it likes.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tidelog_core.config import TopicConfig
from tidelog_core.errors import FencedLeaderEpoch, OffsetOutOfRange
from tidelog_core.log.append_checks import (
    LOG_APPEND_TIME,
    CheckedBatches,
    check_own,
    check_produced,
    check_replicated,
)
from tidelog_core.log.batch_scan import read_marker
from tidelog_core.log.checkpoint import (
    encode_rows,
    sync_directory,
    write_checkpoint,
)
from tidelog_core.log.flush import PendingFlush
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import (
    CLEAN_SHUTDOWN_FILE,
    DELETED_DIRECTORY_SUFFIX,
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    RECOVERY_POINT_FILE,
    SEGMENT_FILE,
    START_OFFSET_FILE,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.producer_snapshots import (
    producers_at,
    remove_snapshots,
    snapshot_path,
    write_snapshot,
)
from tidelog_core.log.producer_state import ProducerDraft, ProducerState, RetainedBatch
from tidelog_core.log.recovery import OpenedLog, open_log
from tidelog_core.log.segment import LogSegment, NewBatch
from tidelog_core.log.time_search import find_max_timestamp, find_offset_by_time
from tidelog_core.log.values import (
    AbortedTransaction,
    AppendInfo,
    AppendOrigin,
    LogRead,
    OffsetNotLocal,
    SealedSegment,
    UnexpectedAppendOffset,
)
from tidelog_core.model import NO_TIMESTAMP, TopicPartition
from tidelog_core.records.batch import (
    BatchHeader,
    WritableBuffer,
    patch,
    set_log_append_time,
)

PRODUCER_ID_EXPIRATION_MS = 86_400_000


def wall_clock_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class UnifiedLog:
    """The log of one partition. Made by ``open``; ``close`` or ``delete`` ends it."""

    __slots__ = (
        "__weakref__",
        "_clock_ms",
        "_epochs",
        "_expiration_ms",
        "_high_watermark",
        "_is_closed",
        "_is_parent_synced",
        "_last_flush_ms",
        "_local",
        "_log_start_offset",
        "_pending_flush",
        "_producers",
        "_recovery_point",
        "_sealed",
        "_tiered_up_to",
    )

    def __init__(
        self, opened: OpenedLog, *, clock_ms: Callable[[], int], expiration_ms: int
    ) -> None:
        self._clock_ms = clock_ms
        self._expiration_ms = expiration_ms
        self._local: LocalLog = opened.local
        self._producers: ProducerState = opened.producers
        self._epochs = opened.epochs
        self._log_start_offset = opened.log_start_offset
        self._recovery_point = opened.recovery_point
        self._high_watermark = max(opened.log_start_offset, opened.local.start_offset)
        self._producers.advance_high_watermark(self._high_watermark)
        self._tiered_up_to = 0
        self._sealed: dict[int, SealedSegment] = {}  # by base offset, made when first asked for
        self._pending_flush: PendingFlush | None = None
        self._last_flush_ms = clock_ms()
        self._is_parent_synced = not opened.is_new
        self._is_closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        partition: TopicPartition,
        *,
        config: TopicConfig,
        clock_ms: Callable[[], int] = wall_clock_ms,
        log_start_offset: int = 0,
        is_clean: bool = False,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> UnifiedLog:
        """Open the log, recovering it if it was not closed in order. Makes the directory.

        ``log_start_offset`` is what the metadata store knows; the greater of it and
        the local one holds. ``is_clean`` is the caller's word that no CRC need be
        checked. The high watermark starts at the local log start: the caller
        advances it. Raises ``CorruptLog`` or ``StorageError``.
        """
        opened = open_log(
            directory,
            partition,
            config=config,
            clock_ms=clock_ms,
            log_start_offset=log_start_offset,
            is_clean=is_clean,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        return cls(opened, clock_ms=clock_ms, expiration_ms=producer_id_expiration_ms)

    # -- where things are --

    @property
    def partition(self) -> TopicPartition:
        """Whose log this is."""
        return self._local.partition

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self._local.directory

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self._local.config

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read, here or from the tier."""
        return self._log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that may be read here."""
        return max(self._log_start_offset, self._local.start_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._local.segments[-1].end_offset

    @property
    def high_watermark(self) -> int:
        """The end of what is replicated, exclusive."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of what is replicated and in no open transaction, exclusive."""
        unstable = self._producers.first_unstable_offset
        if unstable is None:
            return self._high_watermark
        return min(self._high_watermark, max(unstable, self._log_start_offset))

    @property
    def recovery_point(self) -> int:
        """The end of what is flushed, exclusive."""
        return self._recovery_point

    @property
    def leader_epoch(self) -> int:
        """The latest leader epoch that the log has seen, -1 if none."""
        return self._epochs.latest

    @property
    def size_bytes(self) -> int:
        """The bytes of all local segments, without indexes."""
        return self._local.size_bytes

    @property
    def active_segment_base_offset(self) -> int:
        """The base offset of the segment that is appended to."""
        return self._local.active.base_offset

    @property
    def is_offline(self) -> bool:
        """Whether the disk has failed; a restart recovers what is there."""
        return self._local.is_offline

    @property
    def producer_count(self) -> int:
        """How many producers' states are kept."""
        return len(self._producers)

    # -- appending --

    def append_as_leader(
        self,
        batches: WritableBuffer,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Append batches at the log end, giving them offsets, in the buffer itself.

        All are checked before any byte is written. A batch that its producer has
        sent before is not written again: the answer is where it lies. Transaction
        markers are appended with ``AppendOrigin.COORDINATOR``. Not durable on
        return. Raises the errors of ``check_produced``, ``OutOfOrderSequence``,
        ``InvalidProducerEpoch``, ``InvalidTxnState`` and ``StorageError``; the log
        is as it was before then.
        """
        local = self._local
        if local.is_offline:
            local.check_online()
        if leader_epoch < self._epochs.latest:
            raise FencedLeaderEpoch(
                f"epoch {leader_epoch} cannot write to {self.partition} after "
                f"epoch {self._epochs.latest}"
            )
        config, now_ms = local.config, self._clock_ms()
        if origin is AppendOrigin.CLIENT:
            checked = check_produced(batches, config, now_ms=now_ms)
        else:
            checked = check_own(batches, config)
        is_append_time = config.message_timestamp_type == LOG_APPEND_TIME
        if is_append_time:
            checked = _stamped(checked, now_ms)
        draft: ProducerDraft | None = None
        end_offset = base_offset = local.segments[-1].end_offset
        max_timestamp_ms = NO_TIMESTAMP
        new_batches: list[NewBatch] = []
        for position, header in checked.batches:
            if header.producer_id >= 0:
                if origin is AppendOrigin.CLIENT:
                    duplicate = self._producers.find_duplicate(header)
                    if duplicate is not None:
                        return self._duplicate(duplicate)
                if draft is None:
                    draft = self._producers.stage(origin, now_ms=now_ms)
                marker = read_marker(checked.buffer, position, header)
                draft.add(header, end_offset, marker)
            next_offset = end_offset + header.last_offset_delta + 1
            timestamp_ms = header.max_timestamp_ms
            new_batches.append(NewBatch(position, end_offset, next_offset, timestamp_ms))
            max_timestamp_ms = max(max_timestamp_ms, timestamp_ms)
            end_offset = next_offset
        buffer = checked.buffer
        if local.should_roll(
            len(buffer), last_offset=end_offset - 1, max_timestamp_ms=max_timestamp_ms
        ):
            self.roll()
        for position, offset, _, _ in new_batches:
            if is_append_time:
                set_log_append_time(buffer, position, now_ms)
            patch(buffer, position, base_offset=offset, leader_epoch=leader_epoch)
        local.append(buffer, new_batches)
        if leader_epoch > self._epochs.latest:
            self._epochs.assign(leader_epoch, base_offset)
        self._note_producers(draft, end_offset)
        return AppendInfo(
            base_offset,
            end_offset - 1,
            now_ms if is_append_time else NO_TIMESTAMP,
            self._log_start_offset,
            len(buffer),
            False,
        )

    def append_as_follower(self, batches: WritableBuffer) -> AppendInfo:
        """Append batches as the leader has them: offsets, epochs and all.

        A last batch that is cut is left out. Raises ``CorruptRecordBatch``,
        ``UnexpectedAppendOffset`` or ``StorageError``; nothing is appended then,
        except that a disk error may come after whole segments of a long run.
        """
        self._local.check_online()
        checked, size_bytes = check_replicated(batches)
        end_offset = self._local.end_offset
        if not checked:
            return AppendInfo(
                end_offset, end_offset - 1, NO_TIMESTAMP, self._log_start_offset, 0, False
            )
        self._check_offsets(checked)
        with memoryview(batches) as view:
            for start, stop in self._split_by_segment(checked, size_bytes):
                end = checked[stop][0] if stop < len(checked) else size_bytes
                with view[checked[start][0] : end] as run:
                    self._append_run(run, checked[start:stop])
        last = checked[-1][1]
        append_time = last.max_timestamp_ms if last.is_log_append_time else NO_TIMESTAMP
        return AppendInfo(
            checked[0][1].base_offset,
            last.last_offset,
            append_time,
            self._log_start_offset,
            size_bytes,
            False,
        )

    def _check_offsets(self, batches: list[tuple[int, BatchHeader]]) -> None:
        end_offset = self._local.end_offset
        for _, header in batches:
            if header.base_offset < end_offset:
                raise UnexpectedAppendOffset(
                    f"a batch with offsets [{header.base_offset}, {header.next_offset}) cannot "
                    f"follow offset {end_offset} of {self.partition}"
                )
            end_offset = header.next_offset

    def _split_by_segment(
        self, batches: list[tuple[int, BatchHeader]], size_bytes: int
    ) -> list[tuple[int, int]]:
        # A leader's batches may be more than one segment's worth: cut where segments fill up.
        limit = self._local.config.segment_bytes
        runs: list[tuple[int, int]] = []
        start, room = 0, limit - self._local.active.size_bytes
        for index, (position, header) in enumerate(batches):
            end = position + header.size_bytes
            if end - batches[start][0] > room and index > start:
                runs.append((start, index))
                start, room = index, limit
        runs.append((start, len(batches)))
        return runs

    def _append_run(self, run: memoryview, batches: list[tuple[int, BatchHeader]]) -> None:
        now_ms = self._clock_ms()
        draft: ProducerDraft | None = None
        origin_position = batches[0][0]
        new_batches: list[NewBatch] = []
        for position, header in batches:
            at = position - origin_position
            if header.producer_id >= 0:
                if draft is None:
                    draft = self._producers.stage(AppendOrigin.REPLICATION, now_ms=now_ms)
                draft.add(header, header.base_offset, read_marker(run, at, header))
            new_batches.append(
                NewBatch(at, header.base_offset, header.next_offset, header.max_timestamp_ms)
            )
        end_offset = new_batches[-1].next_offset
        newest = max(batch.max_timestamp_ms for batch in new_batches)
        if self._local.should_roll(len(run), last_offset=end_offset - 1, max_timestamp_ms=newest):
            self.roll()
        self._local.append(run, new_batches)
        for _, header in batches:
            if header.partition_leader_epoch > self._epochs.latest:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        self._note_producers(draft, end_offset)

    def _note_producers(self, draft: ProducerDraft | None, end_offset: int) -> None:
        if draft is None:
            self._producers.end_offset = end_offset
            return
        for aborted in self._producers.commit(draft, end_offset=end_offset):
            self._local.active.indexes.txn.append(aborted)

    def _duplicate(self, batch: RetainedBatch) -> AppendInfo:
        is_append_time = self._local.config.message_timestamp_type == LOG_APPEND_TIME
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp_ms if is_append_time else NO_TIMESTAMP,
            self._log_start_offset,
            0,
            True,
        )

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark, at most to the log end. Returns whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self._high_watermark:
            return False
        self._high_watermark = offset
        self._producers.advance_high_watermark(offset)
        return True

    def expire_producers(self) -> int:
        """Forget the producers that have been idle for too long. Returns how many."""
        return self._producers.expire(self._clock_ms())

    def has_ongoing_transaction(self, producer_id: int) -> bool:
        """Whether the producer has written to a transaction that is still open."""
        return self._producers.has_ongoing_transaction(producer_id)

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

        The bytes are of one segment; the last batch may be cut, and with
        ``min_one_batch`` the first is whole even if it is over ``max_bytes``. Raises
        ``OffsetOutOfRange`` outside ``[log start, log end]``, ``OffsetNotLocal`` if
        the tier has it, ``StorageError``.
        """
        local = self._local
        if local.is_offline:
            local.check_online()
        self._check_readable(offset)
        found = None
        if offset < up_to:
            found = local.read(
                offset, max_bytes=max_bytes, up_to=up_to, min_one_batch=min_one_batch
            )
        if found is None:
            return LogRead(
                None,
                offset,
                self._high_watermark,
                self.last_stable_offset,
                self._log_start_offset,
                local.end_offset,
            )
        file_slice, start_offset = found
        aborted: tuple[AbortedTransaction, ...] = ()
        if include_aborted:
            segment = local.segments[local.floor_index(start_offset)]
            slice_end = (segment, file_slice.position + file_slice.size_bytes)
            aborted = local.collect_aborted(offset, slice_end, up_to)
        return LogRead(
            file_slice,
            start_offset,
            self._high_watermark,
            self.last_stable_offset,
            self._log_start_offset,
            local.end_offset,
            aborted,
        )

    def _check_readable(self, offset: int) -> None:
        start, end = self._log_start_offset, self._local.segments[-1].end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(self.partition, offset, start=start, end=end)
        if offset < self._local.segments[0].base_offset:
            local_start = self._local.start_offset
            raise OffsetNotLocal(self.partition, offset, start=local_start, end=end)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return timestamp and offset of the first local record at or after a time, else None.

        Not bounded by the high watermark, and blind to the tier: the caller is neither.
        """
        self._local.check_online()
        with self._local.storage_errors("search by time"):
            return find_offset_by_time(
                self._local, timestamp_ms, start_offset=self.local_log_start_offset
            )

    def max_timestamp(self) -> tuple[int, int] | None:
        """Return the greatest local timestamp and its first record's offset, else None."""
        self._local.check_online()
        with self._local.storage_errors("search by time"):
            return find_max_timestamp(self._local, start_offset=self.local_log_start_offset)

    # -- leader epochs --

    def assign_leader_epoch(self, epoch: int) -> None:
        """Note that this node leads in ``epoch`` from the log end on."""
        if epoch > self._epochs.latest:
            self._epochs.assign(epoch, self.log_end_offset)

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

    def roll(self) -> None:
        """Seal the active segment and start another, unless it is empty. Not durable on return."""
        local = self._local
        local.check_online()
        if local.active.base_offset == local.end_offset:
            return
        self._producers.expire(self._clock_ms())
        with local.storage_errors("roll"):
            write_snapshot(local.directory, self._producers)
        local.roll()

    def maybe_roll(self) -> bool:
        """Roll if the active segment is older than ``segment.ms``. Returns whether it did."""
        local = self._local
        active = local.active
        if local.is_offline or active.size_bytes == 0:
            return False
        started_ms = active.first_timestamp_ms
        if started_ms is None or started_ms < 0:
            started_ms = active.created_ms
        if self._clock_ms() - started_ms <= local.segment_ms(active):
            return False
        self.roll()
        return True

    def sealed_segments(self) -> list[SealedSegment]:
        """Return all segments but the active one, oldest first, with all their files there."""
        local = self._local
        sealed = []
        for segment in local.segments[:-1]:
            known = self._sealed.get(segment.base_offset)
            if known is None:
                with local.storage_errors("reading of a sealed segment"):
                    known = self._sealed[segment.base_offset] = self._describe(segment)
            sealed.append(known)
        return sealed

    def _describe(self, segment: LogSegment) -> SealedSegment:
        directory, base_offset = self._local.directory, segment.base_offset
        # Loading the indexes checks their files, or writes them anew; both are let go again.
        _ = segment.indexes
        segment.release()
        snapshot = snapshot_path(directory, segment.end_offset)
        if not snapshot.exists():
            write_snapshot(directory, self._producers_at(segment.end_offset))
        return SealedSegment(
            base_offset=base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            max_timestamp_ms=segment.max_timestamp_ms,
            path=segment.path,
            offset_index=segment_path(directory, base_offset, OFFSET_INDEX_SUFFIX),
            time_index=segment_path(directory, base_offset, TIME_INDEX_SUFFIX),
            txn_index=segment_path(directory, base_offset, TXN_INDEX_SUFFIX),
            producer_snapshot=snapshot,
            leader_epochs=self._epochs.within(base_offset, segment.end_offset),
            last_modified_ms=segment.path.stat().st_mtime_ns // 1_000_000,
        )

    def advance_log_start_offset(self, offset: int) -> bool:
        """Delete the records below ``offset``; returns whether there were any to delete.

        Durable on return. Segments wholly below go; slices being sent stay readable.
        Raises ``OffsetOutOfRange`` above the high watermark.
        """
        self._local.check_online()
        if offset > self._high_watermark:
            raise OffsetOutOfRange(
                self.partition, offset, start=self._log_start_offset, end=self._high_watermark
            )
        if offset <= self._log_start_offset:
            return False
        self._write_start_offsets(offset, self._local.start_offset)
        self._log_start_offset = offset
        self._epochs.truncate_from_start(offset)
        self._sealed.clear()  # Their first leader epoch may have been cut.
        self._remove_segments_below(offset)
        return True

    def set_tiered_up_to(self, offset: int) -> None:
        """Note that everything below ``offset`` is durable in the tier."""
        self._tiered_up_to = max(self._tiered_up_to, offset)

    @property
    def tiered_up_to(self) -> int:
        """The end of what is known to be in the tier, exclusive."""
        return self._tiered_up_to

    def evict_local(self, up_to_offset: int) -> int:
        """Remove the sealed segments below both ``up_to_offset`` and the tier's end.

        Returns the bytes freed. Durable on return: an evicted segment stays away.
        """
        self._local.check_online()
        return self._remove_segments_below(min(up_to_offset, self._tiered_up_to))

    def _remove_segments_below(self, offset: int) -> int:
        local = self._local
        count = sum(segment.end_offset <= offset for segment in local.segments[:-1])
        if count == 0:
            return 0
        start_offset = local.segments[count].base_offset
        # Written first: if a crash leaves some of the files, the next open removes them.
        self._write_start_offsets(self._log_start_offset, start_offset)
        for segment in local.segments[:count]:
            self._sealed.pop(segment.base_offset, None)
        freed_bytes = local.remove_first(count)
        with local.storage_errors("removal of segments"):
            remove_snapshots(local.directory, below=start_offset)
        return freed_bytes

    def _write_start_offsets(self, log_start_offset: int, local_start_offset: int) -> None:
        with self._local.storage_errors("checkpoint"):
            path = self._local.directory / START_OFFSET_FILE
            write_checkpoint(path, [[log_start_offset, local_start_offset]])

    def truncate_to(self, offset: int) -> None:
        """Remove the batches that reach ``offset`` or lie above it. Durable on return.

        The log ends at ``offset``, or before it if a batch spans it.
        """
        local = self._local
        local.check_online()
        if offset >= local.end_offset:
            return
        if offset < local.start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        self._cancel_flush()
        with local.storage_errors("truncation"):
            offset = self._truncation_point(offset)
            self._recovery_point = min(self._recovery_point, offset)
            # Written first, also if it does not change: it makes the removal of the
            # clean-shutdown file durable.
            self._write_recovery_point()
            kept = local.floor_index(offset)
            local.remove_last(len(local.segments) - kept - 1)
            local.active.truncate_to(offset)
            remove_snapshots(local.directory, above=offset)
            self._producers = self._producers_at(offset)
        self._sealed.clear()
        self._epochs.truncate_from_end(offset)
        self._log_start_offset = min(self._log_start_offset, offset)
        self._high_watermark = min(self._high_watermark, offset)
        self._producers.advance_high_watermark(self._high_watermark)

    def _truncation_point(self, offset: int) -> int:
        located = self._local.segments[self._local.floor_index(offset)].locate(offset)
        return offset if located is None else min(offset, located[1])

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and start an empty log at ``offset``. Durable on return."""
        local = self._local
        local.check_online()
        self._cancel_flush()
        with local.storage_errors("truncation"):
            # Lowered first: after a crash half-way the log is short, but not corrupt.
            self._recovery_point = min(local.start_offset, offset)
            self._write_recovery_point()
            segment = local.new_segment(offset)
            local.remove_last(len(local.segments))
            remove_snapshots(local.directory, below=2**63)
            write_checkpoint(local.directory / START_OFFSET_FILE, [[offset, offset]])
            segment.create()
            local.segments.append(segment)
            self._recovery_point = offset
            self._write_recovery_point()
        self._sealed.clear()
        self._epochs.clear()
        self._producers = ProducerState(end_offset=offset, expiration_ms=self._expiration_ms)
        self._log_start_offset = self._high_watermark = offset

    # -- durability --

    @property
    def needs_flush(self) -> bool:
        """Whether a flush is due: a sealed segment, ``flush.messages`` or ``flush.ms``."""
        active, config = self._local.active, self._local.config
        unflushed = active.end_offset - self._recovery_point
        if unflushed <= 0:
            return False
        return (
            self._recovery_point < active.base_offset
            or unflushed >= config.flush_messages
            or self._clock_ms() - self._last_flush_ms >= config.flush_ms
        )

    def flush(self, up_to: int | None = None) -> None:
        """Make the log durable below ``up_to`` (all of it by default), and note it.

        Blocks for the disk. Raises ``StorageError`` and takes the log offline if the
        disk fails: what an fsync has failed to write may be lost.
        """
        self._cancel_flush()
        pending = self.begin_flush(up_to)
        if pending is not None:
            try:
                pending.run()
            except OSError as error:
                self.fail_flush(pending)
                raise self._flush_error(error) from error
            self.finish_flush(pending)

    def begin_flush(self, up_to: int | None = None) -> PendingFlush | None:
        """Begin a flush below ``up_to`` whose blocking part runs on any thread.

        The caller runs ``PendingFlush.run`` there and then calls ``finish_flush`` or,
        after an ``OSError``, ``fail_flush``, here. None if there is nothing to flush
        or another flush is under way.
        """
        local = self._local
        local.check_online()
        target = local.end_offset if up_to is None else min(up_to, local.end_offset)
        is_dirty = local.seals_are_dirty or self._epochs.is_dirty
        if self._pending_flush is not None or (target <= self._recovery_point and not is_dirty):
            return None
        target = max(target, self._recovery_point)
        directory = local.directory
        with local.storage_errors("flush"):
            descriptors = self._open_unflushed(target)
        checkpoints: list[tuple[Path, list[tuple[int, ...]]]] = []
        if self._epochs.is_dirty:
            checkpoints.append((directory / LEADER_EPOCH_FILE, list(self._epochs.entries)))
        if local.seals_are_dirty:
            checkpoints.append((directory / SEGMENT_FILE, list(local.seals())))
        directories = [directory] if self._is_parent_synced else [directory, directory.parent]
        self._epochs.is_dirty = local.seals_are_dirty = False
        self._pending_flush = PendingFlush(
            recovery_point=target,
            recovery_point_file=directory / RECOVERY_POINT_FILE,
            descriptors=descriptors,
            checkpoints=checkpoints,
            directories=directories,
        )
        return self._pending_flush

    def finish_flush(self, pending: PendingFlush) -> None:
        """Take note of a flush that has run."""
        if pending is not self._pending_flush:
            return  # It was cancelled.
        self._pending_flush = None
        self._is_parent_synced = True
        self._recovery_point = max(self._recovery_point, pending.recovery_point)
        self._last_flush_ms = self._clock_ms()

    def fail_flush(self, pending: PendingFlush) -> None:
        """Take the log offline after a flush that has failed."""
        if pending is self._pending_flush:
            self._pending_flush = None
        self._local.go_offline()

    def _open_unflushed(self, target: int) -> list[int]:
        descriptors: list[int] = []
        directory = self._local.directory
        for segment in self._local.segments:
            if segment.end_offset <= self._recovery_point or segment.base_offset >= target:
                continue
            descriptors.append(segment.open_for_sync())
            if segment.seal is None:
                continue
            for path in (
                segment_path(directory, segment.base_offset, OFFSET_INDEX_SUFFIX),
                segment_path(directory, segment.base_offset, TIME_INDEX_SUFFIX),
                segment_path(directory, segment.base_offset, TXN_INDEX_SUFFIX),
                snapshot_path(directory, segment.end_offset),
            ):
                if path.exists():
                    descriptors.append(_open_to_sync(path))
        return descriptors

    def _cancel_flush(self) -> None:
        pending, self._pending_flush = self._pending_flush, None
        if pending is not None:
            pending.cancel()
            # What it was about to write may or may not be there; write it again.
            self._epochs.is_dirty = self._local.seals_are_dirty = True

    def _flush_error(self, error: OSError) -> Exception:
        return self._local._storage_error("flush", error)

    def _write_recovery_point(self) -> None:
        path = self._local.directory / RECOVERY_POINT_FILE
        write_checkpoint(path, [[self._recovery_point]])

    def update_config(self, config: TopicConfig) -> None:
        """Take new settings; they hold from the next call on."""
        self._local.config = config

    def close(self) -> None:
        """Flush, note that the log ended in order, and let go of all files. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        local = self._local
        try:
            if not local.is_offline:
                self._close_in_order()
        finally:
            self._cancel_flush()
            local.close()

    def _close_in_order(self) -> None:
        local = self._local
        active = local.active
        with local.storage_errors("closing"):
            if active.size_bytes and active.seal is None:
                active.write_indexes()
                local.seals_are_dirty = True
            if not snapshot_path(local.directory, local.end_offset).exists():
                write_snapshot(local.directory, self._producers)
        self.flush()
        with local.storage_errors("closing"):
            # Written last and not fsynced: if a crash loses it, the log is recovered.
            row = [local.end_offset, active.base_offset, active.size_bytes]
            (local.directory / CLEAN_SHUTDOWN_FILE).write_bytes(encode_rows([row]))

    def delete(self) -> None:
        """Remove the log. Its directory is renamed first, so that it is gone at once."""
        self._is_closed = True
        self._cancel_flush()
        local = self._local
        local.close()
        local.go_offline()
        directory = local.directory
        doomed = directory.with_name(
            f"{directory.name}.{uuid.uuid4().hex}{DELETED_DIRECTORY_SUFFIX}"
        )
        with local.storage_errors("deletion"):
            directory.rename(doomed)
            sync_directory(directory.parent)
            shutil.rmtree(doomed)

    def _producers_at(self, offset: int) -> ProducerState:
        return producers_at(
            self._local.directory,
            self._local.segments,
            offset,
            expiration_ms=self._expiration_ms,
            now_ms=self._clock_ms(),
        )


def remove_deleted_logs(parent: Path) -> int:
    """Finish the deletions that a crash interrupted in ``parent``. Returns how many."""
    doomed = [path for path in parent.iterdir() if path.name.endswith(DELETED_DIRECTORY_SUFFIX)]
    for path in doomed:
        shutil.rmtree(path)
    return len(doomed)


def _stamped(checked: CheckedBatches, now_ms: int) -> CheckedBatches:
    batches = [
        (position, header._replace(max_timestamp_ms=now_ms)) for position, header in checked.batches
    ]
    return CheckedBatches(checked.buffer, batches)


def _open_to_sync(path: Path) -> int:
    import os

    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
