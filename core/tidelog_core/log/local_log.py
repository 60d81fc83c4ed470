"""One partition's log on this node's disk: appends, reads, flushes, truncation, retention.

``ReadableLog`` has what only looks at it: offsets, records, segments.

One thread uses a log. The exception is ``PendingFlush.run``, which may block and
runs on any thread. Files are opened and read on first use. There are no timers: the node
calls ``maybe_roll``, ``LogProducers.expire`` and the flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import TopicConfig
from tidelog_core.errors import OffsetOutOfRange, StorageError
from tidelog_core.log.append_checks import CheckedBatches
from tidelog_core.log.checkpoint import encode_rows
from tidelog_core.log.cleaned_segments import CleanedSegment, PendingSwap, SegmentToClean
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.deletion import remove_deleted_logs, remove_directories, rename_deleted
from tidelog_core.log.paths import CLEAN_SHUTDOWN_FILE
from tidelog_core.log.pending_fill import PendingFill
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog_core.log.producers.producer_snapshots import snapshot_path, write_snapshot
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.readable_log import ReadableLog
from tidelog_core.log.recovery.opening import open_log
from tidelog_core.log.segments.flush import PendingFlush
from tidelog_core.log.segments.open_files import OpenFiles
from tidelog_core.log.truncation import Truncation
from tidelog_core.log.unfilled_range import Unfilled, UnfilledMark, read_unfilled
from tidelog_core.log.values import (
    WITHOUT_LIMIT,
    AppendInfo,
    AppendLimit,
    AppendOrigin,
    SealedSegment,
)
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Buffer, WritableBuffer

__all__ = ["PRODUCER_ID_EXPIRATION_MS", "LocalLog", "remove_deleted_logs"]

PRODUCER_ID_EXPIRATION_MS = 86_400_000


class LocalLog(ReadableLog):
    """The log of one partition. Made by ``open``; ``close`` or ``delete`` ends it."""

    __slots__ = ()

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
        open_files: OpenFiles | None = None,
        on_offline: Callable[[], None] | None = None,
    ) -> LocalLog:
        """Open the log, recovering it if it was not closed in order. Makes the directory.

        ``log_start_offset`` is the one in the metadata store; the greater of it and the local
        one applies. With ``is_clean`` the caller guarantees that no CRC has to be checked. The
        high watermark starts at the local log start offset; the caller advances it. Logs with the
        same ``open_files`` share its limit. ``on_offline`` is called whenever the log goes
        offline. Raises ``CorruptLog`` or ``StorageError``.
        """
        opened = open_log(
            directory,
            partition,
            config=config,
            clock_ms=clock_ms,
            log_start_offset=log_start_offset,
            is_clean=is_clean,
            producer_id_expiration_ms=producer_id_expiration_ms,
            open_files=open_files,
            on_offline=on_offline,
        )
        log = cls(
            opened,
            clock_ms=clock_ms,
            expiration_ms=producer_id_expiration_ms,
            unfilled=None if opened.is_new else read_unfilled(directory),
        )
        # The start may have moved in the metadata store alone before a crash.
        log._start.remove_segments_below(opened.log_start_offset)
        return log

    # -- appending --

    def append_as_leader(
        self,
        batches: WritableBuffer,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        checked: CheckedBatches | None = None,
    ) -> AppendInfo:
        """Append batches at the log end and assign their offsets in the buffer.

        All batches are checked before any byte is written, unless the caller passes the result
        of a check with the current settings as ``checked``. A duplicate batch is not written
        again: the answer has the offsets of the first one. Transaction
        markers are appended with ``AppendOrigin.COORDINATOR``. Not durable on
        return. Raises the errors of ``check_produced``, ``OutOfOrderSequence``,
        ``InvalidProducerEpoch``, ``InvalidTxnState`` and ``StorageError``, and then leaves the
        log unchanged.
        """
        return self._appender.append_as_leader(
            batches, leader_epoch=leader_epoch, origin=origin, checked=checked
        )

    def complete(self, base_offset: int, batch: Buffer) -> bool:
        """Write the records of a batch that was appended with its header alone.

        ``batch`` is whole, with the offset and epoch that the log has given it. Until then the
        caller keeps the high watermark at or below ``base_offset``. Returns false if the log has
        no batch with this header there: it was cut. Raises ``StorageError``.
        """
        self._segments.check_online()
        # A flush may have counted the batch without its records.
        is_durable = self._durability.may_count(base_offset)
        return self._segments.complete(base_offset, batch, is_durable=is_durable)

    def append_as_follower(
        self, batches: WritableBuffer, limit: AppendLimit = WITHOUT_LIMIT
    ) -> AppendInfo:
        """Append batches with the leader's offsets and epochs, up to the limit.

        A truncated last batch is left out. Raises ``CorruptRecordBatch``,
        ``UnexpectedAppendOffset`` or ``StorageError``; nothing is appended then,
        except that a disk error may come after whole segments of a long run.
        """
        return self._appender.append_as_follower(batches, limit)

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark, at most to the log end. Returns whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self._high_watermark:
            return False
        self._high_watermark = offset
        self.producers.state.advance_high_watermark(offset)
        return True

    # -- holding segments --

    def hold(self, base_offset: int, piece_bytes: int) -> list[int]:
        """Keep the segments from here to the log's end as they are, until ``release``.

        Nothing compacts, evicts or deletes them, as if they were above the high watermark. Also
        returns the ends of pieces of about this size. Raises ``StorageError``.
        """
        segments = self._segments
        segments.check_online()
        end_offset = segments.end_offset
        found = segments.pieces(base_offset, end_offset, piece_bytes)
        self._start.held = (base_offset, end_offset) if found else None
        return found

    def release(self, up_to: int) -> None:
        """Let go of the held segments below the offset, and remove those that were deleted since.

        Durable on return. Raises ``StorageError``.
        """
        start = self._start
        if start.held is None:
            return
        start.held = (up_to, start.held[1]) if up_to < start.held[1] else None
        if not self._segments.is_offline:
            self._settle()
            start.remove_segments_below(start.offset)

    # -- leader epochs --

    def assign_leader_epoch(self, epoch: int) -> None:
        """Note that this node leads in ``epoch`` from the log end on."""
        if epoch > self._epochs.latest:
            self._epochs.assign(epoch, self.log_end_offset)

    # -- segments --

    def roll(self) -> None:
        """Seal the active segment and start another, unless it is empty. Not durable on return."""
        self._appender.roll()

    def maybe_roll(self, *, age_ms: int | None = None) -> bool:
        """Roll if the active segment is older than ``segment.ms``. Returns whether it rolled.

        ``age_ms`` is used instead of ``segment.ms`` if it is less.

        The age is measured on this node's clock. By record timestamps, a segment with old
        records would be rolled again and again.
        """
        segments = self._segments
        active = segments.active
        if segments.is_offline or active.size_bytes == 0:
            return False
        segment_ms = segments.segment_ms(active)
        if age_ms is not None:
            segment_ms = min(segment_ms, age_ms)
        if self._clock_ms() - active.created_ms <= segment_ms:
            return False
        self.roll()
        return True

    def make_whole(self, sealed: SealedSegment) -> None:
        """Check that a sealed segment has all its files, undamaged; rebuild the others.

        Raises ``CorruptLog`` if its batches are damaged, ``StorageError`` also if the
        segment is gone.
        """
        self._segments.check_online()
        self._settle()
        self._start.make_whole(sealed, self.producers.at)

    def advance_log_start_offset(self, offset: int) -> bool:
        """Delete the records below ``offset``; returns whether there were any to delete.

        Durable on return. Segments wholly below go; slices being sent stay readable.
        Raises ``OffsetOutOfRange`` above the high watermark.
        """
        self._segments.check_online()
        if offset > self._high_watermark:
            raise OffsetOutOfRange(
                self.partition, offset, start=self._start.offset, end=self._high_watermark
            )
        if offset <= self._start.offset:
            return False
        self._settle()
        self._start.advance(offset)
        self._notify_moved()
        self._filling.end_if_deleted()
        return True

    def _notify_moved(self) -> None:
        if self.on_moved is not None:
            self.on_moved()

    def set_tiered_up_to(self, offset: int) -> None:
        """Note that everything below ``offset`` is durable in the tier."""
        self._start.note_tiered(offset)

    def evict_local(self, up_to_offset: int) -> int:
        """Remove the sealed segments below both ``up_to_offset`` and the tier's end.

        Returns the bytes freed. Durable on return: an evicted segment stays away.
        """
        self._segments.check_online()
        self._settle()
        return self._start.remove_segments_below(min(up_to_offset, self._start.tiered_up_to))

    def truncate_to(self, offset: int) -> None:
        """Remove the batches at and above ``offset``, and one that spans it. Durable on return.

        The log then ends after the last remaining batch. That is below ``offset`` if a batch
        spanned it, or if compaction has left a gap there: after a crash, a log that ends in a gap
        looks like one that has lost a batch. Leader epochs that start at the new end or above are
        removed too, even without a batch.
        """
        segments = self._segments
        segments.check_online()
        self._settle()
        if offset >= segments.end_offset:
            self._epochs.truncate_from_end(offset)
        elif offset < segments.start_offset:
            self.truncate_fully_and_start_at(
                offset,
                log_start_offset=self._start.offset,
                leader_epochs=self._epochs.entries,
            )
        else:
            end_offset = self._truncation().cut(offset)
            self._on_cut(min(self._high_watermark, end_offset))

    def truncate_fully_and_start_at(
        self,
        offset: int,
        *,
        log_start_offset: int | None = None,
        leader_epochs: Iterable[tuple[int, int]] = (),
        producer_snapshot: bytes | None = None,
        is_durable: bool = True,
    ) -> None:
        """Remove everything and start an empty log at ``offset``.

        Durable on return, unless the log is to be thrown away after a crash.

        The tier has ``[log_start_offset, offset)``; ``None`` means ``offset``. ``leader_epochs``
        and ``producer_snapshot`` describe the log up to ``offset``. Raises ``CorruptSnapshot``
        before any change.
        """
        self._segments.check_online()
        self._settle()
        log_start_offset = offset if log_start_offset is None else min(log_start_offset, offset)
        producers = ProducerState(end_offset=offset, expiration_ms=self._expiration_ms)
        if producer_snapshot is not None:
            producers = decode_snapshot(producer_snapshot, expiration_ms=self._expiration_ms)
            if producers.end_offset != offset:
                raise CorruptSnapshot(f"it is of offset {producers.end_offset}, not {offset}")
        self._truncation().truncate_fully(
            offset,
            log_start_offset=log_start_offset,
            leader_epochs=leader_epochs,
            producers=producers,
            is_durable=is_durable,
        )
        self._filling.end()
        self._on_cut(offset)

    # -- filling, see ``unfilled_range`` --

    def mark_unfilled(self, end_offset: int) -> UnfilledMark:
        """Return the mark for ``start_unfilled``. Raises ``StorageError``.

        The caller has any thread run it, starts, and closes it in any case.
        """
        self._segments.check_online()
        self._settle()
        return self._filling.mark(Unfilled(self.log_end_offset, end_offset))

    def start_unfilled(
        self,
        mark: UnfilledMark,
        *,
        leader_epochs: Sequence[tuple[int, int]],
        producers: ProducerState,
    ) -> Unfilled:
        """Remove everything and go on at an offset above the log's end; the mark has both.

        What is between them is filled in later. ``leader_epochs`` and ``producers`` describe the
        log up to the offset. The tier has everything below the end so far. Nothing but the mark is
        durable on return: a crash may leave anything else of it, and the log is restarted then.
        Returns what ``unfilled`` is from now on: as long as it is this object, nothing has begun
        again. Raises ``StorageError``.
        """
        self._segments.check_online()
        self._settle()
        unfilled, end_offset = mark.unfilled, mark.unfilled.end
        assert self.log_end_offset == unfilled.start < end_offset == producers.end_offset
        self._filling.begin(mark)
        self._truncation().truncate_fully(
            end_offset,
            log_start_offset=self._start.offset,
            leader_epochs=leader_epochs,
            producers=producers,
            is_durable=False,
        )
        self._on_cut(end_offset)
        return unfilled

    def begin_filling(
        self, *, leader_epochs: Sequence[tuple[int, int]], producer_snapshot: bytes
    ) -> LocalLog:
        """Return an empty log for the missing records. ``leader_epochs`` as of their start.

        Nothing of it is durable before ``fill``. Raises ``StorageError``.
        """
        self._settle()
        unfilled = self._filling.missing
        assert unfilled is not None
        found = LocalLog.open(
            self._filling.begin_fill_log(),
            self.partition,
            config=self.config,
            clock_ms=self._clock_ms,
            producer_id_expiration_ms=self._expiration_ms,
        )
        found.truncate_fully_and_start_at(
            unfilled.start,
            leader_epochs=leader_epochs,
            producer_snapshot=producer_snapshot,
            is_durable=False,
        )
        self._filling.fill_log = found
        return found

    def begin_fill(self, other: LocalLog) -> PendingFill:
        """Begin to put the segments of a log that has the missing records before the first one.

        The other log is closed. Readers of this one go on. Until ``is_done``, the caller runs
        ``PendingFill.run``, which may block, on any thread, and then calls ``go_on_filling`` on
        the log's thread. Other changes of the log's files first finish the fill. Raises
        ``StorageError``.
        """
        unfilled, segments = self._filling.missing, self._segments
        segments.check_online()
        assert unfilled is not None
        found = other._segments
        assert found.start_offset <= unfilled.start < found.end_offset == segments.start_offset
        self._settle()
        other.roll()
        other._is_closed = True
        return self._filling.begin_taking(found)

    def go_on_filling(self, pending: PendingFill) -> None:
        """Continue a fill after its ``run`` has returned.

        Raises ``StorageError``; then nothing has changed, unless ``is_filled``.
        """
        self._filling.go_on(pending)
        if pending.is_done:
            # A log start may have moved into what was missing.
            self._start.remove_segments_below(self._start.offset)
        self._notify_moved()

    def forget_unfilled(self) -> None:
        """Note that log or tier have all missing records. Blocks. Raises ``StorageError``."""
        self._settle()
        self._filling.end()
        # A log start may have moved into what was missing.
        self._start.remove_segments_below(self._start.offset)

    def _settle(self) -> None:
        """Finish the work of other threads on the log's files. Blocks. Raises ``StorageError``."""
        self._filling.settle()
        self._cleaning.settle()

    def _truncation(self) -> Truncation:
        return Truncation(
            self._segments,
            self._epochs,
            self.producers,
            self._start,
            durability=self._durability,
            cleaning=self._cleaning,
        )

    def _on_cut(self, high_watermark: int) -> None:
        self._high_watermark = high_watermark
        self.producers.state.advance_high_watermark(high_watermark)
        self._notify_moved()

    # -- compaction --

    def count_as_cut(self) -> None:
        """Note that a segment holds the leader's records now, also those removed here before."""
        self._segments.cut_count += 1

    def begin_cleaning(self, segments: Sequence[SegmentToClean]) -> CleaningSource:
        """Return the input for compacting these segments. Raises ``StorageError``."""
        self._segments.check_online()
        return self._cleaning.begin(
            segments, dirty_from=self.cleaned_up_to, producers=self.producers.state
        )

    def begin_replacing(self, source: CleaningSource, cleaned: CleanedSegment) -> PendingSwap:
        """Begin to replace segments with the compacted one that was made from them.

        Until ``is_done``, the caller runs ``PendingSwap.run``, which may block, on any thread,
        and then calls ``go_on_replacing`` on the log's thread. Other changes of the log's files
        first finish the swap. The swap is durable once it is done. Slices being sent stay
        readable. Raises ``SegmentsChanged`` if the log was truncated or its segments changed since
        ``source`` was made, ``StorageError``; nothing has changed then, unless the log is offline.
        """
        self._segments.check_online()
        return self._cleaning.begin_replacing(source, cleaned)

    def go_on_replacing(self, swap: PendingSwap) -> None:
        """Continue a swap after its ``run`` has returned. Raises ``StorageError``."""
        self._cleaning.go_on_replacing(swap)

    def end_cleaning(self, source: CleaningSource, up_to: int) -> None:
        """Note that everything below ``up_to`` is compacted. Durable on return.

        Raises as ``begin_replacing``.
        """
        self._segments.check_online()
        self._settle()
        self._cleaning.end(source, up_to)

    # -- durability --

    def flush(self, up_to: int | None = None) -> None:
        """Make the log durable below ``up_to`` (all of it by default).

        Moves the recovery point. Blocks for the disk. Raises ``StorageError`` and takes the log
        offline if an fsync fails: its bytes may be lost.
        """
        self._segments.check_online()
        self._settle()
        self._durability.flush(up_to)

    def begin_flush(self, up_to: int | None = None) -> PendingFlush | None:
        """Begin a flush below ``up_to`` whose blocking part runs on any thread.

        The caller runs ``PendingFlush.run`` there. Then it calls ``finish_flush`` here, or
        ``fail_flush`` after an ``OSError``, or ``give_up_flush`` after any other exception. None
        if nothing is unflushed or another flush is under way.
        """
        self._segments.check_online()
        self._settle()
        return self._durability.begin(up_to)

    def finish_flush(self, pending: PendingFlush) -> None:
        """Take note of a flush that has run."""
        self._durability.finish(pending)

    def fail_flush(self, pending: PendingFlush) -> None:
        """Take the log offline after a flush that has failed, unless only space was missing."""
        self._durability.fail(pending)

    def give_up_flush(self, pending: PendingFlush) -> None:
        """Leave a flush that ended for another reason than the disk to the next flush."""
        self._durability.give_up(pending)

    def update_config(self, config: TopicConfig) -> None:
        """Take new settings; they hold from the next call on."""
        self._segments.config = config

    def close(self) -> None:
        """Flush, write the clean-shutdown file, and close all files. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        segments = self._segments
        try:
            if not segments.is_offline:
                self._close_in_order()
        finally:
            self._durability.cancel()
            self._filling.cancel()  # Another log over the same files may be next.
            segments.close()

    def _close_in_order(self) -> None:
        segments = self._segments
        active = segments.active
        self._settle()
        with segments.storage_errors("closing"):
            if active.size_bytes and active.seal is None:
                segments.seal_file.add(active.write_indexes())
            if not snapshot_path(segments.directory, segments.end_offset).exists():
                write_snapshot(segments.directory, self.producers.state)
        self.flush()
        with segments.storage_errors("closing"):
            # Written last and not fsynced: if a crash loses it, the log is recovered.
            row = [segments.end_offset, active.base_offset, active.size_bytes]
            (segments.directory / CLEAN_SHUTDOWN_FILE).write_bytes(encode_rows([row]))

    def take_offline(self) -> None:
        """Refuse everything from now on: the log must not be appended to. Idempotent."""
        self._is_given_up = True
        self._durability.cancel()
        self._filling.cancel()
        self._segments.go_offline()
        self._notify_moved()

    def delete(self) -> None:
        """Remove the log and its files."""
        directory = self.begin_deletion()
        with self._segments.storage_errors("deletion"):
            remove_directories([directory])

    def begin_deletion(self) -> Path:
        """Detach the log; return the directory for ``remove_directories``, which blocks.

        The directory is renamed, so a log of the same name can be created immediately. After a
        crash the next start removes it.
        """
        self._is_closed = True
        self._durability.cancel()
        segments = self._segments
        if not segments.is_offline:
            with suppress(StorageError):  # Its files go.
                self._settle()
        self._filling.cancel()
        segments.close()
        segments.go_away()
        with segments.storage_errors("deletion"):
            return rename_deleted(segments.directory)
