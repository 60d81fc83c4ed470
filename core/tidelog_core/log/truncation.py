"""Truncates one log at its end, or restarts it empty at another offset. Durable on return.

1. the recovery point and the compacted offset are lowered to the new end, durably
2. segments, snapshots and the active segment's end are removed, newest first
3. leader epochs, producers and the log start follow in memory

A failure in between takes the log offline: remaining truncated bytes would reappear behind
newer batches. The next open reads the files again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import sync_file, write_checkpoint, write_unsynced
from tidelog_core.log.cleaning import Cleaning
from tidelog_core.log.durability import Durability
from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.log_start import LogStart
from tidelog_core.log.paths import LEADER_EPOCH_FILE, START_OFFSET_FILE
from tidelog_core.log.producers.log_producers import LogProducers
from tidelog_core.log.producers.producer_snapshots import remove_snapshots, write_snapshot
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.segments.log_segments import LogSegments


class Truncation:
    """Truncates one log. The caller moves the high watermark."""

    def __init__(
        self,
        segments: LogSegments,
        epochs: LeaderEpochs,
        producers: LogProducers,
        start: LogStart,
        *,
        durability: Durability,
        cleaning: Cleaning,
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._start = start
        self._durability = durability
        self._cleaning = cleaning

    def cut(self, offset: int) -> int:
        """Remove all batches that are not wholly below a local offset; return the new log end."""
        segments = self._segments
        self._cleaning.settle()
        with self._truncating():
            offset = segments.all[segments.floor_index(offset)].whole_below(offset)
            # Also if it does not change: this makes the removal of the clean-shutdown
            # file durable.
            recovery_point = min(self._durability.recovery_point, offset)
            self._durability.set_recovery_point(recovery_point)
            self._cleaning.forget_above(offset)
            kept = segments.floor_index(offset)
            segments.remove_last(len(segments.all) - kept - 1)
            segments.active.truncate_to(offset)
            remove_snapshots(segments.directory, above=offset)
            self._producers.state = self._producers.at(offset)
        self._start.forget_sealed()
        self._epochs.truncate_from_end(offset)
        self._start.offset = min(self._start.offset, offset)
        return offset

    def truncate_fully(
        self,
        offset: int,
        *,
        log_start_offset: int,
        leader_epochs: Iterable[tuple[int, int]],
        producers: ProducerState,
        is_durable: bool = True,
    ) -> None:
        """Remove everything; continue at the offset with these epochs and producers.

        Without ``is_durable`` a crash may leave some of it, or some of what was there before, and
        the caller has made sure that nobody takes that for a log.
        """
        segments = self._segments
        write = write_checkpoint if is_durable else write_unsynced
        epochs = [(epoch, start) for epoch, start in leader_epochs if start < offset]
        self._cleaning.settle()
        with self._truncating():
            recovery_point = min(segments.start_offset, offset)
            # Durable in any case: else the next open may look for flushed batches.
            if is_durable or self._durability.may_count(recovery_point):
                self._durability.set_recovery_point(recovery_point)
            self._cleaning.forget_above(min(segments.start_offset, offset))
            segment = segments.new_segment(offset)
            segments.remove_last(len(segments.all), is_durable=is_durable)
            remove_snapshots(segments.directory, above=-1)
            snapshot = write_snapshot(segments.directory, producers)
            if is_durable:  # What it says is nowhere else: there is no batch before.
                sync_file(snapshot)
            write(segments.directory / LEADER_EPOCH_FILE, epochs)
            write(segments.directory / START_OFFSET_FILE, [[log_start_offset, offset]])
            segment.create()
            segments.all.append(segment)
            self._durability.set_recovery_point(offset, is_durable=is_durable)
        self._start.forget_sealed()
        self._epochs.clear()
        for epoch, start in epochs:
            self._epochs.assign(epoch, start)
        self._producers.state = producers
        self._start.offset = log_start_offset

    @contextmanager
    def _truncating(self) -> Iterator[None]:
        try:
            with self._segments.storage_errors("truncation"):
                yield
        except StorageError:
            self._segments.go_offline()
            raise
