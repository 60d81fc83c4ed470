"""Tracks the recovery point of a log, and prepares the flushes that advance it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tidelog_core.log.checkpoint import write_checkpoint, write_unsynced
from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.paths import (
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    RECOVERY_POINT_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.segments.flush import PendingFlush
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.segments.segment import LogSegment


class Durability:
    """The recovery point of one log. At most one flush is under way."""

    __slots__ = (
        "_clock_ms",
        "_epochs",
        "_is_parent_synced",
        "_last_flush_ms",
        "_pending",
        "_segments",
        "recovery_point",
    )

    def __init__(
        self,
        segments: LogSegments,
        epochs: LeaderEpochs,
        *,
        recovery_point: int,
        is_new: bool,
        clock_ms: Callable[[], int],
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self.recovery_point = recovery_point  # everything below is flushed
        self._is_parent_synced = not is_new  # whether the directory's own name is durable
        self._clock_ms = clock_ms
        self._last_flush_ms = clock_ms()
        self._pending: PendingFlush | None = None

    @property
    def needs_flush(self) -> bool:
        """Whether a segment was sealed since, or ``flush.messages`` or ``flush.ms`` is reached."""
        active, config = self._segments.active, self._segments.config
        unflushed = active.end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        return (
            self.recovery_point < active.base_offset
            or unflushed >= config.flush_messages
            or self._clock_ms() - self._last_flush_ms >= config.flush_ms
        )

    def begin(self, up_to: int | None) -> PendingFlush | None:
        """Begin a flush below ``up_to``; None if nothing is unflushed or a flush is under way."""
        segments, epochs = self._segments, self._epochs
        segments.check_online()
        target = segments.end_offset if up_to is None else min(up_to, segments.end_offset)
        is_dirty = segments.seal_file.is_dirty or epochs.is_dirty
        if self._pending is not None or (target <= self.recovery_point and not is_dirty):
            return None
        target = max(target, self.recovery_point)
        directory = segments.directory
        with segments.storage_errors("flush"):
            descriptors = self._open_unflushed(target)
        checkpoints: list[tuple[Path, list[tuple[int, ...]]]] = []
        if epochs.is_dirty:
            checkpoints.append((directory / LEADER_EPOCH_FILE, list(epochs.entries)))
        epochs.is_dirty = False
        self._pending = PendingFlush(
            recovery_point=target,
            recovery_point_file=directory / RECOVERY_POINT_FILE,
            descriptors=descriptors,
            checkpoints=checkpoints,
            seals=segments.begin_seal_write(),
            directories=[directory] if self._is_parent_synced else [directory, directory.parent],
        )
        return self._pending

    def finish(self, pending: PendingFlush) -> None:
        """Take note of a flush that has run. One that was cancelled changes nothing."""
        if pending is not self._pending:
            return
        self._pending = None
        self._is_parent_synced = True
        self.recovery_point = max(self.recovery_point, pending.recovery_point)
        active = self._segments.active
        if active.end_offset <= self.recovery_point:
            active.note_flushed()
        self._last_flush_ms = self._clock_ms()

    def fail(self, pending: PendingFlush) -> None:
        """Take the log offline after a failed fsync: its bytes may be lost.

        If only a checkpoint failed, for lack of space or descriptors, the log stays online: the
        batches are on disk, the old checkpoints hold, and the next flush tries again.
        """
        if pending.is_out_of_room:
            if pending is self._pending:
                self.cancel()
            return
        if pending is self._pending:
            self._pending = None
        self._segments.go_offline()

    def give_up(self, pending: PendingFlush) -> None:
        """Cancel a flush, finished or not; the next flush repeats it."""
        if pending is self._pending:
            self.cancel()

    def flush(self, up_to: int | None) -> None:
        """Flush below ``up_to`` and wait. Raises ``StorageError``; see ``fail``."""
        self.cancel()
        pending = self.begin(up_to)
        if pending is None:
            return
        with self._segments.storage_errors("flush"):
            try:
                pending.run()
            except OSError:
                self.fail(pending)
                raise
        self.finish(pending)

    def cancel(self) -> None:
        """Keep a flush that is under way from moving the recovery point."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
            # Its checkpoints may or may not be there; the next flush writes them again.
            self._epochs.is_dirty = True
            if pending.seals is not None:
                self._segments.seal_file.give_up(pending.seals)

    def may_count(self, offset: int) -> bool:
        """Return whether the record at this offset is flushed, or may be by a flush under way."""
        pending = self._pending
        return self.recovery_point > offset or (
            pending is not None and pending.recovery_point > offset
        )

    def set_recovery_point(self, offset: int, *, is_durable: bool = True) -> None:
        """Move the recovery point, durably on return unless the caller wants it otherwise.

        Raises ``OSError``.

        Truncation lowers it before it removes anything. A crash in between leaves a short log,
        and not one that seems to have lost flushed batches.
        """
        self.cancel()
        self.recovery_point = offset
        write = write_checkpoint if is_durable else write_unsynced
        write(self._segments.directory / RECOVERY_POINT_FILE, [[offset]])

    def _open_unflushed(self, target: int) -> list[int]:
        descriptors: list[int] = []
        every = self._segments.all
        try:
            # From the first that is not flushed whole: a log may have many before it.
            for index in range(self._segments.floor_index(self.recovery_point), len(every)):
                segment = every[index]
                if segment.base_offset >= target:
                    break
                if segment.end_offset <= self.recovery_point:
                    continue
                descriptors.append(segment.open_for_sync())
                if segment.seal is None:
                    continue
                paths = _files_beside(self._segments.directory, segment)
                descriptors.extend(
                    os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths if path.exists()
                )
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return descriptors


def _files_beside(directory: Path, segment: LogSegment) -> list[Path]:
    return [
        segment_path(directory, segment.base_offset, OFFSET_INDEX_SUFFIX),
        segment_path(directory, segment.base_offset, TIME_INDEX_SUFFIX),
        segment_path(directory, segment.base_offset, TXN_INDEX_SUFFIX),
        segment_path(directory, segment.end_offset, SNAPSHOT_SUFFIX),
    ]
